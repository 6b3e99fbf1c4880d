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
#include "worker/trainer/comm/recursive_doubling.h"

namespace scalelab::trainer {

class Operation;
class PeerWatch;
struct MpiHandles;

// Operations start in the order of the calls, all as non-blocking ones, so that a time limit or a lost rank
// can end them. Who is in MPI is who holds driving_:
//   - a blocking call, from its start to its end; it neither queues anything nor wakes anybody;
//   - whoever waits for a started operation, one look at a time, at full speed;
//   - while nobody does either, a communication thread, with short sleeps, because on one core per rank a
//     busy poll would steal from the computation that it is meant to overlap with.
//
// A blocking all-reduce is made of messages (recursive doubling, or a ring where parts are worth one),
// because Open MPI's non-blocking all-reduce takes twice as long as its blocking one, which nothing can
// interrupt. Hence a blocking all-reduce and a started one are different calls, as they are in MPI: where one
// rank makes the one, no other may make the other.
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
  void AllReduce(const at::Tensor& tensor, ReduceOp op) override;
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
  struct Requests;
  struct Job;

  // Counts the caller as one that drives MPI, so that the communication thread keeps out of it.
  class Driver {
   public:
    explicit Driver(MpiCommunicator& owner) : owner_(owner) { owner_.waiting_.fetch_add(1); }
    ~Driver() {
      if (owner_.waiting_.fetch_sub(1) == 1 && owner_.under_way_ > 0) owner_.WakeThread();
    }

   private:
    MpiCommunicator& owner_;
  };

  // mpi_blocking.cc. Block calls `body` with driving_ held, the others are for bodies.
  template <typename Body>
  void Block(const char* what, const Body& body);
  template <typename Start>
  void SeeThrough(Operation& operation, const Start& start);
  // Until the requests are over; what else is running goes on meanwhile.
  void Await(Requests& requests, Operation& operation);
  void Swap(const Job& job, void* place, int in, int from, const void* data, int out, int to);
  void ReduceWhole(const Job& job);  // recursive doubling
  void ReduceParts(const Job& job);  // a ring
  void* Scratch(size_t bytes);

  std::unique_ptr<Work> Submit(std::unique_ptr<MpiOperation> operation);
  void ThrowIfHopeless(const Operation& operation) const;
  void CommunicationThread();
  void WakeThread();
  // Starts what was submitted and looks at what is running, once.
  void Drive();
  void Advance();  // the same with driving_ held
  // With driving_ held: whether the operation is over, either way; tells those who wait.
  bool Ended(MpiOperation& operation);
  void Complete(MpiOperation& operation);

  int rank_ = 0, size_ = 1;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<MpiHandles> handles_;
  std::unique_ptr<PeerWatch> watch_;
  std::atomic<int> waiting_ = 0;       // callers that drive MPI
  std::atomic<int> under_way_ = 0;     // operations submitted and not over
  std::atomic<bool> abandon_ = false;  // leave unfinished operations

  std::mutex driving_;             // held by who is in MPI; guards the five below, taken before mutex_
  std::vector<Meeting> meetings_;  // of ReduceWhole
  std::vector<char> scratch_;      // what another rank sends in an all-reduce
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
