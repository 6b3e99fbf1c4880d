#include "worker/trainer/comm/gloo_communicator.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstring>
#include <exception>
#include <future>
#include <numeric>

#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/comm/ring_schedule.h"
#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// Slots for our own messages. Gloo's collectives use the numbers 1 to 8 here.
constexpr uint8_t kMessageSlot = 0x40, kReduceScatterSlot = 0x41, kAbortSlot = 0x42;

char* Bytes(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

void CheckHost(const at::Tensor& tensor) {
  CheckTensor(tensor);
  if (!tensor.is_cpu()) throw TrainerError("backend gloo takes tensors in host memory only");
}

// Adapts a KeyStore to Gloo's interface.
class GlooStore : public gloo::rendezvous::Store {
 public:
  explicit GlooStore(KeyStore& store) : store_(store) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.Set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override { return Wait(key, kDefaultTimeout); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, kDefaultTimeout); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) Wait(key, timeout);
  }

 private:
  std::vector<char> Wait(const std::string& key, std::chrono::milliseconds timeout) {
    const auto value = WaitForKey(store_, key, std::chrono::steady_clock::now() + timeout);
    if (!value) throw std::runtime_error("timeout: no rank has set " + key);
    return std::vector<char>(value->begin(), value->end());
  }
  KeyStore& store_;
};

// Returns Gloo's error text without the source position that it begins with.
std::string Reason(const std::string& message) {
  const size_t place = message.rfind("[./", 0) == 0 ? message.find("] ") : std::string::npos;
  return FirstLine(place == std::string::npos ? message : message.substr(place + 2));
}

}  // namespace

struct GlooCommunicator::Transport {
  std::shared_ptr<gloo::rendezvous::Context> context;

  std::unique_ptr<gloo::transport::UnboundBuffer> Buffer(void* data, size_t bytes) {
    return context->createUnboundBuffer(data, bytes);
  }
  // Ends everything that waits inside Gloo. A receive that times out makes Gloo close all connections, which ends all operations
  // but a receive from any rank. A receive from a rank that is gone fails at once and closes nothing, so each rank is tried.
  void Abort() {
    if (context->size == 1) return;
    {
      std::lock_guard lock(mutex);
      aborted = true;
      if (any != nullptr) any->abortWaitRecv();
    }
    char byte = 0;
    for (int distance = 1; distance < context->size; ++distance) {
      try {
        auto buffer = Buffer(&byte, 1);
        buffer->recv((context->rank + distance) % context->size, gloo::Slot::build(kAbortSlot, 0));
        buffer->waitRecv(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // Expected: the receive times out, or the connection is closed.
      }
    }
  }
  // Sets the receive from any rank that Abort ends; null: none.
  void SetReceiveFromAny(gloo::transport::UnboundBuffer* receive) {
    std::lock_guard lock(mutex);
    any = receive;
    if (aborted && any != nullptr) any->abortWaitRecv();
  }

  std::mutex mutex;
  gloo::transport::UnboundBuffer* any ABSL_GUARDED_BY(mutex) = nullptr;
  bool aborted ABSL_GUARDED_BY(mutex) = false;
};

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
  Span span() const override { return SpanOf(operation_); }

 private:
  std::shared_ptr<GlooOperation> operation_;
};

// A send or receive, which Gloo carries out on its own thread. Gloo cannot be asked whether it has ended, and a wait that times out
// closes all connections. The first call of Done therefore starts a thread that waits.
class GlooCommunicator::MessageWork : public Work {
 public:
  MessageWork(GlooCommunicator& owner, const at::Tensor& tensor, const char* what, int peer)
      : owner_(owner),
        tensor_(tensor),
        operation_(what, peer),
        buffer_(owner.transport_->Buffer(tensor.data_ptr(), tensor.nbytes())) {
    operation_.deadline = std::chrono::steady_clock::now() + owner.timeout_;
  }
  void Start(bool send) {
    send_ = send;
    const uint64_t slot = gloo::Slot::build(kMessageSlot, 0);
    try {
      if (send) {
        buffer_->send(operation_.peer, slot);
      } else if (operation_.peer == Operation::kAnyRank) {
        std::vector<int> others(owner_.size_);
        std::iota(others.begin(), others.end(), 0);
        others.erase(others.begin() + owner_.rank_);
        buffer_->recv(others, slot);
        owner_.transport_->SetReceiveFromAny(buffer_.get());
      } else {
        buffer_->recv(operation_.peer, slot);
      }
    } catch (const std::exception& e) {
      owner_.Fail(operation_, e.what());
    }
  }
  void Wait() override {
    if (done_) return;
    if (waiting_.valid()) {
      waiting_.get();
    } else {
      WaitForGloo();
    }
    done_ = true;
  }
  bool Done() override {
    if (done_) return true;
    if (!waiting_.valid()) waiting_ = std::async(std::launch::async, [this] { WaitForGloo(); }).share();
    return waiting_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // Returns the sender of a receive that has ended.
  int source() const { return source_; }
  // Waits, because Gloo must not write into a freed tensor.
  ~MessageWork() override {
    if (operation_.peer == Operation::kAnyRank) owner_.transport_->SetReceiveFromAny(nullptr);
    try {
      if (!interrupted_) Wait();
    } catch (const std::exception&) {
      // The caller never called Wait, so it does not need the error.
    }
  }

 private:
  void WaitForGloo() {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(operation_.deadline -
                                                                            std::chrono::steady_clock::now());
    try {
      const auto limit = std::max(left, std::chrono::milliseconds(1));
      interrupted_ = !(send_ ? buffer_->waitSend(limit) : buffer_->waitRecv(&source_, limit));
      if (interrupted_) throw std::runtime_error("interrupted");
    } catch (const std::exception& e) {
      owner_.Fail(operation_, e.what());
    }
  }

  GlooCommunicator& owner_;
  const at::Tensor tensor_;
  Operation operation_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool send_ = false, done_ = false, interrupted_ = false;
  int source_ = Operation::kAnyRank;
  std::shared_future<void> waiting_;  // last member: its thread uses the others
};

GlooCommunicator::GlooCommunicator(int rank, int size, const Rendezvous& rendezvous,
                                   std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      store_(OpenStore(rendezvous, rank, size, timeout)),
      transport_(std::make_shared<Transport>()) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int round = 0;
  watch_ = WatchPeers(rank, size, [&](const std::string& mine) {
    return GatherThrough(*store_, "scalelab/" + std::to_string(round++) + "/", rank, size, mine, deadline);
  });
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
      transport_(std::make_shared<Transport>()),
      watch_(parent.watch_) {
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
  gloo::transport::tcp::attr attribute;
  attribute.hostname = watch_->address();
  try {
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attribute);
    transport_->context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    transport_->context->setTimeout(timeout_);
    GlooStore gloo_store(keys);
    transport_->context->connectFullMesh(gloo_store, device);
    gloo::BarrierOptions all_have_read_the_store(transport_->context);
    all_have_read_the_store.setTimeout(timeout_);
    gloo::barrier(all_have_read_the_store);
  } catch (const std::exception& e) {
    throw TrainerError(
        watch_->Investigate("connecting over Gloo failed (" + Reason(e.what()) + ")", -1, members_),
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
      watch_->Leave();  // so that the other ranks blame this rank when its connections close
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
      operation->deadline = std::chrono::steady_clock::now() + timeout_;
      operation->begin = Moment(at::kCPU);
      if (members_.empty()) watch_->Started(operation->what);
      try {
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
  const bool late = std::chrono::steady_clock::now() + std::chrono::milliseconds(10) >= operation.deadline;
  const std::string symptom = late ? LateSentence(operation, timeout_)
                                   : std::string(operation.what) + " failed (" + Reason(reason) + ")";
  throw TrainerError(watch_->Investigate(symptom, operation.peer, members_), ErrorKind::kCommunication);
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
    options.setTimeout(timeout_);
    gloo::allreduce(options);
    if (op == ReduceOp::kAverage) Divide(tensor, size_);
  });
}

// Gloo has no reduce-scatter. This one goes around a ring: `sum` is the block in transit, and each hop adds
// one rank's values to it.
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
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    const auto left = [&] {
      return std::max(std::chrono::milliseconds(1), std::chrono::duration_cast<std::chrono::milliseconds>(
                                                        deadline - std::chrono::steady_clock::now()));
    };
    const auto block = [&](int place) { return Bytes(input) + place * bytes; };
    const uint64_t slot = gloo::Slot::build(kReduceScatterSlot, tag);
    std::string sum(block(previous), bytes), received(bytes, '\0');
    ForEachReduceScatterHop(rank_, size_, [&](int, int incoming) {
      const auto receiving = transport_->Buffer(received.data(), bytes);
      const auto sending = transport_->Buffer(sum.data(), bytes);
      receiving->recv(previous, slot);
      sending->send(next, slot);
      receiving->waitRecv(left());
      sending->waitSend(left());
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
    // Without an input Gloo takes this rank's block of the output.
    char* const place = Bytes(output) + rank_ * input.nbytes();
    if (place != Bytes(input)) options.setInput(Bytes(input), input.nbytes());
    options.setOutput(Bytes(output), output.nbytes());
    options.setTag(tag);
    options.setTimeout(timeout_);
    gloo::allgather(options);
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
    options.setTimeout(timeout_);
    gloo::broadcast(options);
  })->Wait();
}

std::unique_ptr<Work> GlooCommunicator::StartSend(const at::Tensor& tensor, int to) {
  CheckHost(tensor);
  CheckPeer(to, *this);
  auto work = std::make_unique<MessageWork>(*this, tensor, "send", to);
  work->Start(/*send=*/true);
  return work;
}

std::unique_ptr<Work> GlooCommunicator::StartReceive(const at::Tensor& tensor, int from) {
  CheckHost(tensor);
  CheckPeer(from, *this);
  auto work = std::make_unique<MessageWork>(*this, tensor, "receive", from);
  work->Start(/*send=*/false);
  return work;
}

int GlooCommunicator::ReceiveFromAny(const at::Tensor& tensor) {
  CheckHost(tensor);
  CheckReceiveFromAny(tensor, *this);
  MessageWork work(*this, tensor, "receive from any rank", Operation::kAnyRank);
  work.Start(/*send=*/false);
  work.Wait();
  return work.source();
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
    options.setTimeout(timeout_);
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
    options.setTimeout(timeout_);
    gloo::barrier(options);
  })->Wait();
}

}  // namespace scalelab::trainer
