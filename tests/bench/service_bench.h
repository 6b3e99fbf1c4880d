// Benchmarks of the service: submission, dispatch and ingest, through real gRPC into a durable database.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

std::vector<Figure> RunSubmitBench(const BenchOptions& options);
std::vector<Figure> RunDispatchBench(const BenchOptions& options);
std::vector<Figure> RunIngestBench(const BenchOptions& options);

}  // namespace scalelab::bench
