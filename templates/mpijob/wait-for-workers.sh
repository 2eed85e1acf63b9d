#!/bin/sh
# Wait until the names of all workers resolve: JOB COUNT NAMESPACE.svc SECONDS.
# The name of a worker resolves once the worker is ready, and mpirun does not wait for that. The
# Service of the workers is called JOB-worker by mpi-operator up to 0.4, and JOB since then.
job=$1 count=$2 space=$3 limit=$4
if command -v getent >/dev/null; then resolves() { getent ahosts "$1"; }
elif command -v nslookup >/dev/null; then resolves() { nslookup "$1"; }
else echo "cannot look up names in this image: not waiting for the workers"; exit 0
fi
deadline=$(($(date +%s) + limit))
waiting=
index=0
while [ "$index" -lt "$count" ]; do
  waiting="$waiting $job-worker-$index"
  index=$((index + 1))
done
while :; do
  missing=
  for worker in $waiting; do
    resolves "$worker.$job.$space" >/dev/null 2>&1 ||
      resolves "$worker.$job-worker.$space" >/dev/null 2>&1 ||
      missing="$missing $worker"
  done
  [ -n "$missing" ] || exit 0
  if [ "$(date +%s)" -ge "$deadline" ]; then
    echo "not ready after $limit s:$missing" >&2
    exit 1
  fi
  waiting=$missing
  sleep 2
done
