#!/bin/sh
# Compiles through ccache: cmake/ccache.sh COMPILER ARGUMENT...
# Precompiled headers are cached only with this sloppiness. DEPEND spares a first build the preprocessor. EXTSUM: the sum
# beside a precompiled header stands for it; otherwise each file that uses one would have ccache read hundreds of MiB.
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 CCACHE_PCH_EXTSUM=1
ccache "$@" || exit
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then
    case $2 in *.gch) sha256sum <"$2" >"$2.sum" ;; esac
  fi
  shift
done
