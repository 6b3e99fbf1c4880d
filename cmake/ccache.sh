#!/bin/sh
# Compiles through ccache: cmake/ccache.sh COMPILER ARGUMENT...
# - pch_defines,time_macros: without them ccache does not cache code that uses precompiled headers.
# - DEPEND avoids the preprocessor in a first build.
# - PCH_EXTSUM: ccache reads the checksum file of a precompiled header; otherwise it would read hundreds of MiB for each file that
#   uses the header.
# - BASEDIR and NOHASHDIR: a second checkout of the same sources finds what the first one has compiled. Paths below the top folder
#   become relative to the build folder.
top=$(dirname "$(dirname "$(readlink -f "$0")")")
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_PCH_EXTSUM=1 CCACHE_BASEDIR="$top" CCACHE_NOHASHDIR=1
ccache "$@" || exit
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then
    case $2 in *.gch) sha256sum <"$2" >"$2.sum" ;; esac
  fi
  shift
done
