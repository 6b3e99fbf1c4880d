#include "worker/trainer/comm/gloo/gloo_communicator.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "worker/trainer/comm/gloo/gloo_message.h"
#include "worker/trainer/comm/gloo/gloo_transport.h"
#include "worker/trainer/comm/gloo/gloo_watchdog.h"
#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peers/peer_watch.h"
#include "worker/trainer/comm/ring_schedule.h"
#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

char* Bytes(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

void CheckHost(const at::Tensor& tensor) {
  CheckTensor(tensor);
  if (!tensor.is_cpu()) throw TrainerError("backend gloo takes tensors in host memory only");
}

}  // namespace

class GlooCommunicator::GlooOperation : public Operation {
 public:
  GlooOperation(const char* what, std::function<void(uint32_t tag)> run)
      : Operation(what), run(std::move(run)) {}
  const std::function<void(uint32_t tag)> run;
};

class GlooCommunicator::CollectiveWork : public Work {
 public:
  explicit CollectiveWork(std::shared_ptr<GlooOperation> operation) : operation_(std::move(operation)) {}
  void Wait() override { operation_->Wait(); }
  bool Done() override { return operation_->done(); }
  Span span() const override { return SpanOf(*operation_); }

 private:
  std::shared_ptr<GlooOperation> operation_;
};

GlooCommunicator::GlooCommunicator(int rank, int size, const RendezvousAddress& rendezvous,
                                   std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      store_(OpenStore(rendezvous, rank, size, timeout)),
      transport_(std::make_shared<GlooTransport>()) {
  Deadline deadline(timeout);
  int round = 0;
  watch_ = WatchPeers(rank, size, [&](const std::string& mine) {
    return GatherThrough(*store_, "scalelab/" + std::to_string(round++) + "/", rank, size, mine, deadline);
  });
  watchdog_ = std::make_shared<GlooWatchdog>(*watch_, timeout);
  Connect(*store_);
}

GlooCommunicator::GlooCommunicator(GlooCommunicator& parent, const std::vector<int>& members)
    : rank_(static_cast<int>(PlaceIn(members, parent.rank_))),
      size_(static_cast<int>(members.size())),
      timeout_(parent.timeout_),
      members_(members),
      store_(parent.store_),
      prefix_(parent.prefix_ + "split/" + std::to_string(parent.splits_++) + "/" +
              std::to_string(members[0]) + "/"),
      transport_(std::make_shared<GlooTransport>()),
      watch_(parent.watch_),
      watchdog_(parent.watchdog_) {
  if (!parent.members_.empty()) {
    for (int& member : members_) member = parent.members_[member];
  }
  PrefixedStore keys(*store_, prefix_);
  Connect(keys);
}

std::unique_ptr<Communicator> GlooCommunicator::Split(int group) {
  return std::unique_ptr<Communicator>(new GlooCommunicator(*this, RanksOfGroup(*this, group)));
}

void GlooCommunicator::Connect(KeyStore& keys) {
  try {
    transport_->Connect(rank_, size_, keys, watch_->address(), timeout_);
  } catch (const std::exception& e) {
    throw TrainerError(
        watch_->Investigate("connecting over Gloo failed (" + GlooReason(e.what()) + ")", -1, members_),
        ErrorKind::kCommunication);
  }
  keys.Clear();
  watch_->OnCondemned([transport = std::weak_ptr(transport_)] {
    if (const auto alive = transport.lock()) alive->Abort();
  });
  thread_ = std::thread(&GlooCommunicator::CommunicationThread, this);
}

GlooCommunicator::~GlooCommunicator() {
  abandon_ = std::uncaught_exceptions() > 0;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    if (abandon_) {
      watch_->Leave();  // makes the other ranks name this rank as the cause when its connections close
      transport_->Abort();
    }
    thread_.join();
  }
}

void GlooCommunicator::CommunicationThread() {
  std::exception_ptr broken;  // after a failure every later operation fails with this error
  for (uint32_t tag = 1;; ++tag) {
    std::shared_ptr<GlooOperation> operation;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || closing_; });
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      if (broken) std::rethrow_exception(broken);
      if (abandon_) throw TrainerError("the communicator was closed", ErrorKind::kCommunication);
      operation->deadline = watch_->Now() + timeout_;
      operation->begin = DeviceEvent(at::kCPU);
      if (members_.empty()) watch_->Started(operation->what);
      try {
        const GlooWatchdog::Monitored monitored(*watchdog_, *operation, members_);
        operation->run(tag);
      } catch (const std::exception& e) {
        Fail(*operation, e.what());
      }
      if (members_.empty()) watch_->Finished(operation->what);
      operation->Complete(nullptr);
    } catch (...) {
      broken = std::current_exception();
      operation->Complete(broken);
    }
  }
}

void GlooCommunicator::Fail(const Operation& operation, const std::string& reason) {
  // If a failure is already known, Gloo has ended the operation because of it.
  if (!watch_->condemned()) {
    watch_->Investigate(std::string(operation.what) + " failed (" + GlooReason(reason) + ")", operation.peer,
                        members_);
  }
  throw TrainerError(watch_->verdict(), ErrorKind::kCommunication);
}

std::unique_ptr<Work> GlooCommunicator::Submit(const char* what, std::function<void(uint32_t tag)> run) {
  auto operation = std::make_shared<GlooOperation>(what, std::move(run));
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(operation);
  }
  changed_.notify_one();
  return std::make_unique<CollectiveWork>(std::move(operation));
}

std::unique_ptr<Work> GlooCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  CheckHost(tensor);
  return Submit("all-reduce", [=, this](uint32_t tag) {
    if (tensor.numel() == 0) return;
    gloo::AllreduceOptions options(transport_->context);
    const size_t count = static_cast<size_t>(tensor.numel());
    // Gloo only needs the size of the type.
    switch (tensor.element_size()) {
      case 2:
        options.setOutput(static_cast<uint16_t*>(tensor.data_ptr()), count);
        break;
      case 4:
        options.setOutput(static_cast<float*>(tensor.data_ptr()), count);
        break;
      default:
        options.setOutput(static_cast<double*>(tensor.data_ptr()), count);
    }
    options.setReduceFunction(ReduceFunctionFor(tensor.scalar_type(), op));
    options.setTag(tag);
    gloo::allreduce(options);
    if (op == ReduceOp::kAverage) Divide(tensor, size_);
  });
}

// Gloo has no reduce-scatter, so this one uses a ring. `sum` is the block in transit, and each hop adds the
// values of one rank.
std::unique_ptr<Work> GlooCommunicator::StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                           ReduceOp op) {
  CheckReduction(input, op);
  CheckBlocks(input, output, size_);
  CheckHost(input);
  CheckHost(output);
  return Submit("reduce-scatter", [=, this](uint32_t tag) {
    const size_t bytes = output.nbytes(), count = static_cast<size_t>(output.numel());
    if (bytes == 0) return;
    const ReduceFunction reduce = ReduceFunctionFor(input.scalar_type(), op);
    const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    const auto block = [&](int place) { return Bytes(input) + place * bytes; };
    const uint64_t slot = gloo::Slot::build(kReduceScatterSlot, tag);
    std::string sum(block(previous), bytes), received(bytes, '\0');
    ForEachReduceScatterHop(rank_, size_, [&](int, int incoming) {
      const auto receiving = transport_->Buffer(received.data(), bytes);
      const auto sending = transport_->Buffer(sum.data(), bytes);
      receiving->recv(previous, slot);
      sending->send(next, slot);
      receiving->waitRecv(kGlooForever);
      sending->waitSend(kGlooForever);
      reduce(sum.data(), received.data(), block(incoming), count);
    });
    std::memcpy(Bytes(output), sum.data(), bytes);
    if (op == ReduceOp::kAverage) Divide(output, size_);
  });
}

std::unique_ptr<Work> GlooCommunicator::StartAllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckBlocks(output, input, size_);
  CheckHost(output);
  CheckHost(input);
  return Submit("all-gather", [=, this](uint32_t tag) {
    if (input.numel() == 0) return;
    gloo::AllgatherOptions options(transport_->context);
    // If no input is set, Gloo uses this rank's block of the output.
    char* const place = Bytes(output) + rank_ * input.nbytes();
    if (place != Bytes(input)) options.setInput(Bytes(input), input.nbytes());
    options.setOutput(Bytes(output), output.nbytes());
    options.setTag(tag);
    gloo::allgather(options);
  });
}

std::unique_ptr<Work> GlooCommunicator::StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                                        const std::vector<int64_t>& counts) {
  CheckUnequalBlocks(output, input, counts, *this);
  CheckHost(output);
  CheckHost(input);
  return Submit("all-gather", [=, this](uint32_t tag) {
    if (output.numel() == 0) return;
    gloo::AllgathervOptions options(transport_->context);
    std::vector<size_t> bytes;
    for (const int64_t count : counts) bytes.push_back(static_cast<size_t>(count) * output.element_size());
    char* const place = Bytes(output) + FirstElementOf(rank_, counts) * output.element_size();
    if (place != Bytes(input)) options.setInput(Bytes(input), input.nbytes());
    options.setOutput(Bytes(output), bytes);
    options.setTag(tag);
    gloo::allgatherv(options);
  });
}

void GlooCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckHost(tensor);
  Submit("broadcast", [=, this](uint32_t tag) {
    if (tensor.numel() == 0) return;
    gloo::BroadcastOptions options(transport_->context);
    options.setOutput(Bytes(tensor), tensor.nbytes());
    options.setRoot(root);
    options.setTag(tag);
    gloo::broadcast(options);
  })->Wait();
}

std::unique_ptr<GlooMessage> GlooCommunicator::StartMessage(const at::Tensor& tensor, const char* what,
                                                            int peer, bool send) {
  CheckHost(tensor);
  auto message = std::make_unique<GlooMessage>(
      *transport_, *watchdog_, tensor, what, peer, watch_->Now() + timeout_, members_,
      [this](const Operation& operation, const std::string& reason) { Fail(operation, reason); });
  message->Start(send);
  return message;
}

std::unique_ptr<Work> GlooCommunicator::StartSend(const at::Tensor& tensor, int to) {
  CheckPeer(to, *this);
  return StartMessage(tensor, "send", to, /*send=*/true);
}

std::unique_ptr<Work> GlooCommunicator::StartReceive(const at::Tensor& tensor, int from) {
  CheckPeer(from, *this);
  return StartMessage(tensor, "receive", from, /*send=*/false);
}

int GlooCommunicator::ReceiveFromAny(const at::Tensor& tensor) {
  CheckReceiveFromAny(tensor, *this);
  const auto message = StartMessage(tensor, "receive from any rank", Operation::kAnyRank, /*send=*/false);
  message->Wait();
  return message->source();
}

std::vector<std::string> GlooCommunicator::AllGather(std::string_view mine) {
  const size_t length = mine.size();
  std::string all(length * size_, '\0');
  Submit("all-gather", [&](uint32_t tag) {
    if (length == 0) return;
    gloo::AllgatherOptions options(transport_->context);
    options.setInput(const_cast<char*>(mine.data()), length);
    options.setOutput(all.data(), all.size());
    options.setTag(tag);
    gloo::allgather(options);
  })->Wait();
  std::vector<std::string> result;
  for (int r = 0; r < size_; ++r) result.push_back(all.substr(r * length, length));
  return result;
}

void GlooCommunicator::Barrier() {
  Submit("barrier", [this](uint32_t tag) {
    gloo::BarrierOptions options(transport_->context);
    options.setTag(tag);
    gloo::barrier(options);
  })->Wait();
}

}  // namespace scalelab::trainer
