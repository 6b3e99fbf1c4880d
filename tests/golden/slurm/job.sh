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

token='0fa81c97-b28a-48c9-afce-94e87bf04c0e'
worker=('/opt/scalelab/bin/scalelab-worker' --server 'login1:50051' --launcher srun --allocation "$token")
# Of the task layout above a worker step knows nothing: it has its nodes whole, beside the steps of its ranks.
unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK \
  SLURM_DISTRIBUTION

# On each node: the lock keeps a second worker of this allocation away, so it must be local to the node.
start_worker='
  token=$1
  shift
  directory="/tmp/scalelab-$UID"
  mkdir -p -m 700 "$directory" && [ -O "$directory" ] && [ ! -L "$directory" ] || {
    echo "scalelab: $directory is not ours; remove it from $SLURMD_NODENAME" >&2
    exit 1
  }
  find "$directory" -maxdepth 1 -name "*.lock" -mtime +2 -exec flock --nonblock {} rm {} \;
  exec "$@" --node "$SLURMD_NODENAME" --node-index "$SLURM_NODEID" \
    --lock "$directory/$token-$SLURM_NODEID.lock"
'
srun --overlap --whole --mpi=none --cpu-bind=none --export=ALL --input=/dev/null \
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --kill-on-bad-exit=1 --wait=0 \
  bash -c "$start_worker" start_worker "$token" "${worker[@]}" &
step=$!

# SIGTERM comes when the time limit is near or the job is cancelled: workers get it, and are waited for. srun itself would
# answer it by killing them.
trap 'scancel --signal=TERM "$SLURM_JOB_ID.0" || kill -TERM "$step" 2>/dev/null' TERM
while kill -0 "$step" 2>/dev/null; do
  wait "$step"
done
wait "$step"
exit $?
