#!/bin/sh
# Succeed once the sshd of a worker listens.
# Images choose the port of their sshd: 22, or 2222 in those that run it without root.
port=$(cat /etc/ssh/sshd_config.d/*.conf /etc/ssh/sshd_config 2>/dev/null |
  sed -n 's/^[[:space:]]*[Pp]ort[[:space:]]\{1,\}\([0-9]\{1,\}\).*/\1/p' | head -n 1)
listening=":$(printf %04X "${port:-22}") [0-9A-F]*:0000 0A "
grep -qs "$listening" /proc/net/tcp /proc/net/tcp6
