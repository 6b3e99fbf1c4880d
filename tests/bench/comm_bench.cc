// scalelab-bench-comm: compares all-reduce over mpi and gloo with plain MPI_Allreduce, in the same run.
// Started by mpirun. A separate program because it links LibTorch. Rank 0 prints one JSON line per figure.
//
//   raw           MPI_Allreduce, which cannot be interrupted
//   raw_started   MPI_Iallreduce, then MPI_Test until it is finished
//   mpi, gloo     the blocking call
//   mpi_started   started asynchronously, then waited for
//   mpi_ring      a ring of messages
#define OMPI_SKIP_MPICXX 1
#include <ATen/Parallel.h>
#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "tests/bench/figure.h"
#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/comm/ring_all_reduce.h"
#include "worker/trainer/errors.h"

namespace scalelab::bench {
namespace {

using trainer::Communicator;

constexpr int kRounds = 7;  // the result is the median; in each round all contenders take turns

struct Contender {
  const char* name;
  std::function<void(const at::Tensor&)> all_reduce;
  std::vector<double> seconds;  // seconds of one all-reduce, one value per round
};

// Returns the seconds of one all-reduce on the slowest rank.
double Measure(Communicator& communicator, const Contender& contender, const at::Tensor& tensor,
               int repeats) {
  contender.all_reduce(tensor);
  communicator.Barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) contender.all_reduce(tensor);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const at::Tensor slowest = at::full({1}, took.count() / repeats, at::kDouble);
  communicator.AllReduce(slowest, trainer::ReduceOp::kMax);
  return slowest.item<double>();
}

void Print(const Figure& f) {
  std::puts(nlohmann::ordered_json{{"name", f.name},
                                   {"value", f.value},
                                   {"unit", f.unit},
                                   {"against", f.against},
                                   {"against_value", f.against_value},
                                   {"ratio", f.ratio}}
                .dump()
                .c_str());
  std::fflush(stdout);
}

// Computes the bandwidths as nccl-tests defines them. The algorithm bandwidth is bytes / time. The bus
// bandwidth is the bandwidth of a link, which does not depend on the number of ranks.
void Report(const std::vector<Contender>& contenders, int64_t bytes, int ranks) {
  const double raw = Median(contenders.front().seconds);
  for (const Contender& c : contenders) {
    const double seconds = Median(c.seconds), algbw = static_cast<double>(bytes) / seconds / 1e9;
    const double raw_algbw = static_cast<double>(bytes) / raw / 1e9, factor = 2.0 * (ranks - 1) / ranks;
    const std::string name = std::string("allreduce/") + c.name + "/" + std::to_string(ranks) + "_ranks/" +
                             std::to_string(bytes) + "_bytes/";
    Print({name + "algbw", algbw, "GB/s", "MPI_Allreduce", raw_algbw, raw / seconds});
    Print({name + "busbw", algbw * factor, "GB/s", "MPI_Allreduce", raw_algbw * factor, raw / seconds});
    Print({name + "time", seconds * 1e6, "us", "MPI_Allreduce", raw * 1e6, seconds / raw});
  }
}

// Gives all ranks the same directory for Gloo's rendezvous.
void MeetingPlace(Communicator& communicator) {
  std::string path(256, '\0');
  if (communicator.rank() == 0) {
    std::string pattern = std::filesystem::temp_directory_path() / "scalelab-bench-comm-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr)
      throw trainer::TrainerError("cannot make " + pattern + ": set TMPDIR");
    std::copy(pattern.begin(), pattern.end(), path.begin());
  }
  path = communicator.AllGather(path)[0];
  setenv("SCALELAB_ATTEMPT_DIR", path.c_str(), 1);
}

int Main(int64_t largest) {
  trainer::TrainingSpec spec;
  trainer::LaunchEnvironment environment;
  if (const char* rank = std::getenv("OMPI_COMM_WORLD_RANK")) environment.rank = std::atoi(rank);
  if (const char* size = std::getenv("OMPI_COMM_WORLD_SIZE")) spec.ranks = std::atoi(size);
  at::set_num_threads(1);
  spec.backend = "mpi";
  const auto mpi = MakeCommunicator(spec, environment);
  spec.backend = "gloo";
  MeetingPlace(*mpi);
  const auto gloo = MakeCommunicator(spec, environment);
  mpi->Barrier();  // the rendezvous is finished, and its files are removed
  if (mpi->rank() == 0) std::filesystem::remove_all(std::getenv("SCALELAB_ATTEMPT_DIR"));

  trainer::Ring ring(mpi->size());
  std::iota(ring.begin(), ring.end(), 0);
  // No other thread calls MPI at the same time, because the communicator's own thread sleeps while it
  // has no work.
  std::vector<Contender> contenders = {
      {"raw",
       [](const at::Tensor& t) {
         MPI_Allreduce(MPI_IN_PLACE, t.data_ptr(), static_cast<int>(t.numel()), MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
       },
       {}},
      {"raw_started",
       [](const at::Tensor& t) {
         MPI_Request request;
         MPI_Iallreduce(MPI_IN_PLACE, t.data_ptr(), static_cast<int>(t.numel()), MPI_FLOAT, MPI_SUM,
                        MPI_COMM_WORLD, &request);
         for (int done = 0; !done;) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
       },
       {}},
      {"mpi", [&](const at::Tensor& t) { mpi->AllReduce(t, trainer::ReduceOp::kSum); }, {}},
      {"mpi_started",
       [&](const at::Tensor& t) { mpi->StartAllReduce(t, trainer::ReduceOp::kSum)->Wait(); },
       {}},
      {"mpi_ring", [&](const at::Tensor& t) { RingAllReduce(*mpi, t, trainer::ReduceOp::kSum, ring); }, {}},
      {"gloo", [&](const at::Tensor& t) { gloo->AllReduce(t, trainer::ReduceOp::kSum); }, {}}};
  for (int64_t bytes = 1 << 10; bytes <= largest; bytes *= 4) {
    const at::Tensor tensor = at::zeros({bytes / 4});
    const int repeats = static_cast<int>(std::clamp<int64_t>((int64_t{64} << 20) / bytes, 2, 200));
    for (Contender& c : contenders) c.seconds.clear();
    for (int round = 0; round < kRounds; ++round) {
      for (Contender& c : contenders) c.seconds.push_back(Measure(*mpi, c, tensor, repeats));
    }
    if (mpi->rank() == 0) Report(contenders, bytes, mpi->size());
  }
  return 0;
}

}  // namespace
}  // namespace scalelab::bench

int main(int argc, char** argv) {
  const long long largest = argc > 1 ? std::atoll(argv[1]) : 256LL << 20;
  if (argc > 2 || largest < 1024) {
    std::fprintf(
        stderr,
        "usage: mpirun -np RANKS scalelab-bench-comm [BYTES]; BYTES is the largest tensor, at least 1024 "
        "(default 268435456)\n");
    return 2;
  }
  try {
    return scalelab::bench::Main(largest);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "scalelab-bench-comm: %s\n", e.what());
    scalelab::trainer::AbortOtherRanks(1);
    return 1;
  }
}
