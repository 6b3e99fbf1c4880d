#include "worker/trainer/comm/mpi_communicator.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <climits>
#include <exception>

#include "worker/trainer/comm/communicators.h"
#include "worker/trainer/comm/operation.h"
#include "worker/trainer/comm/peer_watch.h"
#include "worker/trainer/comm/tensors.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// Between two looks at running operations while the rank computes. Short against a gradient bucket's
// transfer, long against the 3 us that waking up costs.
constexpr timespec kPollInterval = {0, 50'000};

constexpr std::chrono::milliseconds kReportGrace{500};
std::atomic<bool> others_know = false;  // why this rank has failed

void Check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw TrainerError(std::string("MPI: ") + what + " failed: " + std::string(text, length),
                     ErrorKind::kCommunication);
}

int CountOf(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() > INT_MAX) {
    throw TrainerError("MPI communicates tensors in host memory with less than 2^31 elements");
  }
  return static_cast<int>(tensor.numel());
}

// As a reduction of MPI's own kind: MPI knows neither float16 nor bfloat16.
template <at::ScalarType kType, ReduceOp kOp>
void ReduceForMpi(void* in, void* result, int* count, MPI_Datatype*) {
  ReduceFunctionFor(kType, kOp)(result, result, in, static_cast<size_t>(*count));
}

std::string CountMismatch(int found, int64_t expected) {
  std::string message =
      "MPI sees " + std::to_string(found) + " ranks, but the run asks for " + std::to_string(expected) + ": ";
  if (found == 1) {
    return message +
           "each process started alone; launch with the mpirun of the same MPI, or srun --mpi=pmix, not as "
           "plain processes";
  }
  return message + "launch exactly as many processes as the specification's field \"ranks\" says";
}

}  // namespace

struct MpiCommunicator::Handles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Datatype half = MPI_DATATYPE_NULL;  // two bytes: float16 and bfloat16
  MPI_Op half_sum = MPI_OP_NULL, half_max = MPI_OP_NULL;
  MPI_Op bfloat16_sum = MPI_OP_NULL, bfloat16_max = MPI_OP_NULL;

  void Create() {
    Check(MPI_Type_contiguous(2, MPI_BYTE, &half), "MPI_Type_contiguous");
    Check(MPI_Type_commit(&half), "MPI_Type_commit");
    constexpr int kCommutes = 1;
    MPI_Op_create(ReduceForMpi<at::kHalf, ReduceOp::kSum>, kCommutes, &half_sum);
    MPI_Op_create(ReduceForMpi<at::kHalf, ReduceOp::kMax>, kCommutes, &half_max);
    MPI_Op_create(ReduceForMpi<at::kBFloat16, ReduceOp::kSum>, kCommutes, &bfloat16_sum);
    MPI_Op_create(ReduceForMpi<at::kBFloat16, ReduceOp::kMax>, kCommutes, &bfloat16_max);
  }
  void Free() {
    for (MPI_Op* op : {&half_sum, &half_max, &bfloat16_sum, &bfloat16_max}) MPI_Op_free(op);
    MPI_Type_free(&half);
    MPI_Comm_free(&comm);
  }
  MPI_Datatype TypeOf(const at::Tensor& tensor) const {
    switch (tensor.scalar_type()) {
      case at::kFloat:
        return MPI_FLOAT;
      case at::kDouble:
        return MPI_DOUBLE;
      case at::kLong:
        return MPI_INT64_T;
      default:
        return half;
    }
  }
  MPI_Op OpOf(const at::Tensor& tensor, ReduceOp op) const {
    const at::ScalarType type = tensor.scalar_type();
    if (type == at::kHalf) return op == ReduceOp::kMax ? half_max : half_sum;
    if (type == at::kBFloat16) return op == ReduceOp::kMax ? bfloat16_max : bfloat16_sum;
    if (op == ReduceOp::kBitAnd) return MPI_BAND;
    return op == ReduceOp::kMax ? MPI_MAX : MPI_SUM;
  }
};

// How it starts, and what is left to do at its end.
class MpiCommunicator::MpiOperation : public Operation {
 public:
  using Operation::Operation;
  std::function<int(MPI_Request*)> start;
  std::function<void()> finish;  // may be empty
  MPI_Request request = MPI_REQUEST_NULL;
};

MpiCommunicator::MpiCommunicator(int rank, int launched, int64_t expected, std::chrono::milliseconds timeout)
    : timeout_(timeout), handles_(std::make_unique<Handles>()) {
  if (launched != 0 && launched != expected) {
    throw TrainerError("the launcher set WORLD_SIZE to " + std::to_string(launched) +
                           ", but the run asks for " + std::to_string(expected) +
                           " ranks: launch as many processes as the specification says",
                       ErrorKind::kCommunication);
  }
  int provided = MPI_THREAD_SINGLE;
  Check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int world = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (world != expected) throw TrainerError(CountMismatch(world, expected), ErrorKind::kCommunication);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw TrainerError(
        "this MPI library was built without thread support: it must offer MPI_THREAD_SERIALIZED",
        ErrorKind::kCommunication);
  }
  // Ordered by our own rank number, which names the event file, whatever order the launcher chose.
  Check(MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &handles_->comm), "MPI_Comm_split");
  MPI_Comm_set_errhandler(handles_->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(handles_->comm, &rank_);
  MPI_Comm_size(handles_->comm, &size_);
  if (rank_ != rank) {
    throw TrainerError("environment variable RANK is " + std::to_string(rank) + " where MPI counts rank " +
                           std::to_string(rank_) + ": each process needs its own RANK from 0 to ranks - 1",
                       ErrorKind::kCommunication);
  }
  handles_->Create();
  watch_ = WatchPeers(rank_, size_, [this](const std::string& mine) {
    constexpr size_t kLine = 1024;
    std::string line = mine, all(kLine * size_, '\0');
    line.resize(kLine);
    Check(MPI_Allgather(line.data(), kLine, MPI_BYTE, all.data(), kLine, MPI_BYTE, handles_->comm),
          "MPI_Allgather");
    std::vector<std::string> lines;
    for (int r = 0; r < size_; ++r) lines.emplace_back(&all[r * kLine]);  // up to its first zero
    return lines;
  });
  thread_ = std::thread(&MpiCommunicator::CommunicationThread, this);
}

MpiCommunicator::~MpiCommunicator() {
  const bool failing = std::uncaught_exceptions() > 0;
  abandon_ = failing;
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
  watch_.reset();  // says goodbye, now that nothing is left to do
  if (failing) return;
  handles_->Free();
  MPI_Finalize();
}

// Drives MPI itself while it waits: a handover to another thread and back costs more than a small operation.
class MpiCommunicator::MpiWork : public Work {
 public:
  MpiWork(MpiCommunicator& owner, std::shared_ptr<MpiOperation> operation)
      : owner_(owner), operation_(std::move(operation)) {}
  void Wait() override {
    owner_.waiting_.fetch_add(1);
    while (!operation_->done()) {
      owner_.Drive();
      if (!operation_->done()) sched_yield();
    }
    if (owner_.waiting_.fetch_sub(1) == 1 && owner_.under_way_ > 0) owner_.WakeThread();
    operation_->Wait();  // throws what it failed with
  }

 private:
  MpiCommunicator& owner_;
  std::shared_ptr<MpiOperation> operation_;
};

void MpiCommunicator::CommunicationThread() {
  prctl(PR_SET_TIMERSLACK, 1);  // or a sleep of 50 us takes 100
  while (!abandon_) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || (under_way_ > 0 && waiting_ == 0); });
      if (closing_ && under_way_ == 0) return;
    }
    Drive();
    nanosleep(&kPollInterval, nullptr);
  }
}

void MpiCommunicator::WakeThread() {
  {
    std::lock_guard lock(mutex_);  // or it may just have looked, and not sleep yet
  }
  changed_.notify_one();
}

void MpiCommunicator::Drive() {
  std::lock_guard driving(driving_);
  std::deque<std::shared_ptr<MpiOperation>> fresh;
  {
    std::lock_guard lock(mutex_);
    fresh.swap(queue_);
  }
  for (auto& operation : fresh) {
    try {
      if (broken_) std::rethrow_exception(broken_);
      operation->deadline = std::chrono::steady_clock::now() + timeout_;
      if (operation->collective()) watch_->Started(operation->what);
      Check(operation->start(&operation->request), operation->what);
      if (operation->collective()) {
        collectives_.push_back(operation);
      } else {
        messages_.push_back(operation);
      }
    } catch (...) {
      broken_ = std::current_exception();
      Complete(*operation);
    }
  }
  while (!collectives_.empty() && Ended(*collectives_.front())) collectives_.pop_front();
  std::erase_if(messages_, [&](const auto& message) { return Ended(*message); });
}

bool MpiCommunicator::Ended(MpiOperation& operation) {
  try {
    if (broken_) std::rethrow_exception(broken_);
    int done = 0;
    Check(MPI_Test(&operation.request, &done, MPI_STATUS_IGNORE), operation.what);
    if (!done) {
      ThrowIfHopeless(operation);
      return false;
    }
    if (operation.finish) operation.finish();
    if (operation.collective()) watch_->Finished(operation.what);
  } catch (...) {
    broken_ = std::current_exception();
  }
  Complete(operation);
  return true;
}

void MpiCommunicator::Complete(MpiOperation& operation) {
  --under_way_;
  operation.Complete(broken_);
}

void MpiCommunicator::ThrowIfHopeless(const Operation& operation) const {
  if (!watch_->condemned()) {
    if (std::chrono::steady_clock::now() < operation.deadline) return;
    watch_->Investigate(LateSentence(operation, timeout_), operation.peer);
  }
  others_know = true;
  throw TrainerError(watch_->verdict(), ErrorKind::kCommunication);
}

std::unique_ptr<Work> MpiCommunicator::Submit(std::unique_ptr<MpiOperation> operation) {
  std::shared_ptr<MpiOperation> shared = std::move(operation);
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(shared);
    ++under_way_;
  }
  changed_.notify_one();
  return std::make_unique<MpiWork>(*this, std::move(shared));
}

std::unique_ptr<Work> MpiCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  auto operation = std::make_unique<MpiOperation>("all-reduce");
  operation->start = [this, tensor, count = CountOf(tensor), op](MPI_Request* request) {
    return MPI_Iallreduce(MPI_IN_PLACE, tensor.data_ptr(), count, handles_->TypeOf(tensor),
                          handles_->OpOf(tensor, op), handles_->comm, request);
  };
  if (op == ReduceOp::kAverage) operation->finish = [tensor, factor = 1.0 / size_] { Scale(tensor, factor); };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                          ReduceOp op) {
  CheckReduction(input, op);
  CheckBlocks(input, output, size_);
  CountOf(input);
  auto operation = std::make_unique<MpiOperation>("reduce-scatter");
  operation->start = [this, output, input, count = CountOf(output), op](MPI_Request* request) {
    return MPI_Ireduce_scatter_block(input.data_ptr(), output.data_ptr(), count, handles_->TypeOf(input),
                                     handles_->OpOf(input, op), handles_->comm, request);
  };
  if (op == ReduceOp::kAverage) operation->finish = [output, factor = 1.0 / size_] { Scale(output, factor); };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartAllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckBlocks(output, input, size_);
  CountOf(output);
  auto operation = std::make_unique<MpiOperation>("all-gather");
  operation->start = [this, output, input, count = CountOf(input)](MPI_Request* request) {
    const bool in_place = input.data_ptr() == static_cast<char*>(output.data_ptr()) + rank_ * input.nbytes();
    const MPI_Datatype type = handles_->TypeOf(input);
    return MPI_Iallgather(in_place ? MPI_IN_PLACE : input.data_ptr(), count, type, output.data_ptr(), count,
                          type, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

void MpiCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  auto operation = std::make_unique<MpiOperation>("broadcast");
  operation->start = [this, tensor, count = CountOf(tensor), root](MPI_Request* request) {
    return MPI_Ibcast(tensor.data_ptr(), count, handles_->TypeOf(tensor), root, handles_->comm, request);
  };
  Submit(std::move(operation))->Wait();
}

std::unique_ptr<Work> MpiCommunicator::StartSend(const at::Tensor& tensor, int to) {
  CheckTensor(tensor);
  CheckPeer(to, *this);
  auto operation = std::make_unique<MpiOperation>("send", to);
  operation->start = [this, tensor, count = CountOf(tensor), to](MPI_Request* request) {
    return MPI_Isend(tensor.data_ptr(), count, handles_->TypeOf(tensor), to, 0, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

std::unique_ptr<Work> MpiCommunicator::StartReceive(const at::Tensor& tensor, int from) {
  CheckTensor(tensor);
  CheckPeer(from, *this);
  auto operation = std::make_unique<MpiOperation>("receive", from);
  operation->start = [this, tensor, count = CountOf(tensor), from](MPI_Request* request) {
    return MPI_Irecv(tensor.data_ptr(), count, handles_->TypeOf(tensor), from, 0, handles_->comm, request);
  };
  return Submit(std::move(operation));
}

std::vector<std::string> MpiCommunicator::AllGather(std::string_view mine) {
  const size_t length = mine.size();
  std::string all(length * size_, '\0');
  auto operation = std::make_unique<MpiOperation>("all-gather");
  operation->start = [&, this](MPI_Request* request) {
    return MPI_Iallgather(mine.data(), static_cast<int>(length), MPI_BYTE, all.data(),
                          static_cast<int>(length), MPI_BYTE, handles_->comm, request);
  };
  Submit(std::move(operation))->Wait();
  std::vector<std::string> result;
  for (int r = 0; r < size_; ++r) result.push_back(all.substr(r * length, length));
  return result;
}

void MpiCommunicator::Barrier() {
  auto operation = std::make_unique<MpiOperation>("barrier");
  operation->start = [this](MPI_Request* request) { return MPI_Ibarrier(handles_->comm, request); };
  Submit(std::move(operation))->Wait();
}

void AbortOtherRanks(int status) {
  int started = 0, over = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&over);
  // The launcher kills the others at once, and they have just been told what is wrong: they shall report it
  // too.
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
