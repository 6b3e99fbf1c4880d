#include "agent/serve.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/executor.h"
#include "agent/user_files.h"

namespace scalelab::agent {
namespace {

using Channel = grpc::ClientReaderWriter<v1::ServeRequest, v1::ServeResponse>;

constexpr size_t kMaxQueue = 64;
constexpr absl::Duration kTick = absl::Seconds(1);
constexpr absl::Duration kSuspended = absl::Seconds(10);

// Returns the time since the start of the machine, also while it was suspended.
absl::Duration SinceBoot() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

// Detects that this process did not run for a while.
class SuspensionWatch {
 public:
  explicit SuspensionWatch(grpc::ClientContext& context)
      : context_(context), last_(absl::ToInt64Milliseconds(SinceBoot())), thread_([this] { Watch(); }) {}
  ~SuspensionWatch() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  bool suspended() const { return suspended_ || Gap(); }

 private:
  bool Gap() const { return SinceBoot() - absl::Milliseconds(last_.load()) > kSuspended; }
  void Watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, absl::ToChronoMilliseconds(kTick), [this] { return stopping_; })) {
      if (Gap()) {
        suspended_ = true;
        context_.TryCancel();
      }
      last_ = absl::ToInt64Milliseconds(SinceBoot());
    }
  }

  grpc::ClientContext& context_;
  std::atomic<int64_t> last_;  // milliseconds since the start of the machine
  std::atomic<bool> suspended_ = false;
  // Its timeouts follow the steady clock. Those of absl::Mutex follow the wall clock: after that is set back, no tick would
  // come for a long time, and the process would look suspended.
  std::condition_variable changed_;
  std::mutex mutex_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

// A thread that answers requests in order.
class Lane {
 public:
  // `wait`: whether the destructor blocks until the request in progress is answered. Otherwise `answer` may still be called after
  // it, so it must own all objects that it uses.
  Lane(std::function<void(v1::ServeResponse)> answer, bool wait)
      : state_(std::make_shared<State>(std::move(answer))),
        wait_(wait),
        thread_([state = state_] { state->Work(); }) {}
  // Drops the requests that wait.
  ~Lane() {
    {
      absl::MutexLock lock(&state_->mutex);
      state_->stopping = true;
    }
    if (wait_) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  // Returns false if too many requests wait.
  bool Add(v1::ServeResponse request) {
    absl::MutexLock lock(&state_->mutex);
    if (state_->queue.size() >= kMaxQueue) return false;
    state_->queue.push_back(std::move(request));
    return true;
  }

 private:
  struct State {
    explicit State(std::function<void(v1::ServeResponse)> function) : answer(std::move(function)) {}
    void Work() {
      while (true) {
        v1::ServeResponse next;
        {
          absl::MutexLock lock(&mutex);
          mutex.Await(absl::Condition(
              +[](State* state)
                   ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->stopping || !state->queue.empty(); },
              this));
          if (stopping) return;
          next = std::move(queue.front());
          queue.pop_front();
        }
        answer(std::move(next));
      }
    }

    const std::function<void(v1::ServeResponse)> answer;
    absl::Mutex mutex;
    std::deque<v1::ServeResponse> queue ABSL_GUARDED_BY(mutex);
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };

  const std::shared_ptr<State> state_;
  const bool wait_;
  std::thread thread_;
};

// What the threads that answer use. A read of a file may take longer than the stream exists.
struct Connection {
  Connection(const Executor& answers, Channel* open) : executor(answers), stream(open) {}
  const Executor executor;
  absl::Mutex writing;
  Channel* stream ABSL_GUARDED_BY(writing);  // null: the stream has ended
};

// Answers the requests of an open stream.
void AnswerRequests(Channel& stream, const Executor& executor, const SuspensionWatch& watch,
                    const ServeOptions& options) {
  const auto connection = std::make_shared<Connection>(executor, &stream);
  const auto answer = [connection, &watch, &options](const v1::ServeResponse& request) {
    if (request.has_execute()) {  // then this thread ends before `watch` does
      if (watch.suspended()) return;
      if (options.log) options.log(Describe(request));
    }
    if (request.has_remove_files()) {
      // Do not remove files after a suspension: the run may have been retried, and then needs its checkpoints.
      // `watch` exists as long as the stream.
      absl::MutexLock lock(&connection->writing);
      if (connection->stream == nullptr || watch.suspended()) return;
    }
    v1::ServeRequest message;
    *message.mutable_answer() = connection->executor.Answer(request);
    absl::MutexLock lock(&connection->writing);
    if (connection->stream == nullptr) return;
    if (options.log && request.has_remove_files() && !request.remove_files().dry_run())
      options.log(Describe(request));
    if (options.log && !message.answer().error().empty())
      options.log(absl::StrCat("refused: ", message.answer().error()));
    connection->stream->Write(message);  // after an error, the next read fails
  };
  {
    // A filesystem that blocks must delay neither programs nor the next connection. All programs must have ended
    // before the agent connects again.
    Lane programs(answer, true), files(answer, false);
    v1::ServeResponse request;
    while (stream.Read(&request)) {
      Lane& lane = request.has_execute() ? programs : files;
      // This does not happen with a correct coordinator: its limit for pending requests is below the lane's.
      if (!lane.Add(std::move(request)) && options.log) options.log("too many requests; one was dropped");
    }
  }
  absl::MutexLock lock(&connection->writing);
  connection->stream = nullptr;
}

}  // namespace

grpc::Status Serve(v1::AgentService::Stub& stub, std::unique_ptr<grpc::ClientContext> context,
                   const ServeOptions& options) {
  const std::unique_ptr<Channel> stream = stub.Serve(context.get());
  v1::ServeRequest hello;
  hello.mutable_greeting()->set_version(options.version);
  hello.mutable_greeting()->set_host(options.host);
  v1::ServeResponse welcome;
  if (!stream->Write(hello) || !stream->Read(&welcome)) return stream->Finish();
  if (!welcome.has_welcome() || welcome.welcome().directory().empty()) {
    context->TryCancel();
    (void)stream->Finish();
    return {grpc::StatusCode::UNIMPLEMENTED, "the server has another version and did not accept the agent"};
  }
  const Executor executor({geteuid(), welcome.welcome().directory()}, *options.runner);
  // Continue after an error: each submission tries again and reports the error, and the user may have
  // repaired it by then.
  if (const absl::Status made = MakeUserDirectory(executor.user().directory); !made.ok() && options.log)
    options.log(std::string(made.message()));
  if (options.connected) options.connected();
  const SuspensionWatch watch(*context);
  AnswerRequests(*stream, executor, watch, options);
  return stream->Finish();
}

}  // namespace scalelab::agent
