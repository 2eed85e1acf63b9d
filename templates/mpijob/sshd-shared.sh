#!/bin/sh
# Start the sshd of a worker that sees all GPUs of its node and uses some of them.
# sshd, which the operator would start alone, does not pass the container's environment on to the
# ranks without SetEnv (since OpenSSH 7.8). CUDA numbers the GPUs that a container sees from 0 in
# the order of the bus; each worker's own come first.
said="NCCL_HOSTID=$NCCL_HOSTID NCCL_CUMEM_ENABLE=$NCCL_CUMEM_ENABLE"
#% if job.nccl_debug
said="$said NCCL_DEBUG=$NCCL_DEBUG NCCL_DEBUG_SUBSYS=$NCCL_DEBUG_SUBSYS"
#% endif
#% if names_hcas
said="$said${NCCL_IB_HCA:+ NCCL_IB_HCA=$NCCL_IB_HCA}"
#% endif
case $NVIDIA_VISIBLE_DEVICES in
'' | *[!0-9,]*) ;;
*)
  order=
  IFS=,
  for gpu in $NVIDIA_VISIBLE_DEVICES; do
    place=0
    for other in $NVIDIA_VISIBLE_DEVICES; do
      [ "$other" -ge "$gpu" ] || place=$((place + 1))
    done
    order=$order,$place
  done
  said="$said CUDA_DEVICE_ORDER=PCI_BUS_ID"
  said="$said CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-${order#,}}"
  ;;
esac
exec /usr/sbin/sshd -De -o "SetEnv=$said"
