// The blocking calls of MpiCommunicator: their caller alone makes them, from start to end.
#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>

#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/comm/mpi_handles.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// The smallest part of a tensor that is worth a hop of its own. Ranks exchange whole tensors while parts
// would be no larger, because then messages cost more than bytes. Whole ones go in messages of this size:
// Open MPI sends up to 4 KiB, its own words included, without asking the receiver first.
constexpr int64_t kSmallestPart = 2 << 10;
constexpr int kMostMessages = 4;  // of a tensor to one rank
constexpr int kExchangeTag = 1;   // messages of callers have 0

// Elements of a message of a tensor that is sent whole.
int MessageOf(int count, size_t width) {
  return std::max(static_cast<int>(kSmallestPart / width), (count + kMostMessages - 1) / kMostMessages);
}

// At an operation, before the clock is read and the core offered to others: most small ones are over by then.
constexpr int64_t kEagerLooks = 2000;

}  // namespace

struct MpiCommunicator::Requests {
  MPI_Request* Add() { return &all[count++]; }

  std::array<MPI_Request, 2 * kMostMessages> all;
  int count = 0;
};

// An all-reduce by messages between two ranks.
struct MpiCommunicator::Job {
  char* data;
  int count;     // elements
  size_t width;  // bytes of one
  int message;   // elements that a message has at most
  MPI_Datatype type;
  ReduceFunction reduce;
  Operation& operation;
};

template <typename Body>
void MpiCommunicator::Block(const char* what, const Body& body) {
  const Driver driver(*this);
  std::lock_guard driving(driving_);
  if (under_way_ > 0) Advance();  // what was started earlier comes first
  if (broken_) std::rethrow_exception(broken_);
  Operation operation(what);
  watch_->Started(what);
  try {
    body(operation);
  } catch (...) {
    broken_ = std::current_exception();
    throw;
  }
  watch_->Finished(what);
  // Collective operations end in the order of the calls, as callers may expect who never wait for one.
  for (; !collectives_.empty(); sched_yield()) Advance();
  if (broken_) std::rethrow_exception(broken_);
}

template <typename Start>
void MpiCommunicator::SeeThrough(Operation& operation, const Start& start) {
  Requests requests;
  CheckMpi(start(requests.Add()), operation.what);
  Await(requests, operation);
}

void MpiCommunicator::Await(Requests& requests, Operation& operation) {
  for (int64_t looks = 1;; ++looks) {
    int done = 0;
    CheckMpi(MPI_Testall(requests.count, requests.all.data(), &done, MPI_STATUSES_IGNORE), operation.what);
    if (done) return;
    if (under_way_ > 0) Advance();
    if (looks < kEagerLooks) continue;
    if (broken_) std::rethrow_exception(broken_);
    if (operation.deadline == Clock::time_point()) operation.deadline = Clock::now() + timeout_;
    ThrowIfHopeless(operation);
    sched_yield();
  }
}

// Receives `in` elements and sends `out` elements at the same time; none: no message.
void MpiCommunicator::Swap(const Job& job, void* place, int in, int from, const void* data, int out, int to) {
  Requests requests;
  for (int at = 0; at < in; at += job.message) {
    CheckMpi(MPI_Irecv(static_cast<char*>(place) + at * job.width, std::min(job.message, in - at), job.type,
                       from, kExchangeTag, handles_->comm, requests.Add()),
             "MPI_Irecv");
  }
  for (int at = 0; at < out; at += job.message) {
    CheckMpi(MPI_Isend(static_cast<const char*>(data) + at * job.width, std::min(job.message, out - at),
                       job.type, to, kExchangeTag, handles_->comm, requests.Add()),
             "MPI_Isend");
  }
  Await(requests, job.operation);
}

void MpiCommunicator::ReduceWhole(const Job& job) {
  using enum Meeting::Kind;
  void* const theirs = Scratch(job.count * job.width);
  for (const auto [kind, peer] : meetings_) {
    const bool receives = kind != kGive && kind != kSendResult,
               sends = kind != kTake && kind != kReceiveResult;
    Swap(job, kind == kReceiveResult ? job.data : theirs, receives ? job.count : 0, peer, job.data,
         sends ? job.count : 0, peer);
    if (kind != kExchange && kind != kTake) continue;
    const bool lower = rank_ < peer;
    job.reduce(job.data, lower ? job.data : theirs, lower ? theirs : job.data, job.count);
  }
}

// The ring of ring_all_reduce.h, without an operation of its own for each message.
void MpiCommunicator::ReduceParts(const Job& job) {
  const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
  const auto begin = [&](int64_t place) { return static_cast<int64_t>(job.count) * place / size_; };
  const auto data = [&](int place) { return job.data + begin(place) * job.width; };
  const auto count = [&](int place) { return static_cast<int>(begin(place + 1) - begin(place)); };
  const auto back = [&](int places) { return (rank_ + 2 * size_ - places) % size_; };
  void* const theirs = Scratch((job.count / size_ + 1) * job.width);
  for (int hop = 1; hop < size_; ++hop) {
    const int in = back(hop + 1), out = back(hop);
    Swap(job, theirs, count(in), previous, data(out), count(out), next);
    job.reduce(data(in), data(in), theirs, count(in));
  }
  for (int hop = 1; hop < size_; ++hop) {
    const int in = back(hop), out = back(hop - 1);
    Swap(job, data(in), count(in), previous, data(out), count(out), next);
  }
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
    const Job job{static_cast<char*>(tensor.data_ptr()),
                  count,
                  width,
                  few ? MessageOf(count, width) : std::max(count, 1),
                  handles_->TypeOf(tensor),
                  ReduceFunctionFor(tensor.scalar_type(), op),
                  operation};
    few ? ReduceWhole(job) : ReduceParts(job);
    if (op == ReduceOp::kAverage) Scale(tensor, 1.0 / size_);
  });
}

void MpiCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  const int count = CountForMpi(tensor);
  Block("broadcast", [&](Operation& operation) {
    SeeThrough(operation, [&](MPI_Request* request) {
      return MPI_Ibcast(tensor.data_ptr(), count, handles_->TypeOf(tensor), root, handles_->comm, request);
    });
  });
}

std::vector<std::string> MpiCommunicator::AllGather(std::string_view mine) {
  const size_t length = mine.size();
  const int bytes = static_cast<int>(length);
  std::string all(length * size_, '\0');
  Block("all-gather", [&](Operation& operation) {
    SeeThrough(operation, [&](MPI_Request* request) {
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
    SeeThrough(operation, [&](MPI_Request* request) { return MPI_Ibarrier(handles_->comm, request); });
  });
}

}  // namespace scalelab::trainer
