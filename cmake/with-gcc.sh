#!/bin/sh
# Compiles with GCC in a build with another compiler: with-gcc.sh COMPILER ARGUMENT...
shift
exec g++ "$@"
