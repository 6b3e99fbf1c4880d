# shellcheck shell=bash
# Sourced by the scripts beside it: how they say what they do and how long it took.

# phase WHAT...: starts a phase, in one line.
phase() {
  printf '%s\n' "==> $*"
  phase_start=${EPOCHREALTIME/[^0-9]/}
}

# took WHAT...: ends it.
took() {
  local micros=$((${EPOCHREALTIME/[^0-9]/} - phase_start))
  printf '    %s: %d.%d s\n' "$*" $((micros / 1000000)) $((micros / 100000 % 10))
}

# fail WHAT...: says what is wrong and ends the script.
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}
