// The blocking calls of MpiCommunicator: their caller alone makes them, from start to end.
#include <sched.h>

#include <exception>

#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/comm/mpi_handles.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// The smallest part of a tensor that is worth a message of its own. Ranks exchange whole tensors while parts
// would be smaller, because then messages cost more than bytes.
constexpr int64_t kSmallestPart = 2 << 10;
constexpr int kExchangeTag = 1;  // messages of callers have 0

// At an operation, before the clock is read and the core offered to others: most small ones are over by then.
constexpr int64_t kEagerLooks = 2000;

}  // namespace

struct MpiCommunicator::Requests {
  MPI_Request first = MPI_REQUEST_NULL, second = MPI_REQUEST_NULL;
};

// An all-reduce by messages between two ranks.
struct MpiCommunicator::Job {
  char* data;
  int count;     // elements
  size_t width;  // bytes of one
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
  CheckMpi(start(&requests.first), operation.what);
  Await(requests, operation);
}

void MpiCommunicator::Await(const Requests& requests, Operation& operation) {
  MPI_Request both[] = {requests.first, requests.second};
  for (int64_t looks = 1;; ++looks) {
    int done = 0;
    CheckMpi(MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE), operation.what);
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
  if (in > 0) {
    CheckMpi(MPI_Irecv(place, in, job.type, from, kExchangeTag, handles_->comm, &requests.first),
             "MPI_Irecv");
  }
  if (out > 0) {
    CheckMpi(MPI_Isend(data, out, job.type, to, kExchangeTag, handles_->comm, &requests.second), "MPI_Isend");
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
    const Job job{static_cast<char*>(tensor.data_ptr()),       count,
                  static_cast<size_t>(tensor.element_size()),  handles_->TypeOf(tensor),
                  ReduceFunctionFor(tensor.scalar_type(), op), operation};
    const bool few = static_cast<int64_t>(tensor.nbytes()) < size_ * kSmallestPart;
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
