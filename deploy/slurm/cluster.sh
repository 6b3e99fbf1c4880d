# shellcheck shell=bash disable=SC2154  # the settings of a cluster are dev-cluster's
# Sourced by dev-cluster: what a cluster is, and its namespaces.
#
# Each node is a set of namespaces that live as long as their PID 1 (node-init): kill it, and the kernel ends every process,
# mount and network link of the node. The daemons of the login node (munged, slurmctld, with --accounting mariadbd and slurmdbd)
# have a PID 1 too, but the machine's network. So a cluster is: its node-inits, one bridge, and DIR. DIR/cluster names them, and
# is written before they are made.

# load_cluster: reads DIR/cluster.
load_cluster() {
  local key value
  while IFS='=' read -r key value; do
    case $key in
      name | token | mac | address | node_count | rate | gpus | cpus | memory | bind | preempt | accounting) printf -v "$key" %s "$value" ;;
    esac
  done <"$dir/cluster"
  [ -n "${token:-}" ] || fail "$dir/cluster is no description of a cluster; if nothing else is in $dir, remove it"
}

# save_cluster: writes DIR/cluster, whole or not at all.
save_cluster() {
  printf '%s\n' "name=$name" "token=$token" "mac=$mac" "address=$address" "node_count=$node_count" "rate=$rate" \
    "gpus=$gpus" "cpus=$cpus" "memory=$memory" "bind=$bind" "preempt=$preempt" "accounting=$accounting" >"$dir/cluster.new"
  mv "$dir/cluster.new" "$dir/cluster"
}

# nodes: the names of the nodes, a line each.
nodes() {
  local i
  for ((i = 1; i <= node_count; i++)); do printf '%s\n' "$name-n$i"; done
}

# lock_cluster: one up or down at a time for DIR, until this script ends.
lock_cluster() {
  exec {dir_lock}<"$dir"
  flock --wait 60 "$dir_lock" || fail "another deploy/dev-cluster has been working on $dir for a minute; end it and try again"
  [ "/proc/$$/fd/$dir_lock" -ef "$dir" ] || fail "another deploy/dev-cluster has just removed $dir; try again"
}

# wait_until SECONDS COMMAND...: asks every 50 ms until COMMAND succeeds; fails when it does not in time.
wait_until() {
  local end=$((${EPOCHREALTIME/[^0-9]/} + $1 * 1000000))
  shift
  until "$@"; do
    [ "${EPOCHREALTIME/[^0-9]/}" -lt "$end" ] || return 1
    sleep 0.05
  done
}

# last_words FILE...: the last line of each, for an error message.
last_words() {
  local file
  for file in "$@"; do [ ! -s "$file" ] || printf '%s: %s; ' "$file" "$(tail -n 1 "$file")"; done
}

# detached COMMAND...: replaces this (sub)shell by COMMAND without our locks, whatever a caller has left open, and its environment.
detached() {
  local fd
  for fd in /proc/"$BASHPID"/fd/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || [ "$fd" -eq 255 ] || exec {fd}>&-
  done
  cd /
  exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# start_init NODE NAMESPACE...: makes a node's namespaces and starts its PID 1 there. inits_ready tells when it is done.
start_init() {
  local node=$1
  shift
  mkdir -p "$dir/nodes/$node"/{spool,tmp}
  (detached setsid unshare "$@" --mount --pid --fork bash "$here/slurm/node-init" "$token" "$dir" "$node") \
    </dev/null >"$dir/nodes/$node/console.log" 2>&1 &
  disown
}

# is_ours PID: whether a process is a node-init of this cluster. The token in its command line is the proof, so that a number
# the system has given to somebody else, or a namesake in another container, is never touched.
is_ours() {
  local words
  { mapfile -d '' -t words <"/proc/$1/cmdline"; } 2>/dev/null && [[ " ${words[*]:0:20} " == *"/node-init $token "* ]]
}

# init_pid NODE: the process id of its PID 1; fails when it is not there.
init_pid() {
  local pid
  { read -r pid <"$dir/nodes/$1/pid"; } 2>/dev/null && is_ours "$pid" && printf '%s\n' "$pid"
}

inits_ready() {
  local node
  for node in login $(nodes); do init_pid "$node" >/dev/null || return 1; done
}

# way_into NODE: the words that run a command in all namespaces of the node, in the array `way`.
way_into() {
  local pid
  pid=$(init_pid "$1") || fail "$1 is not there; clean up with: deploy/dev-cluster down --dir $dir"
  # --root: the root of its mount namespace is another than ours where we run inside a chroot.
  way=(nsenter --target "$pid" --mount --uts --ipc --net --pid --root "--wdns=$PWD")
}

# enter NODE COMMAND...: runs it in the node, in the directory we are in.
enter() {
  local way
  way_into "$1"
  "${way[@]}" "${@:2}"
}

# list_processes NODE: process id, resident memory in kB and command line, a line each. Without ps, which small systems lack.
list_processes() {
  local init proc words kb
  init=$(init_pid "$1") || fail "$1 is not there"
  for proc in "/proc/$init/root/proc"/[0-9]*; do
    { mapfile -d '' -t words <"$proc/cmdline" && kb=$(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "$proc/status"); } 2>/dev/null || continue
    [ ${#words[@]} -eq 0 ] || printf '%s\t%s\t%s\n' "${proc##*/}" "$kb" "${words[*]}"
  done | sort -n
}

# end_inits: kills what is left of the cluster's node-inits, and with them all that ever ran in it; succeeds when none is left.
end_inits() {
  local pid left=0
  while IFS=/ read -r _ _ pid _; do
    is_ours "$pid" || continue
    kill -KILL "$pid" 2>/dev/null || true
    left=1
  done < <(grep -lsF -- "$token" /proc/[0-9]*/cmdline)
  return $left
}

# remove_cluster: ends all of the cluster and removes DIR. Works from any half-done state.
remove_cluster() {
  if [ -e "$dir/cluster" ]; then
    wait_until 20 end_inits || fail "processes of $name do not end; look at: grep -la $token /proc/[0-9]*/cmdline"
    wait_until 20 remove_cgroups || fail "a control group of $name does not go; look at: ls -d /sys/fs/cgroup/*/slurm_$name-*"
    remove_network
  fi
  rm -rf --one-file-system "$dir"
}
