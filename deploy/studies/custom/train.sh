#!/bin/sh
# The smallest program that engine custom can run: gradient descent on y = 3 x in a shell. Every rank does the same, so
# that all end with the same parameter; see train.py for ranks that share the work.
set -eu

# The specification is JSON with one field a line or not; this finds a number in it.
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
  # Of x = 1: loss (3 - w)^2, gradient 2 (w - 3).
  loss=$(compute "(3 - $weight) * (3 - $weight)")
  weight=$(compute "$weight - $rate * 2 * ($weight - 3)")
  tell "\"event\":\"step\",\"epoch\":0,\"step\":$step,\"metrics\":{\"step/total_s\":$(compute "$(now) - $before"),\"train/loss\":$loss}"
  step=$((step + 1))
done
seconds=$(compute "$(now) - $begin")
hash=$(printf '%s' "$weight" | cksum | cut -d ' ' -f 1)
tell "\"event\":\"finish\",\"metrics\":{\"run/throughput\":$(compute "$steps * $batch / $seconds"),\"run/steps\":$steps,\"run/seconds\":$seconds},\"parameter_hash\":\"$hash\""
