# shellcheck shell=bash
# Functions for the scripts in this folder, which print phases, their durations and errors, and what this machine can run at once.

# phase TEXT...: starts a phase and prints TEXT.
phase() {
  printf '%s\n' "==> $*"
  phase_start=${EPOCHREALTIME/[^0-9]/}
}

# took TEXT...: ends the phase and prints TEXT and its duration.
took() {
  local micros=$((${EPOCHREALTIME/[^0-9]/} - phase_start))
  printf '    %s: %d.%d s\n' "$*" $((micros / 1000000)) $((micros / 100000 % 10))
}

# fail TEXT...: prints an error message and ends the script.
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# memory_mib: prints the available memory in MiB, at most the limits of the process's control group and its ancestors (cgroup v2).
memory_mib() {
  local memory group limit
  memory=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
  group=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null || true)
  while :; do
    limit=$(cat "/sys/fs/cgroup$group/memory.max" 2>/dev/null || true)
    if [[ $limit =~ ^[0-9]+$ ]] && [ $((limit / 1048576)) -lt "$memory" ]; then memory=$((limit / 1048576)); fi
    [ -n "$group" ] || break
    group=${group%/*}
  done
  printf '%s\n' "$memory"
}

# core_count: prints the number of cores that this process may use. nproc would print OMP_NUM_THREADS instead if it is set.
core_count() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# job_count MIB: prints how many jobs that take MIB of memory each can run at once: at most one for each core, at least 1.
job_count() {
  local jobs cores
  jobs=$(($(memory_mib) / $1)) cores=$(core_count)
  [ "$jobs" -le "$cores" ] || jobs=$cores
  [ "$jobs" -ge 1 ] || jobs=1
  printf '%s\n' "$jobs"
}
