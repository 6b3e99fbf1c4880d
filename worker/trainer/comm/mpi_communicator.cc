#include "worker/trainer/comm/mpi_communicator.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <climits>
#include <exception>

#include "worker/trainer/comm/communicators.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// Between two looks at running operations while the rank computes. Short against a gradient bucket's
// transfer, long against the 3 us that waking up costs.
constexpr timespec kPollInterval = {0, 50'000};

void Check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw TrainerError(std::string("MPI: ") + what + " failed: " + std::string(text, length),
                     ErrorKind::kCommunication);
}

MPI_Datatype TypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kLong:
      return MPI_INT64_T;
    default:
      throw TrainerError(std::string("MPI cannot communicate tensors of type ") +
                         c10::toString(tensor.scalar_type()));
  }
}

int CountOf(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense() || tensor.numel() > INT_MAX) {
    throw TrainerError("MPI communicates dense tensors in host memory with less than 2^31 elements");
  }
  return static_cast<int>(tensor.numel());
}

// A plain loop: Torch's operators would start a second team of OpenMP threads on the communication thread.
template <typename T>
void Scale(const at::Tensor& tensor, double factor) {
  T* data = static_cast<T*>(tensor.data_ptr());
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i) data[i] *= static_cast<T>(factor);
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
};

// A collective operation: how it starts, what is left to do at its end, and who waits for it.
class MpiCommunicator::Operation {
 public:
  std::function<int(MPI_Request*)> start;
  std::function<void()> finish;  // may be empty
  const char* what = "";
  MPI_Request request = MPI_REQUEST_NULL;

  void Complete(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

class MpiCommunicator::OperationWork : public Work {
 public:
  OperationWork(std::shared_ptr<Operation> operation, std::atomic<int>& waiting)
      : operation_(std::move(operation)), waiting_(waiting) {}
  void Wait() override {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    try {
      operation_->Wait();
    } catch (...) {
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::shared_ptr<Operation> operation_;
  std::atomic<int>& waiting_;
};

MpiCommunicator::MpiCommunicator(int rank, int launched, int64_t expected)
    : handles_(std::make_unique<Handles>()) {
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
  if (failing) return;
  MPI_Comm_free(&handles_->comm);
  MPI_Finalize();
}

void MpiCommunicator::CommunicationThread() {
  prctl(PR_SET_TIMERSLACK, 1);  // or a sleep of 50 us takes 100
  std::deque<std::shared_ptr<Operation>> running;
  std::exception_ptr broken;  // after a failure every later operation fails the same way
  while (!abandon_) {
    std::deque<std::shared_ptr<Operation>> fresh;
    {
      std::unique_lock lock(mutex_);
      if (running.empty()) changed_.wait(lock, [&] { return !queue_.empty() || closing_; });
      if (running.empty() && queue_.empty()) return;
      fresh.swap(queue_);
    }
    for (auto& operation : fresh) {
      try {
        if (broken) std::rethrow_exception(broken);
        Check(operation->start(&operation->request), operation->what);
        running.push_back(operation);
      } catch (...) {
        broken = std::current_exception();
        operation->Complete(broken);
      }
    }
    while (!running.empty()) {
      Operation& oldest = *running.front();
      try {
        int done = 0;
        Check(MPI_Test(&oldest.request, &done, MPI_STATUS_IGNORE), oldest.what);
        if (!done) break;
        if (oldest.finish) oldest.finish();
        oldest.Complete(nullptr);
      } catch (...) {
        broken = std::current_exception();
        oldest.Complete(broken);
      }
      running.pop_front();
    }
    if (running.empty()) continue;
    if (waiting_.load(std::memory_order_relaxed) > 0) {
      sched_yield();
    } else {
      nanosleep(&kPollInterval, nullptr);
    }
  }
}

std::unique_ptr<Work> MpiCommunicator::Submit(std::unique_ptr<Operation> operation) {
  std::shared_ptr<Operation> shared = std::move(operation);
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(shared);
  }
  changed_.notify_one();
  return std::make_unique<OperationWork>(std::move(shared), waiting_);
}

std::unique_ptr<Work> MpiCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  auto operation = std::make_unique<Operation>();
  operation->what = "all-reduce";
  const MPI_Op mpi_op = op == ReduceOp::kMax ? MPI_MAX : MPI_SUM;
  operation->start = [this, tensor, count = CountOf(tensor), type = TypeOf(tensor),
                      mpi_op](MPI_Request* request) {
    return MPI_Iallreduce(MPI_IN_PLACE, tensor.data_ptr(), count, type, mpi_op, handles_->comm, request);
  };
  if (op == ReduceOp::kAverage) {
    if (tensor.scalar_type() == at::kLong) throw TrainerError("integers have no average over ranks");
    operation->finish = [tensor, factor = 1.0 / size_] {
      tensor.scalar_type() == at::kFloat ? Scale<float>(tensor, factor) : Scale<double>(tensor, factor);
    };
  }
  return Submit(std::move(operation));
}

void MpiCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  auto operation = std::make_unique<Operation>();
  operation->what = "broadcast";
  operation->start = [this, tensor, count = CountOf(tensor), type = TypeOf(tensor),
                      root](MPI_Request* request) {
    return MPI_Ibcast(tensor.data_ptr(), count, type, root, handles_->comm, request);
  };
  Submit(std::move(operation))->Wait();
}

std::vector<std::string> MpiCommunicator::AllGather(std::string_view mine) {
  const size_t length = mine.size();
  std::string all(length * size_, '\0');
  auto operation = std::make_unique<Operation>();
  operation->what = "all-gather";
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
  auto operation = std::make_unique<Operation>();
  operation->what = "barrier";
  operation->start = [this](MPI_Request* request) { return MPI_Ibarrier(handles_->comm, request); };
  Submit(std::move(operation))->Wait();
}

void AbortOtherRanks(int status) {
  int started = 0, over = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&over);
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
