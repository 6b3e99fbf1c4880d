// Parameter servers: some ranks store and update the parameters for the ranks that train (Li et al. 2014,
// Scaling distributed machine learning with the parameter server, OSDI; Ho et al. 2013, More effective
// distributed ML via a stale synchronous parallel parameter server, NIPS).
#pragma once

#include "worker/trainer/metrics/histogram.h"
#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Determines when a server sends parameters to a rank that has sent a gradient.
enum class Consistency {
  kSync,   // after an update with the mean of the gradients of all ranks
  kAsync,  // after an update with the gradient of this rank
  kSsp,    // like kAsync, but not while the rank is more than `staleness` steps ahead of the slowest rank
};

struct ParameterServerOptions {
  int servers = 1;
  Consistency consistency = Consistency::kSync;
  int64_t staleness = 4;
};

// The last ranks are the servers. The parameters are one block of memory. Each server stores a range of the
// block and the momentum of this range; all ranges have the same size. In a step, a rank that trains sends
// two messages to each server: which parameters have a gradient, and the gradient of the server's range. Then
// it receives the updated range.
//
// With kSync, a server adds up the gradients in the order of the ranks. With kAsync and kSsp, a server makes
// one update for each gradient, in the order of arrival. A Step of the server has as many updates as there
// are ranks that train. The learning rate of such an update is divided by the number of these ranks, because
// a rank's batch is a fraction of the global batch.
class ParameterServerStrategy : public Strategy {
 public:
  // Returns the strategy of this rank, which is a server or trains. Throws TrainerError if there are too many
  // servers, or if `consistency` requires receiving from any rank and the communicator does not support it.
  static std::unique_ptr<Strategy> Make(Model& model, Communicator& communicator,
                                        const ParameterServerOptions& options);

  // Distributes the parameters of the servers to all ranks.
  void EndEpoch() override;
  // In a checkpoint, the servers store their ranges.
  Stored stored() const override { return Stored::kShards; }
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  void SyncBuffers() override;
  DataSlice SliceOf(int rank, int /*ranks*/) const override {
    return {rank < trainers_ ? rank : -1, trainers_};
  }
  bool averages_gradients() const override { return options_.consistency == Consistency::kSync; }
  std::string WhyNotRecorded() const override {
    return "engine native/parameter-server communicates from the host; use native/ddp";
  }
  void AppendMetrics(std::vector<Metric>& metrics) const override;

 protected:
  ParameterServerStrategy(Model& model, Communicator& communicator, const ParameterServerOptions& options);

  int RankOf(int server) const { return trainers_ + server; }
  void ShareParameters();
  // Returns whether the servers average gradients of several ranks, so that the gradients show their noise.
  bool MeasuresSquares() const { return averages_gradients() && trainers_ > 1; }
  enum Square { kOfRank, kOfMean };
  // Returns two numbers in double precision on the device, in the order of Square: the squared norm of a
  // rank's gradient, mean over the ranks that train, and the squared norm of the mean gradient. A rank that
  // trains passes the square of its gradient; a server passes that of its range of the mean. Collective.
  at::Tensor SumSquares(Square which, const at::Tensor& square);
  // Returns the range of a server in a block with the layout of values_.
  at::Tensor RangeOf(const at::Tensor& block, int server) const;

  Model& model_;
  Communicator& communicator_;
  const ParameterServerOptions options_;
  const int trainers_;
  std::vector<at::Tensor> parameters_;
  BlockLayout layout_;
  at::Tensor values_;  // the memory of the parameters
  // The staleness of gradients on this server: the number of updates between the parameters of a gradient and
  // its own update.
  Histogram staleness_;

 private:
  Histogram of_all_;  // staleness on all servers at the end of the last epoch
};

}  // namespace scalelab::trainer
