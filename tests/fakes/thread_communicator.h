// A communicator whose ranks are threads of one process, for tests of code above the communicator.
#pragma once

#include <barrier>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {

class ThreadCommunicator : public Communicator {
 public:
  // The state shared by the ranks of one group.
  struct Group {
    explicit Group(int size) : size(size), tensors(size), texts(size), barrier(size) {}
    int size;
    std::vector<at::Tensor> tensors;
    std::vector<std::string> texts;
    std::barrier<> barrier;

    std::mutex mutex;  // guards messages and groups
    std::condition_variable sent;
    std::map<std::pair<int, int>, std::deque<at::Tensor>> messages;  // by sender and receiver
    std::map<std::pair<int, int>, std::shared_ptr<Group>> groups;    // by number of the split, and first rank
  };

  ThreadCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  std::string_view name() const override { return "threads"; }

  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override {
    ++all_reduces;
    CheckReduction(tensor, op);
    Exchange(tensor, tensor, [&](const std::vector<at::Tensor>& all) { return Reduced(all, op); });
    return std::make_unique<Ended>();
  }
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override {
    CheckReduction(input, op);
    CheckBlocks(input, output, size());
    Exchange(output, input, [&](const std::vector<at::Tensor>& all) {
      return Reduced(all, op).view({size(), -1})[rank_].view(output.sizes());
    });
    return std::make_unique<Ended>();
  }
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override {
    CheckBlocks(output, input, size());
    Exchange(output, input, [&](const std::vector<at::Tensor>& all) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& t : all) flat.push_back(t.reshape(-1));
      return at::cat(flat).view(output.sizes());
    });
    return std::make_unique<Ended>();
  }
  std::unique_ptr<Work> StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<int64_t>& counts) override {
    CheckUnequalBlocks(output, input, counts, *this);
    Exchange(output, input, [&](const std::vector<at::Tensor>& all) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& t : all) flat.push_back(t.as_strided({t.numel()}, {1}));
      return at::cat(flat).view(output.sizes());
    });
    return std::make_unique<Ended>();
  }
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override {
    CheckPeer(to, *this);
    std::lock_guard lock(group_->mutex);
    group_->messages[{rank_, to}].push_back(tensor.clone());
    group_->sent.notify_all();
    return std::make_unique<Ended>();
  }
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override {
    CheckPeer(from, *this);
    return std::make_unique<Receiving>(group_, tensor, std::pair(from, rank_));
  }
  int ReceiveFromAny(const at::Tensor& tensor) override {
    CheckReceiveFromAny(tensor, *this);
    std::unique_lock lock(group_->mutex);
    for (;; group_->sent.wait(lock)) {
      for (auto& [ends, messages] : group_->messages) {
        if (ends.second != rank_ || messages.empty()) continue;
        tensor.copy_(messages.front());
        messages.pop_front();
        return ends.first;
      }
    }
  }
  void Broadcast(const at::Tensor& tensor, int root) override {
    ++others;
    Exchange(tensor, tensor, [&](const std::vector<at::Tensor>& all) { return all[root].clone(); });
  }
  std::unique_ptr<Communicator> Split(int group) override {
    const Ring members = RanksOfGroup(*this, group);
    std::lock_guard lock(group_->mutex);
    std::shared_ptr<Group>& shared = group_->groups[{splits_++, members[0]}];
    if (!shared) shared = std::make_shared<Group>(static_cast<int>(members.size()));
    return std::make_unique<ThreadCommunicator>(shared, static_cast<int>(PlaceIn(members, rank_)));
  }
  std::vector<std::string> AllGather(std::string_view mine) override {
    ++others;
    group_->texts[rank_] = mine;
    group_->barrier.arrive_and_wait();
    std::vector<std::string> all = group_->texts;
    group_->barrier.arrive_and_wait();
    return all;
  }
  void Barrier() override { group_->barrier.arrive_and_wait(); }

  int all_reduces = 0;  // number started by this rank
  int others = 0;       // number of other collective operations of this rank

 private:
  class Ended : public Work {
    void Wait() override {}
    bool Done() override { return true; }
  };

  class Receiving : public Work {
   public:
    Receiving(std::shared_ptr<Group> group, at::Tensor tensor, std::pair<int, int> ends)
        : group_(std::move(group)), tensor_(std::move(tensor)), ends_(ends) {}
    void Wait() override {
      std::unique_lock lock(group_->mutex);
      std::deque<at::Tensor>& messages = group_->messages[ends_];
      group_->sent.wait(lock, [&] { return !messages.empty(); });
      tensor_.copy_(messages.front());
      messages.pop_front();
      waited_ = true;
    }
    bool Done() override {
      std::lock_guard lock(group_->mutex);
      return waited_ || !group_->messages[ends_].empty();
    }

   private:
    std::shared_ptr<Group> group_;
    at::Tensor tensor_;
    std::pair<int, int> ends_;
    bool waited_ = false;
  };

  at::Tensor Reduced(const std::vector<at::Tensor>& all, ReduceOp op) const {
    at::Tensor result = all[0].clone();
    for (int r = 1; r < group_->size; ++r) {
      if (op == ReduceOp::kMax) {
        result = at::maximum(result, all[r]);
      } else if (op == ReduceOp::kBitAnd) {
        result = at::bitwise_and(result, all[r]);
      } else {
        result = result + all[r];
      }
    }
    return op == ReduceOp::kAverage ? result / group_->size : result;
  }

  // Sets `output` to the result of `combine` on the inputs of all ranks.
  template <typename Combine>
  void Exchange(const at::Tensor& output, const at::Tensor& input, const Combine& combine) {
    const at::NoGradGuard no_grad;
    group_->tensors[rank_] = input;
    group_->barrier.arrive_and_wait();
    const at::Tensor result = combine(group_->tensors);
    group_->barrier.arrive_and_wait();
    at::Tensor(output).copy_(result);
    group_->barrier.arrive_and_wait();
    group_->tensors[rank_].reset();
  }

  std::shared_ptr<Group> group_;
  int rank_;
  int splits_ = 0;  // calls of Split
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
