#include "server/services/archive_service.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "db/archive/archive.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/identity/permissions.h"
#include "server/identity/secrets.h"
#include "server/services/lookup.h"
#include "server/services/study_service.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr size_t kArchivePiece = 256 << 10;
// The pool makes and stores one archive at a time, so that its other threads remain for other large requests.
constexpr char kSubject[] = "archives";
// Each restore stores its upload on disk.
constexpr int kMaxRestores = 4;

// Returns the seal of an archive. The prefix distinguishes seals from the secrets of allocations, which use
// the same key.
std::string SealOf(const Auth& auth, absl::string_view sha256) {
  return Hmac(auth.key(), absl::StrCat("archive ", sha256));
}

// Adds a reason to UNAVAILABLE. A client interprets UNAVAILABLE without a reason as an unreachable server.
absl::Status ForClients(const absl::Status& status) {
  if (!absl::IsUnavailable(status) || !ReasonOf(status).empty()) return status;
  return MakeError(absl::StatusCode::kUnavailable, "TRY_AGAIN", status.message());
}

absl::Status CheckOrigin(const db::Origin& origin) {
  constexpr size_t kLongest = 300;
  for (const std::string* text : {&origin.server, &origin.study, &origin.sha256}) {
    if (text->size() > kLongest)
      return absl::InvalidArgumentError(
          absl::StrCat("a text of origin has ", text->size(), " bytes; at most ", kLongest, " are allowed"));
  }
  return absl::OkStatus();
}

// A temporary file without a name.
class UnnamedFile {
 public:
  explicit UnnamedFile(int fd) : fd_(fd) {}
  ~UnnamedFile() { close(fd_); }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  int fd() const { return fd_; }

  // Reads the next piece. Returns false at the end.
  absl::StatusOr<bool> Read(std::string* piece) {
    piece->resize(kArchivePiece);
    ssize_t got = -1;
    do {
      got = pread(fd_, piece->data(), piece->size(), offset_);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
      return absl::UnavailableError(absl::StrCat("cannot read the archive: ", std::strerror(errno)));
    piece->resize(static_cast<size_t>(got));
    offset_ += got;
    return got > 0;
  }
  absl::Status Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the disk of scalelabd has no space for the archive (", std::strerror(errno),
                         "); nothing was stored"));
      }
      bytes.remove_prefix(static_cast<size_t>(written));
      offset_ += written;
    }
    return absl::OkStatus();
  }
  int64_t size() const { return offset_; }
  int64_t FreeBytes() const {
    struct statvfs disk {};
    if (fstatvfs(fd_, &disk) != 0) return 0;
    return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  }

 private:
  const int fd_;
  int64_t offset_ = 0;
};

// A call of RestoreArchive. It receives the file, checks it, reserves ids and writes the rows. Threads of a
// pool do the work in steps, and stop when the client has disconnected.
class Upload final : public grpc::ServerReadReactor<v1::RestoreArchiveRequest>,
                     public std::enable_shared_from_this<Upload> {
 public:
  struct Context {
    Coordinator& coordinator;
    const HandlerContext& handler;
    const Auth& auth;
    std::shared_ptr<std::atomic<int>> restores;
    std::shared_ptr<ClientCall> client;
    v1::RestoreArchiveResponse* response;  // owned by gRPC; valid until the call has ended
  };

  // Starts the upload. The upload owns itself until the call has ended.
  static Upload* Start(Context context) {
    const std::shared_ptr<Upload> upload(new Upload(std::move(context)));
    upload->self_ = upload;
    upload->OnPool([](Upload& u) { return u.Open(); });
    return upload.get();
  }

 private:
  explicit Upload(Context context) : context_(std::move(context)) { ++*context_.restores; }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      idle_.Cancel();
    }
    if (ok) {
      OnPool([](Upload& u) { return u.Append(); });
    } else {
      OnPool([](Upload& u) { return u.Check(); });
    }
  }
  void OnCancel() override { End(CallerGone()); }
  void OnDone() override {
    const std::shared_ptr<Upload> last = std::move(self_);
    absl::MutexLock lock(&mutex_);
    idle_.Cancel();
  }

  // Calls `work` on a thread of the pool, unless the call has ended. An error ends the call.
  void OnPool(absl::AnyInvocable<absl::Status(Upload&)> work) {
    context_.handler.pools.heavy.Run(
        [upload = shared_from_this(), work = std::move(work)](absl::Status status) mutable {
          if (upload->over()) return;
          if (status.ok()) status = WithinMemory([&]() -> absl::Status { return work(*upload); });
          if (!status.ok()) upload->End(status);
        },
        {kSubject, ""}, context_.client->pool_client());
  }

  absl::Status Open() {
    if (*context_.restores > kMaxRestores) {
      return absl::ResourceExhaustedError(
          absl::StrCat("scalelabd restores ", kMaxRestores, " archives already; try again in a minute"));
    }
    const absl::StatusOr<int> fd = db::OpenUnnamedFile(context_.handler.store);
    if (!fd.ok()) return fd.status();
    file_.emplace(*fd);
    most_bytes_ = file_->FreeBytes() / 2;
    Receive();
    return absl::OkStatus();
  }

  void Receive() {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    idle_ = context_.handler.pools.timers.Call(context_.handler.call_limit, [upload = shared_from_this()] {
      upload->End(absl::DeadlineExceededError("the client has stopped sending the archive"));
    });
    message_.Clear();
    StartRead(&message_);
  }

  // Other uploads use the same disk, so its free space may become smaller after the beginning of this one.
  int64_t MostBytes() const { return std::min(most_bytes_, file_->FreeBytes()); }
  absl::Status CheckSpace(int64_t bytes) const {
    const int64_t most = MostBytes();
    return bytes <= most ? absl::OkStatus() : NoSpace(most);
  }
  static absl::Status NoSpace(int64_t most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the archive needs more than half of the free space on the disk of scalelabd (", most,
                     " bytes); nothing was stored; free some space"));
  }

  absl::Status Append() {
    if (message_.has_origin() && !origin_.has_value()) {
      origin_ = db::Origin{message_.origin().server(), message_.origin().study(), message_.origin().sha256(),
                           context_.client->caller().user, absl::ToUnixMicros(absl::Now())};
      if (auto s = CheckOrigin(*origin_); !s.ok()) return s;
    }
    if (auto s = CheckSpace(file_->size() + static_cast<int64_t>(message_.data().size())); !s.ok()) return s;
    if (auto s = file_->Write(message_.data()); !s.ok()) return s;
    Receive();
    return absl::OkStatus();
  }

  absl::Status Check() {
    // A small upload can have a very large content, so its size is limited before all of it is read.
    const int64_t most = MostBytes();
    absl::StatusOr<db::ArchiveHead> head = db::CheckArchive(file_->fd(), most, [this] { return over(); });
    if (absl::IsResourceExhausted(head.status())) return NoSpace(most);
    if (!head.ok()) return head.status();
    const db::StudyRow& study = head->study;
    context_.client->SetTarget(absl::StrCat("archive of ", study.name, " of ", study.owner));
    const bool own = SameSecret(head->seal, SealOf(context_.auth, head->sealed));
    if (auto s = MayRestore(context_.client->caller(), study.owner, own); !s.ok()) return s;
    if (origin_.has_value()) {
      const auto present = db::FindArchived(context_.handler.store, study);
      if (!present.ok()) return present.status();
      if (*present != 0) return EndWith(*present, /*existed=*/true);
    }
    if (auto s = CheckSpace(head->content_bytes); !s.ok()) return s;
    v1::StudySpec spec;
    if (auto s = FromJson(study.spec, &spec); !s.ok()) return s;
    // A copy, because the compiler may move `head` before it reads the first argument.
    const auto ids = head->ids;
    context_.coordinator.ReserveIds(
        ids, [upload = shared_from_this(), head = *std::move(head)](absl::StatusOr<db::FirstIds> first) {
          if (!first.ok()) return upload->End(first.status());
          upload->OnPool([head, first = *first](Upload& u) {
            u.restore_.emplace(u.context_.handler.store, u.file_->fd(), head, first, u.origin_);
            return u.Continue();
          });
        });
    return absl::OkStatus();
  }

  absl::Status Continue() {
    const absl::StatusOr<bool> more = restore_->Step();
    if (!more.ok()) return more.status();
    if (*more) {
      OnPool([](Upload& u) { return u.Continue(); });
      return absl::OkStatus();
    }
    const int64_t id = restore_->study_id();
    restore_.reset();
    spdlog::info("restored {} from an archive", StudyName(id));
    return EndWith(id, /*existed=*/false);
  }

  // Ends the call with the study as its response.
  absl::Status EndWith(int64_t id, bool existed) {
    context_.client->SetTarget(StudyName(id));
    v1::Study study;
    if (auto s = ReadStudy(context_.handler.store, id, &study); !s.ok()) return s;
    End(absl::OkStatus(), &study, existed);
    return absl::OkStatus();
  }

  bool over() const {
    absl::MutexLock lock(&mutex_);
    return over_;
  }
  void End(const absl::Status& status, v1::Study* study = nullptr, bool existed = false) {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(over_, true)) return;
      if (study != nullptr) *context_.response->mutable_study() = std::move(*study);
      context_.response->set_existed(existed);
      idle_.Cancel();
    }
    --*context_.restores;  // before the client is answered, so that its next restore is not refused
    context_.handler.access.Audit(*context_.client, status);
    Finish(ToGrpc(ForClients(status)));
  }

  const Context context_;
  std::shared_ptr<Upload> self_;       // set until OnDone
  v1::RestoreArchiveRequest message_;  // owned by gRPC while a read is in flight
  std::optional<UnnamedFile> file_;
  int64_t most_bytes_ = 0;
  std::optional<db::Origin> origin_;
  std::optional<db::Restore> restore_;

  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Timers::Timer idle_ ABSL_GUARDED_BY(mutex_);  // timeout of the read in flight
};

class RefusedUpload final : public grpc::ServerReadReactor<v1::RestoreArchiveRequest> {
 public:
  explicit RefusedUpload(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

// Returns the client of a call that the audit log records even if the call succeeds.
template <typename Response>
absl::StatusOr<std::shared_ptr<ClientCall>> AuditedClient(const HandlerContext& handler,
                                                          const grpc::CallbackServerContext& context) {
  const auto client = BeginStream<Response>(handler, context);
  if (!client.ok()) return client.status();
  return std::make_shared<ClientCall>((*client)->caller(), ActionOf<Response>(), /*changes=*/true);
}

}  // namespace

grpc::ServerWriteReactor<v1::ReadArchiveResponse>* ArchiveService::ReadArchive(
    grpc::CallbackServerContext* context, const v1::ReadArchiveRequest* request) {
  using Stream = GeneratedStream<v1::ReadArchiveResponse>;
  const auto client = AuditedClient<v1::ReadArchiveResponse>(handler_, *context);
  if (!client.ok()) return Stream::Fail(client.status());
  const auto make = [this, client = *client, name = request->name(),
                     publish = request->publish()]() -> absl::StatusOr<std::shared_ptr<UnnamedFile>> {
    const auto study = FindStudyToControl(handler_.store, *client, name);
    if (!study.ok()) return study.status();
    const absl::StatusOr<int> fd = db::OpenUnnamedFile(handler_.store);
    if (!fd.ok()) return fd.status();
    auto file = std::make_shared<UnnamedFile>(*fd);
    const auto seal = [this](absl::string_view sha256) { return SealOf(auth_, sha256); };
    if (auto s = db::WriteArchive(handler_.store, study->id, seal, *fd, publish); !s.ok()) return s;
    return file;
  };
  // The first step writes the whole archive to a file; the other steps read the file.
  return Stream::Start(handler_.pools.heavy, handler_.pools.timers, **client, handler_.call_limit,
                       [this, client = *client, make, file = std::shared_ptr<UnnamedFile>()](
                           v1::ReadArchiveResponse* response) mutable -> absl::StatusOr<bool> {
                         if (file == nullptr) {
                           auto made = make();
                           handler_.access.Audit(*client, made.status());
                           if (!made.ok()) return ForClients(made.status());
                           file = *std::move(made);
                         }
                         return file->Read(response->mutable_data());
                       },
                       {kSubject, ""});
}

grpc::ServerReadReactor<v1::RestoreArchiveRequest>* ArchiveService::RestoreArchive(
    grpc::CallbackServerContext* context, v1::RestoreArchiveResponse* response) {
  const auto client = AuditedClient<v1::RestoreArchiveResponse>(handler_, *context);
  if (!client.ok()) return new RefusedUpload(client.status());
  // The owner of the study is known only after the upload. A caller who may not restore any study is refused before it.
  const Identity& caller = (*client)->caller();
  if (auto s = MayRestore(caller, caller.user, /*own=*/true); !s.ok()) {
    handler_.access.Audit(**client, s);
    return new RefusedUpload(s);
  }
  return Upload::Start({coordinator_, handler_, auth_, restores_, *client, response});
}

}  // namespace scalelab::server
