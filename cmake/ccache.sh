#!/bin/sh
# Compiles through ccache: cmake/ccache.sh COMPILER ARGUMENT...
# - pch_defines,time_macros: without them ccache does not cache code that uses precompiled headers.
# - DEPEND avoids the preprocessor in a first build.
# - PCH_EXTSUM: ccache reads the checksum file of a precompiled header instead of the header, which is hundreds of MiB. The compiler
#   writes different bytes each time, so the checksum is that of its arguments and of all files that it has read. Otherwise nothing
#   that includes the header would be found again after the header itself has been compiled again.
# - BASEDIR and NOHASHDIR: a second checkout of the same sources finds what the first one has compiled. Paths below the top folder
#   become relative to the build folder.
top=$(dirname "$(dirname "$(readlink -f "$0")")")
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_PCH_EXTSUM=1 CCACHE_BASEDIR="$top" CCACHE_NOHASHDIR=1
ccache "$@" || exit
header='' dependencies='' previous=''
for argument; do
  case $previous in
    -o) case $argument in *.gch) header=$argument ;; esac ;;
    -MF) dependencies=$argument ;;
  esac
  previous=$argument
done
[ -n "$header" ] || exit 0
# The file of dependencies is a rule of make: "target: file file \". If a file cannot be read, the header itself is the input.
inputs=$(sed -e 's/^[^:]*: *//' -e 's/\\$//' "$dependencies" | xargs sha256sum) || inputs=$(sha256sum "$header")
printf '%s\n' "$@" "$inputs" |
  awk '{ top = ENVIRON["CCACHE_BASEDIR"]; while (i = index($0, top)) $0 = substr($0, 1, i - 1) substr($0, i + length(top)); print }' |
  sort | sha256sum >"$header.sum"
