// Benchmarks of the service, through real gRPC into a durable database.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

std::vector<Figure> RunSubmitBench(const BenchOptions& options);
std::vector<Figure> RunCellsBench(const BenchOptions& options);
// dispatch/...: 32 simulated workers with runs of a millisecond, which they accept in advance like
// scalelab-worker. dispatch_one_at_a_time/...: the same workers with longer runs, which they get one by one.
std::vector<Figure> RunDispatchBench(const BenchOptions& options);
std::vector<Figure> RunIngestBench(const BenchOptions& options);

// The following start a real scalelabd with the local scheduler.

// shortruns/one_worker: one-rank runs of a shell script per second on one worker, with real processes, from
// the first assignment to the durable end of the study, compared with HyperQueue on one local worker. There
// is no comparison if HyperQueue cannot be installed from PyPI.
std::vector<Figure> RunShortRunsBench(const BenchOptions& options);

// service/PHASE/METHOD/p50, p99 and max: milliseconds of calls. The phases are
//   quiet                  64 clients call without a pause
//   hanging_directories    the same while the directories of four running attempts hang, and clients read outputs there;
//                          needs root and /dev/fuse
//   2000_thinking_clients  each client waits for a second after an answer; they belong to 20 users
std::vector<Figure> RunServiceBench(const BenchOptions& options);

// viewers/N/...: processor time of scalelabd, latency of submits, memory, messages to browsers, and rate and latency of
// their calls, without and with N viewers of a live study in the dashboard.
std::vector<Figure> RunViewersBench(const BenchOptions& options);

// parameters/COMMAND/time and memory: the time and memory of commands of the client for a study of 2,000 runs
// with three parameters of its own on 1 to 8 ranks.
std::vector<Figure> RunParametersBench(const BenchOptions& options);

// memory/CASE/before, peak and after: resident memory of a fresh scalelabd in MB. `after` is measured
// when it is below its bound, or after a minute. A name that ends with _NOT_SERVED means that the service
// did not answer.
std::vector<Figure> RunMemoryBench(const BenchOptions& options);

}  // namespace scalelab::bench
