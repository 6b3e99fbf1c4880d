# shellcheck shell=bash disable=SC2154  # dev-cluster sets the variables of a cluster
# Functions for dev-cluster: the daemons of MUNGE and Slurm, and their configuration.

# write_config: writes DIR/etc from the templates in this folder, the task prolog, the key of MUNGE, and the devices of the fake
# GPUs.
write_config() {
  local node i gres='' cgroup=cgroup/v1 constrain=no plugins=()
  mkdir -p "$dir/etc" "$dir/dev" "$dir/nodes/login/state"
  chmod 755 "$dir"
  chmod 700 "$dir/nodes/login/state"
  head -c 128 /dev/urandom >"$dir/munge.key"
  chmod 400 "$dir/munge.key"
  if cgroups_limit_memory; then
    constrain=yes
  elif [ "$(slurm_version)" -ge 2311 ]; then
    cgroup=disabled  # older versions reject this value; with cgroup/v1, they do not need control groups
  fi
  sed -e '/^##/d' -e "s|@cgroup@|$cgroup|; s|@constrain@|$constrain|" "$here/slurm/cgroup.conf.in" >"$dir/etc/cgroup.conf"
  sed -e '/^##/d' -e "s|@dir@|$dir|g; s|@name@|$name|g; s|@address@|$address|g; s|@preempt@|${preempt^^}|g" \
    -e "s|@mem_per_cpu@|$((memory > cpus ? memory / cpus : 1))|g" "$here/slurm/slurm.conf.in" >"$dir/etc/slurm.conf"
  # All nodes share the cores of this machine, so an MPI rank that waits for another must yield its core.
  printf '#!/bin/sh\necho export OMPI_MCA_mpi_yield_when_idle=1\n' >"$dir/etc/task-prolog"
  chmod 755 "$dir/etc/task-prolog"
  if [ "$accounting" = yes ]; then
    write_accounting
  else
    printf 'AccountingStorageType=accounting_storage/none\n' >>"$dir/etc/slurm.conf"
  fi
  {
    if [ "$constrain" = yes ]; then
      printf '%s\n' '# The kernel limits memory; a job over its limit is OUT_OF_MEMORY.'
      plugins+=(task/cgroup)
    else
      printf '%s\n' '# Without memory cgroups Slurm polls memory every second; a job over its limit is killed and FAILED.' \
        JobAcctGatherType=jobacct_gather/linux JobAcctGatherFrequency=task=1 JobAcctGatherParams=OverMemoryKill
    fi
    [ "$bind" = no ] || plugins=(task/affinity "${plugins[@]}")
    [ ${#plugins[@]} -eq 0 ] || printf 'TaskPlugin=%s\n' "$(IFS=, && printf %s "${plugins[*]}")"
    if [ "$gpus" -gt 0 ]; then
      for ((i = 0; i < gpus; i++)); do mknod -m 666 "$dir/dev/gpu$i" c 1 3; done
      printf 'AutoDetect=off\nName=gpu File=%s\n' "$dir/dev/gpu[0-$((gpus - 1))]" >"$dir/etc/gres.conf"
      printf 'GresTypes=gpu\n'
      gres="Gres=gpu:$gpus"
    fi
    for node in $(nodes); do
      printf 'NodeName=%s NodeAddr=%s CPUs=%s RealMemory=%s %s\n' "$node" "$(node_address "$node")" "$cpus" "$memory" "$gres"
    done
  } >>"$dir/etc/slurm.conf"
}

# slurm_version: prints the version as a number, 2205 for 22.05.8.
slurm_version() { slurmd -V | sed -n 's/.* \([0-9]*\)\.\([0-9]*\).*/\1\2/p'; }

# cgroups_limit_memory: succeeds if Slurm can limit memory. Without systemd it can use only version 1 of control groups.
cgroups_limit_memory() { [ -w /sys/fs/cgroup/memory/cgroup.procs ]; }

# remove_cgroups: removes the control groups of slurmd's jobs; fails while the kernel still uses one.
remove_cgroups() {
  local node group left=0
  for node in $(nodes); do
    for group in /sys/fs/cgroup/*/"slurm_$node"; do
      # With "\;" instead of "+", find would succeed although rmdir fails.
      [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
    done
  done
  return $left
}

# daemon_pid NODE DAEMON: prints its process id in the node's namespace; fails if it does not run.
daemon_pid() {
  local init pid comm
  init=$(init_pid "$1") && { read -r pid <"$dir/nodes/$1/$2.pid"; } 2>/dev/null &&
    { read -r comm <"/proc/$init/root/proc/$pid/comm"; } 2>/dev/null && [ "$comm" = "$2" ] && printf '%s\n' "$pid"
}

# daemon_state NODE DAEMON: prints runs or down.
daemon_state() { daemon_pid "$1" "$2" >/dev/null && echo runs || echo down; }

daemon_gone() { ! daemon_pid "$1" "$2" >/dev/null; }

# kill_daemon NODE DAEMON SIGNAL: sends the signal and waits until the daemon has ended.
kill_daemon() {
  local pid
  pid=$(daemon_pid "$1" "$2") || fail "no $2 runs on $1"
  # shellcheck disable=SC2016  # the shell in the node expands it
  enter "$1" bash -c 'kill "-$1" "$2"' _ "$3" "$pid"
  wait_until 30 daemon_gone "$1" "$2" || fail "$2 on $1 has not ended 30 s after SIG$3"
}

# start_daemon NODE COMMAND...: starts a daemon that forks into the background. Its output is in console.log until it opens its log.
start_daemon() {
  local way
  way_into "$1"
  (detached "${way[@]}" "${@:2}") </dev/null >>"$dir/nodes/$1/console.log" 2>&1
}

start_munged() {
  local home=$dir/nodes/login
  # Without --force, munged refuses a DIR below a home directory that does not belong to root.
  start_daemon login munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$home/munged.pid" \
    --log-file="$home/munged.log" --seed-file="$home/munged.seed" || fail "munged does not start: $(last_words "$home"/*.log)"
}

controller_answers() { scontrol ping >/dev/null 2>&1; }

start_controller() {
  daemon_gone login slurmctld || fail "slurmctld already runs"
  if ! start_daemon login slurmctld -f "$SLURM_CONF" || ! wait_until 20 controller_answers; then
    fail "slurmctld does not answer: $(last_words "$dir"/nodes/login/{console,slurmctld}.log)"
  fi
}

spawn_slurmd() {
  start_daemon "$1" slurmd -f "$SLURM_CONF" -N "$1" || fail "slurmd does not start: $(last_words "$dir/nodes/$1"/{console,slurmd}.log)"
}

slurmd_answers() { enter "$1" scontrol show slurmd >/dev/null 2>&1; }

start_slurmd() {
  daemon_gone "$1" slurmd || fail "slurmd already runs on $1"
  spawn_slurmd "$1"
  wait_until 20 slurmd_answers "$1" || fail "slurmd does not answer on $1: $(last_words "$dir/nodes/$1"/{console,slurmd}.log)"
}

# node_states: prints the number of nodes in each state, for example "4 idle"; a star means that a node does not respond.
node_states() { sinfo --noheader --partition=main --format='%D %t' 2>&1 | paste -sd, ; }

nodes_idle() { [ "$(node_states)" = "$node_count idle" ]; }
