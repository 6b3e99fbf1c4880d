#include "worker/trainer/comm/mpi_communicator.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <cstdlib>
#include <exception>

#include "worker/trainer/comm/hierarchical_all_reduce.h"
#include "worker/trainer/comm/mpi_handles.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peers/peer_watch.h"
#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// The interval between polls while the rank computes. It is shorter than the transfer of a gradient bucket,
// and longer than the wakeup of a thread (3 us).
constexpr timespec kPollInterval = {0, 50'000};

constexpr std::chrono::milliseconds kReportGrace{500};
std::atomic<bool> others_know = false;  // whether the verdict was sent to the other ranks

std::string CountMismatch(int found, int64_t expected) {
  std::string message = "MPI reports " + std::to_string(found) + " ranks, but the run asks for " +
                        std::to_string(expected) + ": ";
  if (found == 1) {
    return message +
           "each process started alone; launch with the mpirun of the same MPI, or srun --mpi=pmix, not as "
           "plain processes";
  }
  return message + "launch exactly as many processes as the specification's field \"ranks\" says";
}

}  // namespace

// An operation that MPI executes.
class MpiCommunicator::MpiOperation : public Operation {
 public:
  MpiOperation(MpiCommunicator& owner, const char* what, int peer = -1)
      : Operation(what, peer), owner(owner) {}
  MpiCommunicator& owner;
  std::function<int(MPI_Request*)> start;
  std::function<void()> finish;  // called when the request has completed; may be empty
  MPI_Request request = MPI_REQUEST_NULL;
  int source = MPI_ANY_SOURCE;  // the sender, once a receive has ended
};

MpiCommunicator::MpiCommunicator(int rank, int launched, int64_t expected, std::chrono::milliseconds timeout)
    : root_(this), timeout_(timeout), handles_(std::make_unique<MpiHandles>()), communicators_{this} {
  if (launched != 0 && launched != expected) {
    throw TrainerError("the launcher set WORLD_SIZE to " + std::to_string(launched) +
                           ", but the run asks for " + std::to_string(expected) +
                           " ranks: launch as many processes as the specification says",
                       ErrorKind::kCommunication);
  }
  // By default an in-place MPI_Iallreduce (coll/libnbc of Open MPI 4.1) uses a binomial tree, whose root
  // receives and sends all data at least twice. In a ring each rank sends 2 (n - 1) / n of the data.
  setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "1", /*overwrite=*/0);
  int provided = MPI_THREAD_SINGLE;
  CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int world = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (world != expected) throw TrainerError(CountMismatch(world, expected), ErrorKind::kCommunication);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw TrainerError(
        "this MPI library was built without thread support: it must offer MPI_THREAD_SERIALIZED",
        ErrorKind::kCommunication);
  }
  handles_->Create(rank);  // keeps this rank's number, which is also in the name of its event file
  MPI_Comm_rank(handles_->comm, &rank_);
  MPI_Comm_size(handles_->comm, &size_);
  if (rank_ != rank) {
    throw TrainerError("environment variable RANK is " + std::to_string(rank) + ", but MPI reports rank " +
                           std::to_string(rank_) + ": each process needs its own RANK from 0 to ranks - 1",
                       ErrorKind::kCommunication);
  }
  steps_ = RecursiveDoubling(rank_, size_);
  watch_ = WatchPeers(rank_, size_, [this](const std::string& mine) {
    constexpr size_t kLine = 1024;
    std::string line = mine, all(kLine * size_, '\0');
    line.resize(kLine);
    CheckMpi(MPI_Allgather(line.data(), kLine, MPI_BYTE, all.data(), kLine, MPI_BYTE, handles_->comm),
             "MPI_Allgather");
    std::vector<std::string> lines;
    for (int r = 0; r < size_; ++r) lines.emplace_back(&all[r * kLine]);  // up to the first zero byte
    return lines;
  });
  thread_ = std::thread(&MpiCommunicator::CommunicationThread, this);
}

MpiCommunicator::MpiCommunicator(MpiCommunicator& parent, std::vector<int> members)
    : root_(parent.root_), members_(std::move(members)), timeout_(parent.timeout_) {
  std::lock_guard driving(root_->driving_);
  handles_ = std::make_unique<MpiHandles>(parent.handles_->Split(members_[0]));
  MPI_Comm_rank(handles_->comm, &rank_);
  MPI_Comm_size(handles_->comm, &size_);
  steps_ = RecursiveDoubling(rank_, size_);
  if (!parent.members_.empty()) {
    for (int& member : members_) member = parent.members_[member];
  }
  root_->communicators_.push_back(this);
}

std::unique_ptr<Communicator> MpiCommunicator::Split(int group) {
  // When RanksOfGroup returns, all ranks have called Split. Therefore MPI_Comm_split, which has no timeout,
  // does not wait for them.
  std::vector<int> members = RanksOfGroup(*this, group);
  return std::unique_ptr<Communicator>(new MpiCommunicator(*this, std::move(members)));
}

MpiCommunicator::~MpiCommunicator() {
  const bool failing = std::uncaught_exceptions() > 0;
  if (root_ != this) {
    const Driver driver(*root_);
    for (; !failing && unfinished_ > 0; sched_yield()) root_->Drive();
    std::lock_guard driving(root_->driving_);
    std::erase(root_->communicators_, this);
    if (!failing) {
      MPI_Comm_free(&handles_->comm);
      return;
    }
    const auto mine = [this](const auto& operation) { return &operation->owner == this; };
    std::erase_if(root_->messages_, mine);
    std::lock_guard lock(root_->mutex_);
    std::erase_if(root_->queue_, mine);
    root_->in_flight_ -= unfinished_;
    return;
  }
  abandon_ = failing;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
  watch_.reset();  // sends `bye`, because no operation is left
  if (failing) return;
  handles_->Free();
  MPI_Finalize();
}

// Calls MPI on the waiting thread, because two thread switches take longer than a small operation.
class MpiCommunicator::MpiWork : public Work {
 public:
  MpiWork(MpiCommunicator& root, std::shared_ptr<MpiOperation> operation)
      : root_(root), operation_(std::move(operation)) {}
  void Wait() override {
    {
      const Driver driver(root_);
      while (!operation_->done()) {
        root_.Drive();
        if (!operation_->done()) sched_yield();
      }
    }
    operation_->Wait();  // throws the error of a failed operation
  }
  bool Done() override {
    if (operation_->done()) return true;
    const Driver driver(root_);
    root_.Drive();
    return operation_->done();
  }
  Span span() const override { return SpanOf(*operation_); }

 private:
  MpiCommunicator& root_;
  std::shared_ptr<MpiOperation> operation_;
};

void MpiCommunicator::CommunicationThread() {
  prctl(PR_SET_TIMERSLACK, 1);  // with the default timer slack, a sleep of 50 us takes 100 us
  while (!abandon_) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || (in_flight_ > 0 && waiting_ == 0); });
      if (closing_ && in_flight_ == 0) return;
    }
    Drive();
    nanosleep(&kPollInterval, nullptr);
  }
}

void MpiCommunicator::WakeThread() {
  {
    std::lock_guard lock(mutex_);  // the thread may have checked its condition without sleeping yet
  }
  changed_.notify_one();
}

void MpiCommunicator::Drive() {
  std::lock_guard driving(driving_);
  Advance();
}

void MpiCommunicator::Advance() {
  std::deque<std::shared_ptr<MpiOperation>> fresh;
  {
    std::lock_guard lock(mutex_);
    fresh.swap(queue_);
  }
  for (auto& operation : fresh) {
    try {
      if (broken_) std::rethrow_exception(broken_);
      operation->deadline = watch_->Now() + timeout_;
      operation->begin = DeviceEvent(at::kCPU);
      if (operation->collective()) operation->owner.Started(operation->what);
      CheckMpi(operation->start(&operation->request), operation->what);
      if (operation->collective()) {
        operation->owner.collectives_.push_back(operation);
      } else {
        messages_.push_back(operation);
      }
    } catch (...) {
      broken_ = std::current_exception();
      Complete(*operation);
    }
  }
  for (MpiCommunicator* communicator : communicators_) {
    auto& collectives = communicator->collectives_;
    while (!collectives.empty() && Ended(*collectives.front())) collectives.pop_front();
  }
  std::erase_if(messages_, [&](const auto& message) { return Ended(*message); });
}

bool MpiCommunicator::Ended(MpiOperation& operation) {
  try {
    if (broken_) std::rethrow_exception(broken_);
    int done = 0;
    MPI_Status status;
    CheckMpi(MPI_Test(&operation.request, &done, &status), operation.what);
    if (!done) {
      operation.owner.ThrowIfLateOrCondemned(operation);
      return false;
    }
    operation.source = status.MPI_SOURCE;
    if (operation.finish) operation.finish();
    if (operation.collective()) operation.owner.Finished(operation.what);
  } catch (...) {
    broken_ = std::current_exception();
  }
  Complete(operation);
  return true;
}

void MpiCommunicator::Complete(MpiOperation& operation) {
  --in_flight_;
  MpiCommunicator& owner = operation.owner;
  operation.Complete(broken_);
  --owner.unfinished_;
}

void MpiCommunicator::Started(const char* what) {
  if (root_ == this) watch_->Started(what);
}

void MpiCommunicator::Finished(const char* what) {
  if (root_ == this) watch_->Finished(what);
}

void MpiCommunicator::ThrowIfLateOrCondemned(const Operation& operation) const {
  PeerWatch& watch = *root_->watch_;
  if (!watch.condemned()) {
    if (watch.Now() < operation.deadline) return;
    watch.Investigate(LateSentence(operation, timeout_), operation.peer, members_);
  }
  others_know = true;
  throw TrainerError(watch.verdict(), ErrorKind::kCommunication);
}

std::unique_ptr<Work> MpiCommunicator::Submit(std::unique_ptr<MpiOperation> operation) {
  std::shared_ptr<MpiOperation> shared = std::move(operation);
  ++unfinished_;
  {
    std::lock_guard lock(root_->mutex_);
    root_->queue_.push_back(shared);
    ++root_->in_flight_;
  }
  root_->changed_.notify_one();
  return std::make_unique<MpiWork>(*root_, std::move(shared));
}

std::unique_ptr<Work> MpiCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  auto operation = std::make_unique<MpiOperation>(*this, "all-reduce");
  operation->start = [this, tensor, count = CountForMpi(tensor), op](MPI_Request* request) {
    return MPI_Iallreduce(MPI_IN_PLACE, tensor.data_ptr(), count, handles_->TypeOf(tensor),
                          handles_->OpOf(tensor, op), handles_->comm, request);
  };
  if (op == ReduceOp::kAverage) operation->finish = [tensor, size = size_] { Divide(tensor, size); };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                          ReduceOp op) {
  CheckReduction(input, op);
  CheckBlocks(input, output, size_);
  CountForMpi(input);
  auto operation = std::make_unique<MpiOperation>(*this, "reduce-scatter");
  operation->start = [this, output, input, count = CountForMpi(output), op](MPI_Request* request) {
    return MPI_Ireduce_scatter_block(input.data_ptr(), output.data_ptr(), count, handles_->TypeOf(input),
                                     handles_->OpOf(input, op), handles_->comm, request);
  };
  if (op == ReduceOp::kAverage) operation->finish = [output, size = size_] { Divide(output, size); };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartAllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckBlocks(output, input, size_);
  CountForMpi(output);
  auto operation = std::make_unique<MpiOperation>(*this, "all-gather");
  operation->start = [this, output, input, count = CountForMpi(input)](MPI_Request* request) {
    const bool in_place = input.data_ptr() == static_cast<char*>(output.data_ptr()) + rank_ * input.nbytes();
    const MPI_Datatype type = handles_->TypeOf(input);
    return MPI_Iallgather(in_place ? MPI_IN_PLACE : input.data_ptr(), count, type, output.data_ptr(), count,
                          type, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                                       const std::vector<int64_t>& counts) {
  CheckUnequalBlocks(output, input, counts, *this);
  CountForMpi(output);
  std::vector<int> lengths, firsts;  // must exist until the operation has ended
  for (int r = 0; r < size_; ++r) {
    lengths.push_back(static_cast<int>(counts[r]));
    firsts.push_back(static_cast<int>(FirstElementOf(r, counts)));
  }
  auto operation = std::make_unique<MpiOperation>(*this, "all-gather");
  operation->start = [this, output, input, lengths = std::move(lengths),
                      firsts = std::move(firsts)](MPI_Request* request) {
    char* const place = static_cast<char*>(output.data_ptr()) + firsts[rank_] * output.element_size();
    const MPI_Datatype type = handles_->TypeOf(input);
    return MPI_Iallgatherv(input.data_ptr() == place ? MPI_IN_PLACE : input.data_ptr(), lengths[rank_], type,
                           output.data_ptr(), lengths.data(), firsts.data(), type, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartSend(const at::Tensor& tensor, int to) {
  CheckTensor(tensor);
  CheckPeer(to, *this);
  auto operation = std::make_unique<MpiOperation>(*this, "send", to);
  operation->start = [this, tensor, count = CountForMpi(tensor), to](MPI_Request* request) {
    return MPI_Isend(tensor.data_ptr(), count, handles_->TypeOf(tensor), to, 0, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartReceive(const at::Tensor& tensor, int from) {
  CheckTensor(tensor);
  CheckPeer(from, *this);
  auto operation = std::make_unique<MpiOperation>(*this, "receive", from);
  operation->start = [this, tensor, count = CountForMpi(tensor), from](MPI_Request* request) {
    return MPI_Irecv(tensor.data_ptr(), count, handles_->TypeOf(tensor), from, 0, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

int MpiCommunicator::ReceiveFromAny(const at::Tensor& tensor) {
  CheckReceiveFromAny(tensor, *this);
  auto operation = std::make_unique<MpiOperation>(*this, "receive from any rank", Operation::kAnyRank);
  operation->start = [this, tensor, count = CountForMpi(tensor)](MPI_Request* request) {
    return MPI_Irecv(tensor.data_ptr(), count, handles_->TypeOf(tensor), MPI_ANY_SOURCE, 0, handles_->comm,
                     request);
  };
  const MpiOperation& received = *operation;
  const auto work = Submit(std::move(operation));  // keeps the operation alive
  work->Wait();
  return received.source;
}

void AbortOtherRanks(int status) {
  int started = 0, over = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&over);
  // MPI_Abort makes the launcher kill the other ranks at once. Wait first, so that they can report the
  // verdict that they have just received.
  if (others_know) std::this_thread::sleep_for(kReportGrace);
  if (started && !over) MPI_Abort(MPI_COMM_WORLD, status);
}

std::string MpiLibraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, length);
  return version.substr(0, version.find(','));
}

}  // namespace scalelab::trainer
