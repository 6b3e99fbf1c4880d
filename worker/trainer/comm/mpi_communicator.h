// Ranks joined by MPI.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

class Operation;
class PeerWatch;

// Operations start in the order of the calls, all as non-blocking ones. Whoever waits for one drives MPI
// meanwhile, at full speed. While nobody waits a communication thread drives it, with short sleeps, because
// on one core per rank a busy poll would steal from the computation that it is meant to overlap with. Only
// one thread is in MPI at a time.
class MpiCommunicator : public Communicator {
 public:
  // Initialises MPI; one object per process. `launched` is what the launcher said (0: nothing), `expected`
  // what the specification asks for; throws TrainerError when MPI finds another number of ranks. `timeout` is
  // each operation's.
  MpiCommunicator(int rank, int launched, int64_t expected, std::chrono::milliseconds timeout);
  // Finalises MPI, which waits for the other ranks; not while an exception is passing: then only
  // AbortOtherRanks helps.
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "mpi"; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override;
  void Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override;
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override;
  std::vector<std::string> AllGather(std::string_view mine) override;
  void Barrier() override;

 private:
  class MpiOperation;
  class MpiWork;
  struct Handles;  // MPI's own types, kept out of this header

  std::unique_ptr<Work> Submit(std::unique_ptr<MpiOperation> operation);
  void ThrowIfHopeless(const Operation& operation) const;
  void CommunicationThread();
  void WakeThread();
  // Starts what was submitted and looks at what is running, once.
  void Drive();
  // With driving_ held: whether the operation is over, either way; tells those who wait.
  bool Ended(MpiOperation& operation);
  void Complete(MpiOperation& operation);

  int rank_ = 0, size_ = 1;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<Handles> handles_;
  std::unique_ptr<PeerWatch> watch_;
  std::atomic<int> waiting_ = 0;       // callers in Wait()
  std::atomic<int> under_way_ = 0;     // operations submitted and not over
  std::atomic<bool> abandon_ = false;  // leave unfinished operations

  std::mutex driving_;  // held by who is in MPI; guards the three below, taken before mutex_
  std::deque<std::shared_ptr<MpiOperation>> collectives_;  // running; these end in the order of their start
  std::list<std::shared_ptr<MpiOperation>> messages_;      // these in any
  std::exception_ptr broken_;  // after a failure every later operation fails the same way

  std::mutex mutex_;  // guards queue_ and closing_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<MpiOperation>> queue_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace scalelab::trainer
