# shellcheck shell=bash disable=SC2154  # dev-cluster sets the variables of a cluster
# Functions for dev-cluster: the description of a cluster, and its namespaces.
#
# Each node is a set of namespaces that exist as long as their PID 1 (node-init). If node-init is killed, the kernel ends every
# process, mount and network link of the node. The daemons of the login node (munged, slurmctld, with --accounting mariadbd and
# slurmdbd) have a PID 1 too, but use the machine's network. A cluster therefore consists of its node-inits, one bridge, and DIR.
# DIR/cluster describes them and is written before they are created.

# load_cluster: reads DIR/cluster.
load_cluster() {
  local key value
  while IFS='=' read -r key value; do
    case $key in
      name | token | mac | address | node_count | rate | gpus | cpus | memory | bind | preempt | accounting) printf -v "$key" %s "$value" ;;
    esac
  done <"$dir/cluster"
  [ -n "${token:-}" ] || fail "$dir/cluster does not describe a cluster; if $dir contains nothing else, remove it"
}

# save_cluster: writes DIR/cluster atomically.
save_cluster() {
  printf '%s\n' "name=$name" "token=$token" "mac=$mac" "address=$address" "node_count=$node_count" "rate=$rate" \
    "gpus=$gpus" "cpus=$cpus" "memory=$memory" "bind=$bind" "preempt=$preempt" "accounting=$accounting" >"$dir/cluster.new"
  mv "$dir/cluster.new" "$dir/cluster"
}

# nodes: prints the names of the nodes, one a line.
nodes() {
  local i
  for ((i = 1; i <= node_count; i++)); do printf '%s\n' "$name-n$i"; done
}

# lock_cluster: locks DIR until this script ends, so that only one up or down runs at a time.
lock_cluster() {
  exec {dir_lock}<"$dir"
  flock --wait 60 "$dir_lock" || fail "another deploy/dev-cluster has locked $dir for a minute; stop it and try again"
  [ "/proc/$$/fd/$dir_lock" -ef "$dir" ] || fail "another deploy/dev-cluster has just removed $dir; try again"
}

# wait_until SECONDS COMMAND...: runs COMMAND every 50 ms until it succeeds; fails after SECONDS.
wait_until() {
  local end=$((${EPOCHREALTIME/[^0-9]/} + $1 * 1000000))
  shift
  until "$@"; do
    [ "${EPOCHREALTIME/[^0-9]/}" -lt "$end" ] || return 1
    sleep 0.05
  done
}

# last_words FILE...: prints the last line of each file, for an error message.
last_words() {
  local file
  for file in "$@"; do [ ! -s "$file" ] || printf '%s: %s; ' "$file" "$(tail -n 1 "$file")"; done
}

# detached COMMAND...: replaces this (sub)shell by COMMAND, without its open files (locks included) and without its environment.
detached() {
  local fd
  for fd in /proc/"$BASHPID"/fd/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || [ "$fd" -eq 255 ] || exec {fd}>&-
  done
  cd /
  exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# start_init NODE NAMESPACE...: starts to create a node's namespaces with its PID 1, in the background. inits_ready
# succeeds when they exist.
start_init() {
  local node=$1
  shift
  mkdir -p "$dir/nodes/$node"/{spool,tmp}
  (detached setsid unshare "$@" --mount --pid --fork bash "$here/slurm/node-init" "$token" "$dir" "$node") \
    </dev/null >"$dir/nodes/$node/console.log" 2>&1 &
  disown
}

# is_ours PID: succeeds if the process is a node-init of this cluster. Checks the token in its command line, because the system may
# have reused the process id, and another container may have a cluster of the same name.
is_ours() {
  local words
  { mapfile -d '' -t words <"/proc/$1/cmdline"; } 2>/dev/null && [[ " ${words[*]:0:20} " == *"/node-init $token "* ]]
}

# init_pid NODE: prints the process id of the node's PID 1; fails if it does not run.
init_pid() {
  local pid
  { read -r pid <"$dir/nodes/$1/pid"; } 2>/dev/null && is_ours "$pid" && printf '%s\n' "$pid"
}

inits_ready() {
  local node
  for node in login $(nodes); do init_pid "$node" >/dev/null || return 1; done
}

# way_into NODE: sets the array `way` to the command that runs another command in all namespaces of the node.
way_into() {
  local pid
  pid=$(init_pid "$1") || fail "$1 does not run; clean up with: deploy/dev-cluster down --dir $dir"
  # --root is needed if this process runs in a chroot: the root of the node's mount namespace is
  # then another directory.
  way=(nsenter --target "$pid" --mount --uts --ipc --net --pid --root "--wdns=$PWD")
}

# enter NODE COMMAND...: runs COMMAND in the node, in the current folder.
enter() {
  local way
  way_into "$1"
  "${way[@]}" "${@:2}"
}

# list_processes NODE: prints process id, resident memory in kB and command line, one process a line. Does not need ps.
list_processes() {
  local init proc words kb
  init=$(init_pid "$1") || fail "$1 does not run"
  for proc in "/proc/$init/root/proc"/[0-9]*; do
    { mapfile -d '' -t words <"$proc/cmdline" && kb=$(sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "$proc/status"); } 2>/dev/null || continue
    [ ${#words[@]} -eq 0 ] || printf '%s\t%s\t%s\n' "${proc##*/}" "$kb" "${words[*]}"
  done | sort -n
}

# end_inits: kills the cluster's node-inits, and thereby all its processes; succeeds if none is left.
end_inits() {
  local pid left=0
  while IFS=/ read -r _ _ pid _; do
    is_ours "$pid" || continue
    kill -KILL "$pid" 2>/dev/null || true
    left=1
  done < <(grep -lsF -- "$token" /proc/[0-9]*/cmdline)
  return $left
}

# remove_cluster: stops the cluster and removes DIR. Works in every incomplete state.
remove_cluster() {
  if [ -e "$dir/cluster" ]; then
    wait_until 20 end_inits || fail "processes of $name do not end; list them with: grep -la $token /proc/[0-9]*/cmdline"
    wait_until 20 remove_cgroups || fail "a control group of $name cannot be removed; list them with: ls -d /sys/fs/cgroup/*/slurm_$name-*"
    remove_network
  fi
  rm -rf --one-file-system "$dir"
}
