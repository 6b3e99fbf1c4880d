// A communicator over Gloo and TCP, without MPI.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/peers/rendezvous.h"

namespace scalelab::trainer {

class Operation;
class PeerWatch;
class GlooMessage;
class GlooWatchdog;
struct GlooTransport;

// A communication thread runs collective operations one after another. Gloo's own thread executes sends and
// receives concurrently with them. A GlooWatchdog ends operations that exceed the timeout, which applies to a
// whole operation.
class GlooCommunicator : public Communicator {
 public:
  // Connects all ranks. `timeout` limits the connection, and later each operation. If ranks are missing,
  // throws a TrainerError that names them.
  GlooCommunicator(int rank, int size, const RendezvousAddress& rendezvous,
                   std::chrono::milliseconds timeout);
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "gloo"; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override;
  std::unique_ptr<Work> StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<int64_t>& counts) override;
  void Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override;
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override;
  std::unique_ptr<Communicator> Split(int group) override;
  int ReceiveFromAny(const at::Tensor& tensor) override;
  std::vector<std::string> AllGather(std::string_view mine) override;
  void Barrier() override;

 private:
  class GlooOperation;
  class CollectiveWork;

  // Makes the communicator of a group, whose ranks are `members` of `parent`.
  GlooCommunicator(GlooCommunicator& parent, const std::vector<int>& members);

  // Connects the ranks. No other communicator may use `keys`.
  void Connect(KeyStore& keys);
  std::unique_ptr<GlooMessage> StartMessage(const at::Tensor& tensor, const char* what, int peer, bool send);
  std::unique_ptr<Work> Submit(const char* what, std::function<void(uint32_t tag)> run);
  void CommunicationThread();
  // Throws the error of an operation that Gloo has ended with `reason`.
  [[noreturn]] void Fail(const Operation& operation, const std::string& reason);

  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> members_;         // for a group: its ranks in the run; empty: all ranks
  std::shared_ptr<KeyStore> store_;  // the store of the run
  std::string prefix_;               // prefix of the keys of this communicator
  int splits_ = 0;                   // number of calls of Split
  std::shared_ptr<GlooTransport> transport_;
  std::shared_ptr<PeerWatch> watch_;        // the watch of the run
  std::shared_ptr<GlooWatchdog> watchdog_;  // the watchdog of the run
  std::atomic<bool> abandon_ = false;       // whether to skip operations that have not started

  std::mutex mutex_;  // guards queue_ and closing_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<GlooOperation>> queue_;
  bool closing_ = false;
  std::thread thread_;  // the last member, because it uses all others
};

}  // namespace scalelab::trainer
