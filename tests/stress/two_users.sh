#!/usr/bin/env bash
# One user prepares the state folder of another, in a folder that all may write to: nothing of the
# victim's may change, be read or be waited for. Run as root; it makes two users and removes them.
#     tests/stress/two_users.sh PYTHON      a Python that both may run and that has arena-topo
set -u
python=${1:?a Python that every user may run}
at=$(mktemp -d) && chmod 755 "$at"
victim=arena-victim attacker=arena-attacker wrong=0
for user in $victim $attacker; do useradd --create-home "$user"; done
trap 'for user in $victim $attacker; do pkill -KILL -u $user; userdel --remove "$user" 2>/dev/null; done; rm -rf "$at"' EXIT
precious=/home/$victim/precious state=$at/shared
runuser -u $victim -- sh -c "mkdir $precious && echo data > $precious/file"

as_victim() {
    runuser -u $victim -- env -i PATH=/usr/bin:/bin HOME=/home/$victim XDG_STATE_HOME="$state" \
        PYTHONPATH="${PYTHONPATH:-}" timeout 10 "$python" -m arena_topo --backend local \
        --emulate dgx-1-v100:2 "$@"
}
as_attacker() { runuser -u $attacker -- sh -c "$1"; }
refused() { # what the attacker has done, then the command of the victim
    local what=$1 said
    shift
    said=$(as_victim "$@" 2>&1)
    case $said in
        *"is not used"*"belongs to the user $attacker"*) ;;
        *) echo "$what: not refused: $said" && wrong=1 ;;
    esac
    [ "$(cat $precious/file)" = data ] || { echo "$what: a file of the victim is gone" && wrong=1; }
    [ -z "$(find "$state" -user $victim)" ] || { echo "$what: files of the victim are there" && wrong=1; }
}
fresh() { rm -rf "$state" && mkdir -m 1777 "$state" && as_attacker "mkdir -m 777 $state/arena-topo"; }

submit=(submit mpi --name v --gpus 1 --workers 1 --image local --timeout 5s true)
fresh
refused "a folder of the attacker" "${submit[@]}"
evil=$state/arena-topo/jobs/default/evil
as_attacker "mkdir -p $evil && chmod -R 777 $state/arena-topo/jobs && cat > $evil/record" <<RECORD
{"format": 1, "record": {"phase": "RUNNING", "forecast": {"state": "placed", "workers": []},
 "supervisor": {"pid": 999999, "started": 1, "boot": "x"}, "reason": null, "finished": null,
 "exit_code": null, "scratch": "$precious", "pods": {}}}
RECORD
refused "a record that names a folder of the victim" list
as_attacker "touch $state/arena-topo/lock && flock $state/arena-topo/lock sleep 20" &
sleep 1
refused "a lock that the attacker has" "${submit[@]}"
fresh
as_attacker "rmdir $state/arena-topo && mkdir -m 777 $state/trap && ln -s $state/trap $state/arena-topo"
refused "a link to a folder of the attacker" "${submit[@]}"
kill %1 2>/dev/null
[ $wrong = 0 ] && echo "nothing of the victim was changed, read or waited for"
exit $wrong
