// The blocking calls of MpiCommunicator. The calling thread calls MPI from the start to the end
// of the operation.
#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>

#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/comm/mpi_handles.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peers/peer_watch.h"
#include "worker/trainer/comm/ring_schedule.h"
#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {
namespace {

// The smallest block for a ring. If blocks would be smaller, ranks exchange whole tensors, because then the
// number of messages determines the time, and not the number of bytes. Whole tensors are sent in messages of
// this size, because Open MPI sends up to 4 KiB, including headers, without a handshake with the receiver.
constexpr int64_t kSmallestPart = 2 << 10;
constexpr int kMostMessages = 4;  // greatest number of messages for each tensor and peer
constexpr int kExchangeTag = 1;   // StartSend and StartReceive use 0

// Returns the number of elements of a message, for a tensor that is sent as a whole.
int MessageOf(int count, size_t width) {
  return std::max(static_cast<int>(kSmallestPart / width), (count + kMostMessages - 1) / kMostMessages);
}

// Number of polls before the clock is read and sched_yield is called. Most small operations end earlier.
constexpr int64_t kEagerLooks = 2000;

}  // namespace

struct MpiCommunicator::Requests {
  MPI_Request* Add() { return &all[count++]; }

  std::array<MPI_Request, 2 * kMostMessages> all;
  int count = 0;
};

// The tensor of an all-reduce that consists of messages.
struct MpiCommunicator::Reduction {
  char* data;
  int count;     // number of elements
  size_t width;  // bytes of an element
  int message;   // greatest number of elements of a message
  MPI_Datatype type;
  ReduceFunction reduce;
  Operation& operation;
};

template <typename Body>
void MpiCommunicator::Block(const char* what, const Body& body) {
  const Driver driver(*root_);
  std::lock_guard driving(root_->driving_);
  std::exception_ptr& broken = root_->broken_;
  if (root_->in_flight_ > 0) root_->Advance();  // earlier operations must start first
  if (broken) std::rethrow_exception(broken);
  Operation operation(what);
  Started(what);
  try {
    body(operation);
  } catch (...) {
    broken = std::current_exception();
    throw;
  }
  Finished(what);
  // Wait for earlier collective operations. They end in the order of the calls, and callers that never call
  // Wait rely on this order.
  for (; !collectives_.empty(); sched_yield()) root_->Advance();
  if (broken) std::rethrow_exception(broken);
}

template <typename Start>
void MpiCommunicator::StartAndAwait(Operation& operation, const Start& start) {
  Requests requests;
  CheckMpi(start(requests.Add()), operation.what);
  Await(requests, operation);
}

void MpiCommunicator::Await(Requests& requests, Operation& operation) {
  for (int64_t looks = 1;; ++looks) {
    int done = 0;
    CheckMpi(MPI_Testall(requests.count, requests.all.data(), &done, MPI_STATUSES_IGNORE), operation.what);
    if (done) return;
    if (root_->in_flight_ > 0) root_->Advance();
    if (looks < kEagerLooks) continue;
    if (root_->broken_) std::rethrow_exception(root_->broken_);
    if (operation.deadline == RunningClock::time_point())
      operation.deadline = root_->watch_->Now() + timeout_;
    ThrowIfLateOrCondemned(operation);
    sched_yield();
  }
}

// Receives `in` elements and sends `out` elements concurrently. If a number is 0, there is no message.
void MpiCommunicator::Swap(const Reduction& reduction, void* place, int in, int from, const void* data,
                           int out, int to) {
  Requests requests;
  for (int at = 0; at < in; at += reduction.message) {
    CheckMpi(MPI_Irecv(static_cast<char*>(place) + at * reduction.width, std::min(reduction.message, in - at),
                       reduction.type, from, kExchangeTag, handles_->comm, requests.Add()),
             "MPI_Irecv");
  }
  for (int at = 0; at < out; at += reduction.message) {
    CheckMpi(MPI_Isend(static_cast<const char*>(data) + at * reduction.width,
                       std::min(reduction.message, out - at), reduction.type, to, kExchangeTag,
                       handles_->comm, requests.Add()),
             "MPI_Isend");
  }
  Await(requests, reduction.operation);
}

void MpiCommunicator::ReduceWhole(const Reduction& reduction) {
  using enum PairStep::Kind;
  void* const theirs = Scratch(reduction.count * reduction.width);
  for (const auto [kind, peer] : steps_) {
    const bool receives = kind != kSend && kind != kSendResult,
               sends = kind != kReceive && kind != kReceiveResult;
    Swap(reduction, kind == kReceiveResult ? reduction.data : theirs, receives ? reduction.count : 0, peer,
         reduction.data, sends ? reduction.count : 0, peer);
    if (kind != kExchange && kind != kReceive) continue;
    const bool lower = rank_ < peer;
    reduction.reduce(reduction.data, lower ? reduction.data : theirs, lower ? theirs : reduction.data,
                     reduction.count);
  }
}

// Executes a ring all-reduce without an Operation for each message. Its blocks begin at count * place / size,
// rounded down. They differ from the blocks of RingBlock, so the order of additions and the last bits of a
// sum may differ too.
void MpiCommunicator::ReduceParts(const Reduction& reduction) {
  const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
  const auto begin = [&](int64_t place) { return static_cast<int64_t>(reduction.count) * place / size_; };
  const auto data = [&](int place) { return reduction.data + begin(place) * reduction.width; };
  const auto count = [&](int place) { return static_cast<int>(begin(place + 1) - begin(place)); };
  void* const theirs = Scratch((reduction.count / size_ + 1) * reduction.width);
  ForEachReduceScatterHop(rank_, size_, [&](int out, int in) {
    Swap(reduction, theirs, count(in), previous, data(out), count(out), next);
    reduction.reduce(data(in), data(in), theirs, count(in));
  });
  ForEachAllGatherHop(rank_, size_, [&](int out, int in) {
    Swap(reduction, data(in), count(in), previous, data(out), count(out), next);
  });
}

void* MpiCommunicator::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

void MpiCommunicator::AllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  const int count = CountForMpi(tensor);
  Block("all-reduce", [&](Operation& operation) {
    const bool few = static_cast<int64_t>(tensor.nbytes()) <= size_ * kSmallestPart;
    const auto width = static_cast<size_t>(tensor.element_size());
    const Reduction reduction{static_cast<char*>(tensor.data_ptr()),
                              count,
                              width,
                              few ? MessageOf(count, width) : std::max(count, 1),
                              handles_->TypeOf(tensor),
                              ReduceFunctionFor(tensor.scalar_type(), op),
                              operation};
    few ? ReduceWhole(reduction) : ReduceParts(reduction);
    if (op == ReduceOp::kAverage) Divide(tensor, size_);
  });
}

void MpiCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  const int count = CountForMpi(tensor);
  Block("broadcast", [&](Operation& operation) {
    StartAndAwait(operation, [&](MPI_Request* request) {
      return MPI_Ibcast(tensor.data_ptr(), count, handles_->TypeOf(tensor), root, handles_->comm, request);
    });
  });
}

std::vector<std::string> MpiCommunicator::AllGather(std::string_view mine) {
  const size_t length = mine.size();
  const int bytes = static_cast<int>(length);
  std::string all(length * size_, '\0');
  Block("all-gather", [&](Operation& operation) {
    StartAndAwait(operation, [&](MPI_Request* request) {
      return MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, handles_->comm,
                            request);
    });
  });
  std::vector<std::string> result;
  for (int r = 0; r < size_; ++r) result.push_back(all.substr(r * length, length));
  return result;
}

void MpiCommunicator::Barrier() {
  Block("barrier", [&](Operation& operation) {
    StartAndAwait(operation, [&](MPI_Request* request) { return MPI_Ibarrier(handles_->comm, request); });
  });
}

}  // namespace scalelab::trainer
