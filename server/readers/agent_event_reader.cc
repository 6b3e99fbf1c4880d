#include "server/readers/agent_event_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/readers/file_event_reader.h"
#include "server/scheduler/agent/agent_scheduler.h"

namespace scalelab::server {
namespace {

// The requests to one agent take at most half of the threads.
constexpr int kAgentThreads = 8;
constexpr size_t kAgentQueue = 1000;
constexpr int64_t kPiece = 1 << 20;    // bytes of one request to the agent
constexpr int64_t kMaxCopy = 4 << 20;  // bytes of one event file; the coordinator requests the rest later
constexpr int64_t kHead = 64 << 10;    // bytes that are read of the beginning of a file

// Writes `data` at `offset` of a sparse file. Nothing is written before `offset`.
absl::Status WriteAt(const std::string& path, const std::string& data, int64_t offset) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && ftruncate(fd, offset) == 0 &&
                       pwrite(fd, data.data(), data.size(), offset) == static_cast<ssize_t>(data.size());
  if (fd >= 0) close(fd);
  return written ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// A copy of one attempt's files.
class Copy {
 public:
  Copy(AgentHub& hub, std::string user, const EventRequest& request, std::string folder)
      : hub_(hub), user_(std::move(user)), request_(request), folder_(std::move(folder)) {}

  absl::StatusOr<EventPart> Read() {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot create ", folder_, ": ", error.message()));
    absl::Cleanup remove = [this] {
      std::error_code ignored;
      std::filesystem::remove_all(folder_, ignored);
    };
    EventRequest copy = request_;
    copy.directory = folder_;
    if (request_.environment) {
      if (auto s = CopyHead("events-0.jsonl"); !s.ok()) return s;
    }
    bool complete = true;
    size_t ranks = 0;
    for (; ranks < request_.places.size() && complete; ++ranks) {
      const absl::StatusOr<bool> copied =
          CopyEvents(request_.first_rank + static_cast<int>(ranks), request_.places[ranks].position);
      if (!copied.ok()) return copied.status();
      complete = *copied;
    }
    if (complete) {
      if (auto s = CopyHead("exit.json"); !s.ok()) return s;
    }
    copy.places.resize(ranks);
    absl::StatusOr<EventPart> part = ReadEventPart(copy);
    if (complete || !part.ok()) return part;
    // The last file was not copied to its end, so the next request must continue with it.
    part->next_rank = std::min(part->next_rank, request_.first_rank + static_cast<int>(ranks) - 1);
    part->end.reset();
    part->software.clear();
    return part;
  }

 private:
  // Reads from the agent. Returns an error that may be temporary; nothing for a file that does not exist.
  absl::StatusOr<std::string> Ask(const std::string& name, int64_t offset, int64_t length) {
    absl::StatusOr<std::string> data = hub_.ReadFile(user_, request_.directory, name, offset, length);
    if (absl::IsNotFound(data.status())) return std::string();
    if (data.ok()) return data;
    if (absl::Status connected = hub_.Check(user_); !connected.ok()) return connected;
    return absl::UnavailableError(data.status().message());
  }

  absl::Status CopyHead(const std::string& name) {
    const absl::StatusOr<std::string> data = Ask(name, 0, kHead);
    if (!data.ok() || data->empty()) return data.status();
    return WriteAt(absl::StrCat(folder_, "/", name), *data, 0);
  }

  // Copies complete lines, if there are any. Returns whether the file has been copied to its end.
  absl::StatusOr<bool> CopyEvents(int rank, int64_t position) {
    const std::string name = absl::StrCat("events-", rank, ".jsonl");
    std::string data;
    bool at_end = false;
    while (!at_end && static_cast<int64_t>(data.size()) < kMaxCopy) {
      const auto piece = Ask(name, position + static_cast<int64_t>(data.size()), kPiece);
      if (!piece.ok()) return piece.status();
      at_end = piece->empty();
      data += *piece;
    }
    if (!at_end && data.rfind('\n') != std::string::npos) data.resize(data.rfind('\n') + 1);
    if (data.empty() && position == 0) return at_end;
    if (auto s = WriteAt(absl::StrCat(folder_, "/", name), data, position); !s.ok()) return s;
    return at_end;
  }

  AgentHub& hub_;
  const std::string user_;
  const EventRequest& request_;
  const std::string folder_;
};

}  // namespace

AgentEventReader::AgentEventReader(AgentHub& hub, std::string runs_dir, std::string spool, EventReader& here)
    : hub_(hub),
      runs_dir_(std::move(runs_dir)),
      spool_(std::move(spool)),
      here_(here),
      pool_("reads of event files", kAgentThreads, kAgentQueue) {
  std::error_code ignored;
  std::filesystem::remove_all(spool_, ignored);
}

void AgentEventReader::Read(EventRequest request, Done done) {
  const std::string user = UserOfDirectory(runs_dir_, request.directory);
  if (user.empty()) return here_.Read(std::move(request), std::move(done));
  pool_.Run(
      [this, user, request = std::move(request), done = std::move(done)](absl::Status ready) mutable {
        if (!ready.ok()) return done(std::move(ready));
        const std::string folder = absl::StrCat(spool_, "/", request.token, "-", request.number);
        done(Copy(hub_, user, request, folder).Read());
      },
      {"", "agent of " + user});
}

}  // namespace scalelab::server
