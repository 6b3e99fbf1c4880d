# shellcheck shell=bash
# Functions for the scripts in this folder, which print phases, their durations and errors.

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
