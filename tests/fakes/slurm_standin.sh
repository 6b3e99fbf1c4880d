#!/usr/bin/env bash
# A fake of Slurm's programs: a directory has a symlink to this script for each program, and the state of a cluster
# with one node. Jobs really run. A file `lie.PROGRAM` simulates a failure of that program:
#   fail TEXT       prints TEXT to stderr and fails    hang         never ends
#   garbage         succeeds and prints nonsense       empty        succeeds and prints nothing
#   half            prints half of its answer          late         sbatch: fails, and the job is in `late/`
#   take-hang       sbatch: accepts the job, hangs     take-garbage sbatch: accepts the job, prints nonsense
#   stray TEXT      squeue: adds the line TEXT to its answer
# `calls` has one line per call, `slots` the number of cores of the node, `next` the number of the next job,
# `private` the value of PrivateData, `resume` the value of ResumeProgram, and `environment` variables for the jobs in
# addition to sbatch's environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$(basename "$0")
cd "$here"
printf '%s %s\n' "$program" "$*" >>calls
lie='' text=''
if [ -f "lie.$program" ]; then read -r lie text <"lie.$program" || true; fi

hang() { exec tail -f /dev/null; }

case $lie in
  fail) printf '%s\n' "$text" >&2; exit 1 ;;
  hang) hang ;;
  garbage) printf 'Slurm is having its nap\x07|||\n\n%%PDF-1.4 | 12\n'; exit 0 ;;
  empty) exit 0 ;;
esac

# Changes of the state need the lock on descriptor 9, which started programs must not inherit.
exec 9>lock
field() { cat "jobs/$1/$2"; }
set_field() { printf '%s' "$3" >"jobs/$1/$2.new" && mv "jobs/$1/$2.new" "jobs/$1/$2"; }
ids() { if [ -d jobs ]; then find jobs -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n; fi; }

# Starts the jobs that fit, in order.
start_jobs() {
  local id used=0
  for id in $(ids); do
    case $(field "$id" state) in RUNNING) used=$((used + $(field "$id" cpus))) ;; esac
  done
  for id in $(ids); do
    [ "$(field "$id" state)" = PENDING ] || continue
    if [ $((used + $(field "$id" cpus))) -gt "$(cat slots)" ]; then
      set_field "$id" reason Resources
      return
    fi
    used=$((used + $(field "$id" cpus)))
    set_field "$id" state RUNNING
    set_field "$id" reason None
    set_field "$id" nodes node1
    # Signals to this program's process group must not reach the job: wait until it has its own group.
    mkfifo "jobs/$id/started"
    setsid "$here/run-job" "$id" </dev/null >/dev/null 2>&1 9>&- &
    read -r _ <"jobs/$id/started"
  done
}

# take SCRIPT: makes a job in the directory of the next number, and prints the number.
take() {
  local id name='' cpus ranks word
  for word in "${@:2}"; do case $word in --job-name=*) name=${word#*=} ;; esac; done
  ranks=$(sed -n 's/^#SBATCH --ntasks-per-node=//p' "$1")
  cpus=$(sed -n 's/^#SBATCH --cpus-per-task=//p' "$1")
  id=$(cat next)
  echo $((id + 1)) >next
  mkdir -p "jobs/$id"
  cp "$1" "jobs/$id/script"
  export -p >"jobs/$id/exports"
  set_field "$id" name "$name"
  set_field "$id" cpus $((ranks * cpus))
  set_field "$id" state PENDING
  set_field "$id" reason Priority
  set_field "$id" nodes ''
  set_field "$id" exit 0
  echo "$id"
}

case $program in
  sbatch)
    cat >"script.$$"
    flock 9
    id=$(take "script.$$" "$@")
    rm "script.$$"
    case $lie in
      late)
        mkdir -p late && mv "jobs/$id" late/
        echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
        exit 1
        ;;
    esac
    start_jobs
    flock -u 9
    case $lie in
      take-hang) hang ;;
      take-garbage) echo 'Submitted, I think' ;;
      *) echo "$id" ;;
    esac
    ;;
  run-job)
    echo >"jobs/$1/started"
    set +e
    # shellcheck disable=SC1090
    . "jobs/$1/exports"
    set -a
    # shellcheck disable=SC1091
    . ./environment
    set +a
    output=$(sed -n 's/^#SBATCH --output=//p' "jobs/$1/script")
    SLURM_JOB_NUM_NODES=1 SLURM_JOB_ID=$1 setsid bash "jobs/$1/script" >>"$output" 2>&1 9>&- &
    job=$!
    set_field "$1" pid "$job"
    wait "$job"
    status=$?
    set -e
    flock 9
    [ -d "jobs/$1" ] || exit 0
    set_field "$1" exit $((status * 256))
    if [ -f "jobs/$1/cancelled" ]; then
      set_field "$1" state CANCELLED
    elif [ "$status" -eq 0 ]; then
      set_field "$1" state COMPLETED
    else
      set_field "$1" state FAILED
      set_field "$1" reason NonZeroExitCode
    fi
    start_jobs
    ;;
  srun)
    while [[ $1 == --* ]]; do shift; done
    export SLURMD_NODENAME=node1 SLURM_NODEID=0
    exec "$@"
    ;;
  squeue)
    flock 9
    answer=''
    wanted=''
    for word in "$@"; do case $word in --name=*) wanted=${word#*=} ;; esac; done
    for id in $(ids); do
      name=$(field "$id" name)
      if [ -n "$wanted" ] && [[ ",$wanted," != *",$name,"* ]]; then continue; fi
      answer+="$id|$(id -u)|$(field "$id" state)|$(field "$id" reason)|$(field "$id" exit)|N/A|0:01|1:00:00|"
      answer+="$(field "$id" nodes)|$name"$'\n'
    done
    if [ "$lie" = stray ]; then answer+="$text"$'\n'; fi
    if [ "$lie" = half ]; then answer=${answer:0:$((${#answer} / 2))}; fi
    printf '%s' "$answer"
    ;;
  scancel)
    flock 9
    wanted='' only=' '  # only: ids, each between spaces
    for word in "$@"; do
      case $word in
        --name=*) wanted=${word#*=} ;;
        [0-9]*) only+="$word " ;;
      esac
    done
    for id in $(ids); do
      if [ -n "$wanted" ] && [ "$(field "$id" name)" != "$wanted" ]; then continue; fi
      if [ "$only" != ' ' ] && [[ $only != *" $id "* ]]; then continue; fi
      case $(field "$id" state) in
        PENDING) set_field "$id" state CANCELLED ;;
        RUNNING)
          touch "jobs/$id/cancelled"
          if [ -f "jobs/$id/pid" ]; then kill -TERM -- "-$(field "$id" pid)" || true; fi
          ;;
      esac
    done
    start_jobs
    ;;
  sinfo) echo "node1|main*|up|1-00:00:00|idle|0/$(cat slots)/0/$(cat slots)|8000|(null)|gpu:0|none" ;;
  scontrol)
    printf 'AccountingStorageType   = accounting_storage/%s\nClusterName             = standin\n' "$(cat accounting)"
    if [ -f private ]; then printf 'PrivateData             = %s\n' "$(cat private)"; fi
    if [ -f resume ]; then printf 'ResumeProgram           = %s\n' "$(cat resume)"; fi
    printf 'MessageTimeout          = 10 sec\nSLURM_VERSION           = 22.05.8\n'
    ;;
  sacct) if [ -f sacct.answer ]; then cat sacct.answer; fi ;;
  *)
    echo "$program: no such program" >&2
    exit 1
    ;;
esac
