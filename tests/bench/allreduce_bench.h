// Compares all-reduce over mpi and gloo with MPI's own calls, using scalelab-bench-comm.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Returns allreduce/CONTENDER/RANKS_ranks/BYTES_bytes/{algbw,busbw,time}: the output of comm_bench.cc under
// mpirun with `ranks` ranks. Tensors have 1 KiB to 256 MiB, or less with a scale below 1.
std::vector<Figure> RunAllReduceBench(const BenchOptions& options);

}  // namespace scalelab::bench
