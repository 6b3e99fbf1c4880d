#include "server/services/agent_service.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/rpc/reactors.h"
#include "server/scheduler/agent/agent_scheduler.h"
#include "server/services/agent_messages.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Limit of the number of messages that wait for a slow agent.
constexpr size_t kMaxUnsent = 64;

// Returns the caller, who may have an agent. The audit log gets a refusal.
absl::StatusOr<Identity> CallerOf(const Access& access, const grpc::ServerContextBase& context,
                                  const std::string& action) {
  absl::StatusOr<Identity> caller = access.CheckClient(context);
  if (!caller.ok()) {
    access.AuditUnknown(context, action, caller.status());
    return caller;
  }
  if (caller->MaySubmit()) return caller;
  const absl::Status refused = MakeError(
      absl::StatusCode::kPermissionDenied, "NOT_ALLOWED",
      absl::StrCat("the role or the token of ", caller->user, " only allows reading, so it needs no agent"));
  access.Audit(ClientCall(*std::move(caller), action, /*changes=*/false), refused);
  return refused;
}

// One connected agent. The hub may keep a reference to it after the call has ended.
class Stream final : public grpc::ServerBidiReactor<v1::ServeRequest, v1::ServeResponse>,
                     public AgentStream,
                     public std::enable_shared_from_this<Stream> {
 public:
  // Starts the stream. The stream owns itself until the call has ended.
  static Stream* Start(AgentHub& hub, std::string user, std::string directory) {
    const std::shared_ptr<Stream> stream(new Stream(hub, std::move(user)));
    stream->self_ = stream;
    v1::ServeResponse welcome;
    welcome.mutable_welcome()->set_directory(std::move(directory));
    stream->Write(std::move(welcome));
    stream->StartRead(&stream->read_);
    return stream.get();
  }

  void Send(int64_t id, const AgentRequest& request) override {
    v1::ServeResponse message;
    message.set_id(id);
    FillRequest(request, &message);
    Write(std::move(message));
  }

  void End(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(over_, true)) return;
    Finish(ToGrpc(why));
  }

 private:
  Stream(AgentHub& hub, std::string user) : hub_(hub), user_(std::move(user)) {}

  void Write(v1::ServeResponse message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    unsent_.push_back(std::move(message));
    if (unsent_.size() == 1) StartWrite(&unsent_.front());
    if (unsent_.size() > kMaxUnsent) {
      over_ = true;
      Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the agent does not read its requests"));
    }
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    unsent_.pop_front();
    if (over_) return;
    if (ok && !unsent_.empty()) StartWrite(&unsent_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Leave(absl::OkStatus());
    if (read_.has_greeting() && !greeted_) {
      greeted_ = true;
      spdlog::info("the agent of {} on {} has version {}", user_, read_.greeting().host(),
                   read_.greeting().version());
      hub_.Connect(user_, shared_from_this());
    } else if (read_.has_answer()) {
      const int64_t id = read_.answer().id();
      hub_.Answer(user_, this, id, ResultOf(*read_.mutable_answer()));
    } else {
      return Leave(absl::InvalidArgumentError("an agent sends one greeting, then answers"));
    }
    read_.Clear();
    StartRead(&read_);
  }

  void OnCancel() override { Leave(CallerGone()); }

  void OnDone() override {
    hub_.Disconnect(user_, this);
    const std::shared_ptr<Stream> last = std::move(self_);
  }

  void Leave(const absl::Status& why) {
    hub_.Disconnect(user_, this);
    End(why);
  }

  AgentHub& hub_;
  const std::string user_;
  std::shared_ptr<Stream> self_;  // set until OnDone
  v1::ServeRequest read_;         // owned by gRPC while a read is in flight
  bool greeted_ = false;          // used by OnReadDone only; one read at a time is in flight

  absl::Mutex mutex_;
  std::deque<v1::ServeResponse> unsent_ ABSL_GUARDED_BY(mutex_);  // the first one is being written
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

// A call that is refused.
class Refused final : public grpc::ServerBidiReactor<v1::ServeRequest, v1::ServeResponse> {
 public:
  explicit Refused(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<v1::ServeRequest, v1::ServeResponse>* AgentService::Serve(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<Identity> caller = CallerOf(access_, *context, "Serve");
  if (!caller.ok()) return new Refused(caller.status());
  if (hub_ == nullptr) {
    return new Refused(MakeError(absl::StatusCode::kFailedPrecondition, "NO_AGENTS",
                                 "this service runs all jobs under its own account, so that no agent is "
                                 "needed (jobs_run_as: service)"));
  }
  ClientCall connected(*caller, "Serve", /*changes=*/true);
  connected.SetDetail("an agent for the jobs of this user");
  access_.Audit(connected, absl::OkStatus());
  return Stream::Start(*hub_, caller->user, DirectoryOfUser(runs_dir_, caller->user));
}

grpc::ServerUnaryReactor* AgentService::GetAgent(grpc::CallbackServerContext* context,
                                                 const v1::GetAgentRequest*, v1::GetAgentResponse* response) {
  const absl::StatusOr<Identity> caller = CallerOf(access_, *context, "GetAgent");
  if (!caller.ok()) return Answer(context, caller.status());
  response->set_user(caller->user);
  response->set_needed(hub_ != nullptr);
  response->set_connected(hub_ != nullptr && hub_->Check(caller->user).ok());
  return Answer(context, absl::OkStatus());
}

}  // namespace scalelab::server
