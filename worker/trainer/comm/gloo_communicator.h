// Ranks joined by Gloo over TCP, without MPI.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/comm/rendezvous.h"

namespace scalelab::trainer {

class Operation;
class PeerWatch;

// Collective operations are carried out one after another by a communication thread; sends and receives are
// Gloo's own and go on beside them. Gloo counts the time limit of a collective operation anew for each part
// of it that arrives.
class GlooCommunicator : public Communicator {
 public:
  // Returns when all ranks have come; throws TrainerError that names those who have not within `timeout`,
  // which is each operation's time limit too.
  GlooCommunicator(int rank, int size, const Rendezvous& rendezvous, std::chrono::milliseconds timeout);
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "gloo"; }
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
  class GlooOperation;
  class CollectiveWork;
  class MessageWork;
  struct Transport;  // Gloo's context, kept out of this header

  std::unique_ptr<Work> Submit(const char* what, std::function<void(uint32_t tag)> run);
  void CommunicationThread();
  // The verdict about an operation that Gloo has given up with `reason`.
  [[noreturn]] void Fail(const Operation& operation, const std::string& reason);

  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<PeerWatch> watch_;
  std::atomic<bool> abandon_ = false;  // leave operations that were not started

  std::mutex mutex_;  // guards queue_ and closing_
  std::condition_variable changed_;
  std::deque<std::shared_ptr<GlooOperation>> queue_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace scalelab::trainer
