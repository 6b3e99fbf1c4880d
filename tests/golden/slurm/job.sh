#!/bin/bash
#SBATCH --comment="scalelab resnet20-strong"
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:4
#SBATCH --mem=64000M
#SBATCH --time=0-01:31:00
#SBATCH --partition=gpu
#SBATCH --exclusive
#SBATCH --signal=B:TERM@60
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/runs/allocations/0fa81c97-b28a-48c9-afce-94e87bf04c0e
#SBATCH --output=/shared/runs/allocations/0fa81c97-b28a-48c9-afce-94e87bf04c0e/job.out
#SBATCH --account=lab
#SBATCH --contiguous
#SBATCH --account=lab2
#SBATCH --constraint="a100&nvlink"

# Ranks can read the environment that this shell was started with. So put the secret into a pipe and start this
# script again without it.
if [ -n "${SCALELAB_ALLOCATION_SECRET-}" ]; then
  exec 3< <(printf '%s\n' "$SCALELAB_ALLOCATION_SECRET")
  wait "$!" 2>/dev/null || true
  unset SCALELAB_ALLOCATION_SECRET
  exec "$BASH" "$0"
fi

token='0fa81c97-b28a-48c9-afce-94e87bf04c0e'
worker=('/opt/scalelab/bin/scalelab-worker' --server 'login1:50051' --launcher srun --allocation "$token")
# The worker step ignores the task layout above: it uses whole nodes and shares them with the ranks' steps.
unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK \
  SLURM_DISTRIBUTION

# Runs on each node. The worker reads the secret from its standard input. The lock prevents a second worker of this
# allocation on the node, so it is a local file.
start_worker='
  token=$1
  shift
  directory="/tmp/scalelab-$UID"
  mkdir -p -m 700 "$directory" && [ -O "$directory" ] && [ ! -L "$directory" ] || {
    echo "scalelab: $directory on $SLURMD_NODENAME is not a directory of this user; remove it" >&2
    exit 1
  }
  find "$directory" -maxdepth 1 -name "*.lock" -mtime +2 -exec flock --nonblock {} rm {} \;
  exec "$@" --node "$SLURMD_NODENAME" --node-index "$SLURM_NODEID" \
    --lock "$directory/$token-$SLURM_NODEID.lock"
'
srun --overlap --whole --mpi=none --cpu-bind=none --export=ALL --input=all \
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --kill-on-bad-exit=1 --wait=0 \
  bash -c "$start_worker" start_worker "$token" "${worker[@]}" <&3 3<&- &
step=$!
exec 3<&-

# Slurm sends SIGTERM shortly before the time limit, at a preemption and when the job is cancelled. Ask the workers to end, and
# wait for them. The srun of the ranks gets the signal too: it would kill the ranks at SIGTERM, but passes SIGUSR1 on to them.
trap 'scancel --signal=USR1 "$SLURM_JOB_ID.0" || kill -USR1 "$step" 2>/dev/null' TERM
while kill -0 "$step" 2>/dev/null; do
  wait "$step"
done
wait "$step"
exit $?
