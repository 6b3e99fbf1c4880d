// All-reduce over mpi and gloo against MPI's own calls, by scalelab-bench-comm.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// allreduce/CONTENDER/RANKS_ranks/BYTES_bytes/{algbw,busbw,time}: what comm_bench.cc says under mpirun, with
// `ranks` ranks and tensors of 1 KiB to 256 MiB, or less with a scale below 1.
std::vector<Figure> RunAllReduceBench(const BenchOptions& options);

}  // namespace scalelab::bench
