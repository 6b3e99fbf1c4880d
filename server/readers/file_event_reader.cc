#include "server/readers/file_event_reader.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "events/event_file.h"
#include "events/software.h"
#include "files/regular_file.h"
#include "proto/utf8.h"
#include "server/readers/filesystem_of.h"

namespace scalelab::server {
namespace {

// The coordinator makes at most this number of requests at a time, half of them below one directory of runs. It abandons
// requests that are blocked. A filesystem takes at most half of the threads; further requests on it wait.
constexpr int kThreads = 16;
constexpr size_t kQueue = 1000;
constexpr size_t kPartBytes = 1 << 20;    // bytes of parsed lines in one answer
constexpr size_t kReadBytes = 256 << 10;  // longer than the longest line
constexpr size_t kRecordBytes = 64 << 10;

// Returns how the attempt ended, as its worker has recorded it in exit.json; nothing if there is no valid record.
std::optional<v1::SynchronizeRequest::AttemptStatus> ReadEnd(const EventRequest& request) {
  const auto json = nlohmann::json::parse(ReadHead(request.directory + "/exit.json", kRecordBytes), nullptr,
                                          /*allow_exceptions=*/false);
  v1::SynchronizeRequest::AttemptStatus status;
  try {
    if (json.at("attempt").get<std::string>() != request.token) return std::nullopt;
    v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED;
    if (!v1::Attempt::Cause_Parse(json.at("cause").get<std::string>(), &cause)) return std::nullopt;
    status.set_token(request.token);
    status.set_state(v1::SynchronizeRequest::AttemptStatus::ENDED);
    status.set_exit_status(json.at("exit_status").get<int>());
    status.set_stopped(json.at("stopped").get<bool>());
    status.set_cause(cause);
    status.set_message(ValidUtf8(json.at("message").get<std::string>()));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return status;
}

// Reads lines of one event file into `part`. Returns whether the file has been read to its end; UNAVAILABLE after an
// error that may be temporary.
absl::StatusOr<bool> ReadFile(const EventRequest& request, int rank, size_t limit, std::vector<char>& buffer,
                              EventPart& part, size_t* bytes) {
  const EventPlace begin = request.places[rank - request.first_rank];
  const std::string name = absl::StrCat("events-", rank, ".jsonl");
  // Retry errors without a limit here: the coordinator decides how long they are retried.
  EventFile file(absl::StrCat(request.directory, "/", name), /*unreadable=*/absl::InfiniteDuration());
  file.Seek({begin.position, begin.line});
  file.Finish(absl::ZeroDuration());
  BatchBuilder builder;
  while (file.Read(builder, limit, buffer, absl::ZeroDuration())) {
  }
  *bytes += builder.bytes();
  const bool full = builder.bytes() >= limit;
  const EventFile::Place end = file.place();
  if (part.problem.empty()) part.problem = file.problem();
  if (end.position > begin.position) {
    v1::EventBatch batch = builder.Take();
    batch.set_token(request.token);
    batch.set_rank(rank);
    batch.set_begin_position(begin.position);
    batch.set_begin_line(begin.line);
    batch.set_end_position(end.position);
    batch.set_end_line(end.line);
    absl::StatusOr<ParsedBatch> parsed = ParseBatch(batch);
    if (!parsed.ok()) {
      if (part.problem.empty()) part.problem = absl::StrCat(name, ": ", parsed.status().message());
      return true;  // reading it again would fail again
    }
    part.batches.push_back(*std::move(parsed));
  }
  if (file.AtEnd()) return true;
  if (full) return false;
  return absl::UnavailableError(absl::StrCat(name, " cannot be read: ", file.error()));
}

}  // namespace

absl::StatusOr<EventPart> ReadEventPart(const EventRequest& request) {
  EventPart part;
  part.next_rank = request.first_rank;
  const int ranks = request.first_rank + static_cast<int>(request.places.size());
  std::vector<char> buffer(kReadBytes);
  for (size_t bytes = 0; part.next_rank < ranks && bytes < kPartBytes; ++part.next_rank) {
    const auto at_end = ReadFile(request, part.next_rank, kPartBytes - bytes, buffer, part, &bytes);
    const bool progress = part.next_rank > request.first_rank || !part.batches.empty();
    if (!at_end.ok() && !progress) return at_end.status();
    if (!at_end.ok() || !*at_end) return part;
  }
  if (part.next_rank < ranks) return part;
  part.end = ReadEnd(request);
  const std::string events = absl::StrCat(request.directory, "/events-0.jsonl");
  const v1::FrameworkEnvironment* environment = request.environment ? &*request.environment : nullptr;
  for (auto& [name, value] : SoftwareOf(environment, events)) part.software[name] = value;
  return part;
}

FileEventReader::FileEventReader() : pool_("reads of event files", kThreads, kQueue) {}

void FileEventReader::Read(EventRequest request, Done done) {
  // The core thread calls this function, so a thread of the pool reads the mount table.
  pool_.Run([this, request = std::move(request), done = std::move(done)](absl::Status ready) mutable {
    if (!ready.ok()) return done(std::move(ready));
    Subject subject{"", FilesystemOf(request.directory)};
    auto read = [request = std::move(request), done = std::move(done)](absl::Status may) mutable {
      done(may.ok() ? ReadEventPart(request) : absl::StatusOr<EventPart>(std::move(may)));
    };
    pool_.Run(std::move(read), std::move(subject));
  });
}

}  // namespace scalelab::server
