#!/bin/sh
# The smallest program for engine custom: gradient descent on y = 3 x in a shell. Every rank does the same work, so all ranks end with
# the same parameter. In train.py the ranks divide the work.
set -eu

# field NAME: prints a number of the specification, which is JSON with or without line breaks.
field() { tr ',{' '[\n*]' <"$SCALELAB_SPEC" | sed -n "s/^ *\"$1\": *\"\{0,1\}\([-0-9.e]*\).*/\1/p" | head -n 1; }
steps=$(field max_steps)
batch=$(field global_batch)
rate=$(field learning_rate)

now() { date +%s.%N; }
tell() { printf '{"time":%s,%s}\n' "$(now)" "$1" >>"$SCALELAB_EVENTS"; }
compute() { awk "BEGIN { printf \"%.9g\", $1 }"; }

tell "\"event\":\"start\",\"framework\":\"shell\",\"version\":\"1\",\"world_size\":$WORLD_SIZE,\"rank\":$RANK,\"total_steps\":$steps"
weight=0
step=0
begin=$(now)
while [ "$step" -lt "$steps" ]; do
  before=$(now)
  # For x = 1: loss (3 - w)^2, gradient 2 (w - 3).
  loss=$(compute "(3 - $weight) * (3 - $weight)")
  weight=$(compute "$weight - $rate * 2 * ($weight - 3)")
  tell "\"event\":\"step\",\"epoch\":0,\"step\":$step,\"metrics\":{\"step/total_s\":$(compute "$(now) - $before"),\"train/loss\":$loss}"
  step=$((step + 1))
done
seconds=$(compute "$(now) - $begin")
hash=$(printf '%s' "$weight" | cksum | cut -d ' ' -f 1)
tell "\"event\":\"finish\",\"metrics\":{\"run/throughput\":$(compute "$steps * $batch / $seconds"),\"run/steps\":$steps,\"run/seconds\":$seconds},\"parameter_hash\":\"$hash\""
