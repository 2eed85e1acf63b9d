#!/bin/sh
# Start the sshd of a worker whose ranks get the NCCL variables of the container.
# sshd does not pass them on without SetEnv (since OpenSSH 7.8). For an older sshd there is NCCL's
# own file. It is the second choice: ranks of NCCL 2.13 to 2.18 choose how much they log before they
# read it (src/init.cc, ncclCommInitRank).
#% if job.nccl_debug
said="NCCL_DEBUG=$NCCL_DEBUG NCCL_DEBUG_SUBSYS=$NCCL_DEBUG_SUBSYS"
#% else
said=
#% endif
#% if names_hcas
[ -z "$NCCL_IB_HCA" ] || said="${said:+$said }NCCL_IB_HCA=$NCCL_IB_HCA"
[ -n "$said" ] || exec /usr/sbin/sshd -De
#% endif
if /usr/sbin/sshd -t -o "SetEnv=$said"; then
  exec /usr/sbin/sshd -De -o "SetEnv=$said"
fi
#% if job.nccl_debug
printf '\nNCCL_DEBUG=%s\nNCCL_DEBUG_SUBSYS=%s\n' "$NCCL_DEBUG" "$NCCL_DEBUG_SUBSYS" \
  >>/etc/nccl.conf
#% endif
#% if names_hcas
[ -z "$NCCL_IB_HCA" ] || printf '\nNCCL_IB_HCA=%s\n' "$NCCL_IB_HCA" >>/etc/nccl.conf
#% endif
exec /usr/sbin/sshd -De
