// Parameter servers: ranks that hold the parameters and the optimizer, for the ranks that train (Li et al. 2014, Scaling
// distributed machine learning with the parameter server, OSDI; Ho et al. 2013, More effective distributed ML via a stale
// synchronous parallel parameter server, NIPS).
#pragma once

#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// When a server sends parameters to a rank that has sent a gradient.
enum class Consistency {
  kSync,   // after an update by the mean of the gradients of all ranks
  kAsync,  // after an update by its gradient
  kSsp,    // as kAsync, but not while the rank is more than `staleness` steps ahead of the slowest
};

struct ParameterServerOptions {
  int servers = 1;
  Consistency consistency = Consistency::kSync;
  int64_t staleness = 4;
};

// The last ranks are the servers. The parameters are one block of memory, and each server has an equal range of it with the
// momentum of that range. In a step, a rank that trains sends each server the gradient of the server's range, after a message
// that contains which parameters have a gradient, and receives the range after the update.
//
// With kSync, a server adds up the gradients in the order of the ranks. With the other two, it updates once for each gradient
// in the order of their arrival, and a Step of a server is as many updates as ranks train. The learning rate of such an
// update is divided by that number, because its batch is this part of the global batch.
class ParameterServerStrategy : public Strategy {
 public:
  // Returns the strategy of this rank: of a server, or of a rank that trains. Throws TrainerError if there are too many
  // servers, or if the communicator cannot receive from any rank and `consistency` requires it.
  static std::unique_ptr<Strategy> Make(Model& model, Communicator& communicator,
                                        const ParameterServerOptions& options);

  // Gives all ranks the parameters of the servers.
  void EndEpoch() override;
  // The servers store their ranges.
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
  // Returns the part of a block like values_ that belongs to a server.
  at::Tensor RangeOf(const at::Tensor& block, int server) const;

  // Gradients of updates of one server: how many updates of other ranks each of them missed.
  struct Staleness {
    double sum = 0, updates = 0, most = 0;
  };

  Model& model_;
  Communicator& communicator_;
  const ParameterServerOptions options_;
  const int trainers_;
  std::vector<at::Tensor> parameters_;
  BlockLayout layout_;
  at::Tensor values_;  // the memory of the parameters
  Staleness staleness_;

 private:
  Staleness of_all_;  // servers, at the end of the last epoch
};

}  // namespace scalelab::trainer
