// Ranks as threads of one process: for tests of what lies above the communicator, without launching anything.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

class ThreadCommunicator : public Communicator {
 public:
  // What the ranks of one group share.
  struct Group {
    explicit Group(int size) : size(size), tensors(size), texts(size), barrier(size) {}
    int size;
    std::vector<at::Tensor> tensors;
    std::vector<std::string> texts;
    std::barrier<> barrier;
  };

  ThreadCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  std::string_view name() const override { return "threads"; }

  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override {
    ++all_reduces;
    Exchange(tensor, [&](const std::vector<at::Tensor>& all) {
      at::Tensor result = all[0].clone();
      for (int r = 1; r < group_->size; ++r) {
        result = op == ReduceOp::kMax ? at::maximum(result, all[r]) : result + all[r];
      }
      return op == ReduceOp::kAverage ? result / group_->size : result;
    });
    class Done : public Work {
      void Wait() override {}
    };
    return std::make_unique<Done>();
  }
  void Broadcast(const at::Tensor& tensor, int root) override {
    Exchange(tensor, [&](const std::vector<at::Tensor>& all) { return all[root].clone(); });
  }
  std::vector<std::string> AllGather(std::string_view mine) override {
    group_->texts[rank_] = mine;
    group_->barrier.arrive_and_wait();
    std::vector<std::string> all = group_->texts;
    group_->barrier.arrive_and_wait();
    return all;
  }
  void Barrier() override { group_->barrier.arrive_and_wait(); }

  int all_reduces = 0;  // started by this rank

 private:
  template <typename Combine>
  void Exchange(const at::Tensor& tensor, const Combine& combine) {
    const at::NoGradGuard no_grad;
    group_->tensors[rank_] = tensor;
    group_->barrier.arrive_and_wait();
    const at::Tensor result = combine(group_->tensors);
    group_->barrier.arrive_and_wait();
    at::Tensor(tensor).copy_(result);
    group_->barrier.arrive_and_wait();
  }

  std::shared_ptr<Group> group_;
  int rank_;
};

// Runs `body` on each of `ranks` threads and returns when all are done.
inline void OnRanks(int ranks, const std::function<void(ThreadCommunicator&)>& body) {
  auto group = std::make_shared<ThreadCommunicator::Group>(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      ThreadCommunicator communicator(group, r);
      body(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace scalelab::trainer
