#!/bin/bash
# Replaces `apptainer exec [--nv] [--bind DIRECTORY]... IMAGE COMMAND...` in tests, because Debian 12 has no package of
# Apptainer. It must run as root. IMAGE is a directory. It becomes the root directory of the command and contains this
# machine's /usr and /etc. The command also sees the directories that --bind names, and no others; with the real
# Apptainer it would also see the home directory and /tmp.
set -euo pipefail
[ "$1" = exec ] && shift
binds=()
while :; do
  case $1 in
    --nv) shift ;;
    --bind) binds+=("$2") && shift 2 ;;
    *) break ;;
  esac
done
image=$1
shift
# shellcheck disable=SC2016
exec unshare --mount --propagation private bash -euc '
  image=$1 count=$2 directory=$PWD
  shift 2
  mount -t tmpfs image "$image"
  for name in bin lib lib64 sbin; do ln -s "usr/$name" "$image/$name"; done
  mkdir -m 1777 "$image/tmp"
  for shown in /usr /etc /proc /dev "${@:1:count}"; do
    mkdir -p "$image$shown"
    mount --rbind "$shown" "$image$shown"
  done
  shift "$count"
  exec chroot "$image" bash -c '\''cd "$1" 2>/dev/null || cd /; shift; exec "$@"'\'' bash "$directory" "$@"
' bash "$image" "${#binds[@]}" "${binds[@]}" "$@"
