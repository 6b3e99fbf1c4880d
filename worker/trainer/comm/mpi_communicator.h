// A communicator over MPI.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/recursive_doubling.h"

namespace scalelab::trainer {

class Operation;
class PeerWatch;
struct MpiHandles;

// All operations use MPI's non-blocking calls, so that a timeout or a lost rank can end them. They start in
// the order of the calls. A thread must hold driving_ to call MPI:
//   - a blocking call holds it from its start to its end. It neither queues an operation nor wakes a thread;
//   - a thread that waits for a started operation acquires it for one poll at a time, without sleeping;
//   - otherwise the communication thread acquires it, and sleeps between polls. On a single core, a busy loop
//     would slow down the computation of the rank.
//
// A blocking all-reduce consists of messages (recursive doubling, or a ring for larger tensors). Open
// MPI's blocking all-reduce cannot be interrupted, and its non-blocking all-reduce takes twice as long.
// Therefore AllReduce and StartAllReduce are different operations, as in MPI, and all ranks must call the
// same of the two.
//
// A communicator made by Split shares the thread, the lock and the queue of the root, which is the
// communicator that initialised MPI. Operations of all communicators of a process make progress together. A
// blocking call of one thread excludes blocking calls of other threads on all communicators, so two threads
// must not block in two of them at the same time.
class MpiCommunicator : public Communicator {
 public:
  // Initialises MPI. Only one such object may exist in a process. `launched` is the number of ranks according
  // to the launcher (0: unknown), and `expected` is the number in the specification. Throws TrainerError if
  // MPI has a different number of ranks. `timeout` applies to each operation.
  MpiCommunicator(int rank, int launched, int64_t expected, std::chrono::milliseconds timeout);
  // Finalises MPI, which waits for the other ranks. During stack unwinding, does not finalise MPI; then
  // AbortOtherRanks must end the other ranks.
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "mpi"; }
  void AllReduce(const at::Tensor& tensor, ReduceOp op) override;
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
  class MpiOperation;
  class MpiWork;
  struct Requests;
  struct Reduction;

  // Makes the communicator of a group.
  MpiCommunicator(MpiCommunicator& parent, std::vector<int> members);

  // Registers the caller as a thread that calls MPI, so that the communication thread does not call it.
  class Driver {
   public:
    explicit Driver(MpiCommunicator& root) : root_(root) { root_.waiting_.fetch_add(1); }
    ~Driver() {
      if (root_.waiting_.fetch_sub(1) == 1 && root_.in_flight_ > 0) root_.WakeThread();
    }

   private:
    MpiCommunicator& root_;
  };

  // These functions are defined in mpi_blocking.cc. Block calls `body` with driving_ held. Only such bodies
  // may call the others.
  template <typename Body>
  void Block(const char* what, const Body& body);
  template <typename Start>
  void StartAndAwait(Operation& operation, const Start& start);
  // Polls until the requests have ended. Other operations in flight also make progress.
  void Await(Requests& requests, Operation& operation);
  void Swap(const Reduction& reduction, void* place, int in, int from, const void* data, int out, int to);
  void ReduceWhole(const Reduction& reduction);  // by recursive doubling
  void ReduceParts(const Reduction& reduction);  // by a ring
  void* Scratch(size_t bytes);

  std::unique_ptr<Work> Submit(std::unique_ptr<MpiOperation> operation);
  // Report the progress through collective operations to the PeerWatch.
  void Started(const char* what);
  void Finished(const char* what);
  void ThrowIfLateOrCondemned(const Operation& operation) const;
  // The following functions are called on the root only.
  void CommunicationThread();
  void WakeThread();
  // Starts submitted operations and polls those in flight, once.
  void Drive();
  void Advance();  // like Drive, for callers that hold driving_
  // Returns whether the operation has ended or failed, and wakes its waiters if so. Requires driving_.
  bool Ended(MpiOperation& operation);
  void Complete(MpiOperation& operation);

  // Members of every communicator.
  MpiCommunicator* const root_;
  std::vector<int> members_;  // for a group: its ranks in the run; empty: all ranks
  int rank_ = 0, size_ = 1;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<MpiHandles> handles_;
  std::atomic<int> unfinished_ = 0;  // number of operations of this communicator in flight
  // Steps of ReduceWhole; constant after construction.
  std::vector<PairStep> steps_;
  // A buffer that receives the data of another rank in an all-reduce. Guarded by root_->driving_.
  std::vector<char> scratch_;
  // Collective operations in flight. They end in the order in which they started. Guarded by root_->driving_.
  std::deque<std::shared_ptr<MpiOperation>> collectives_;

  // Members of the root.
  std::unique_ptr<PeerWatch> watch_;
  std::atomic<int> waiting_ = 0;       // number of threads that call MPI
  std::atomic<int> in_flight_ = 0;     // number of operations that were submitted and have not ended
  std::atomic<bool> abandon_ = false;  // whether to skip unfinished operations

  // Held by the thread that calls MPI; acquired before mutex_. Guards communicators_, messages_ and broken_.
  std::mutex driving_;
  std::vector<MpiCommunicator*> communicators_;  // the root and its groups
  // Sends and receives in flight. They may end in any order.
  std::list<std::shared_ptr<MpiOperation>> messages_;
  // After a failure every later operation fails with this error.
  std::exception_ptr broken_;

  std::mutex mutex_;  // guards queue_ and closing_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<MpiOperation>> queue_;  // submitted, not started
  bool closing_ = false;
  std::thread thread_;  // the last member, because it uses all others
};

// Ends all ranks of this run with `status` after a failure, and does not return. Does nothing if MPI
// is not running.
void AbortOtherRanks(int status);

std::string MpiLibraryVersion();

}  // namespace scalelab::trainer
