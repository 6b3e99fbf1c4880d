#include "worker/event_follower.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "worker/backoff.h"

namespace scalelab::worker {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(500);      // maximum delay before lines are sent
constexpr absl::Duration kReadPause = absl::Milliseconds(20);  // shortest time between two reads of the files
constexpr size_t kFlushBytes = 256 << 10;  // pending bytes that are sent without waiting for the tick
constexpr size_t kBatchBytes = 768 << 10;  // limit for one rank in one request
constexpr size_t kRequestBytes = 1 << 20;  // limit for one request
constexpr size_t kReadBytes = 256 << 10;   // longer than the longest line

int64_t SizeOf(int fd) {
  struct stat status {};
  return fd >= 0 && fstat(fd, &status) == 0 ? status.st_size : 0;
}

}  // namespace

EventFollower::Stream::~Stream() {
  if (fd >= 0) close(fd);
}

EventFollower::EventFollower(EventLoop& loop, Send send)
    : loop_(loop),
      send_(std::move(send)),
      notify_fd_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      buffer_(kReadBytes),
      alive_(std::make_shared<bool>(true)) {
  if (notify_fd_ >= 0) {
    loop_.Watch(notify_fd_, [this] { OnNotify(); });
  } else {
    spdlog::warn("inotify is not available ({}): polling the event files twice a second", strerror(errno));
  }
}

EventFollower::~EventFollower() {
  for (EventLoop::TimerId timer : {tick_timer_, read_timer_, retry_timer_}) loop_.Cancel(timer);
  if (notify_fd_ >= 0) {
    loop_.Unwatch(notify_fd_);
    close(notify_fd_);
  }
}

void EventFollower::Follow(const std::string& token, const std::string& directory, int first_rank, int ranks,
                           bool fresh) {
  Source& source = sources_[token];
  for (int rank = first_rank; rank < first_rank + ranks; ++rank) {
    auto stream = std::make_unique<Stream>();
    stream->token = token;
    stream->rank = rank;
    stream->path = absl::StrCat(directory, "/events-", rank, ".jsonl");
    stream->known = fresh;
    source.streams.push_back(std::move(stream));
  }
  if (notify_fd_ >= 0) {
    // If this fails (no watches left, unsupported file system), the tick still finds the lines.
    source.watch = inotify_add_watch(notify_fd_, directory.c_str(), IN_MODIFY | IN_CREATE);
    if (source.watch >= 0) watches_[source.watch] = token;
  }
  if (tick_timer_ == 0) tick_timer_ = loop_.After(kTick, [this] { Tick(); });
  if (!fresh) MaybeSend(false);
}

void EventFollower::Finish(const std::string& token, std::function<void()> drained) {
  auto it = sources_.find(token);
  if (it == sources_.end()) return;
  it->second.drained = std::move(drained);
  for (auto& stream : it->second.streams) {
    stream->finishing = true;
    Read(*stream);
  }
  MaybeSend(false);
  // Post it, because the caller does not expect `drained` before Finish has returned.
  loop_.Post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) NotifyDrained();
  });
}

void EventFollower::Forget(const std::string& token) {
  auto it = sources_.find(token);
  if (it == sources_.end()) return;
  if (it->second.watch >= 0) {
    inotify_rm_watch(notify_fd_, it->second.watch);
    watches_.erase(it->second.watch);
  }
  dirty_.erase(token);
  sources_.erase(it);
}

void EventFollower::Retry() {
  if (retry_timer_ == 0) return;
  loop_.Cancel(retry_timer_);
  retry_timer_ = 0;
  MaybeSend(true);
}

void EventFollower::OnNotify() {
  alignas(inotify_event) char buffer[16384];
  ssize_t got;
  while ((got = read(notify_fd_, buffer, sizeof buffer)) > 0) {
    for (const char* at = buffer; at < buffer + got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      at += sizeof(inotify_event) + event->len;
      if (event->mask & IN_Q_OVERFLOW) {
        for (const auto& [token, source] : sources_) dirty_.insert(token);
      } else if (auto it = watches_.find(event->wd);
                 it != watches_.end() && event->len > 0 && strncmp(event->name, "events-", 7) == 0) {
        dirty_.insert(it->second);
      }
    }
  }
  if (dirty_.empty() || read_timer_ != 0) return;
  // Limits the rate: a rank may write a line every few microseconds.
  const absl::Duration pause = last_read_ + kReadPause - absl::Now();
  if (pause <= absl::ZeroDuration() || pause > kReadPause) return ReadDirty();
  read_timer_ = loop_.After(pause, [this] {
    read_timer_ = 0;
    ReadDirty();
  });
}

void EventFollower::Tick() {
  tick_timer_ = sources_.empty() ? 0 : loop_.After(kTick, [this] { Tick(); });
  for (auto& [token, source] : sources_) {
    for (auto& stream : source.streams) Read(*stream);
  }
  MaybeSend(true);
}

void EventFollower::ReadDirty() {
  last_read_ = absl::Now();
  for (const std::string& token : std::exchange(dirty_, {})) {
    for (auto& stream : sources_[token].streams) Read(*stream);
  }
  MaybeSend(false);
}

// Reads complete lines into the stream's batch until the batch is full or the file ends.
void EventFollower::Read(Stream& stream) {
  if (!stream.known || stream.fenced) return;
  if (stream.fd < 0) stream.fd = open(stream.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (stream.fd < 0) return;
  while (stream.builder.bytes() < kBatchBytes) {
    if (stream.skip_from > 0 && !SkipLongLine(stream)) return;
    const ssize_t got = pread(stream.fd, buffer_.data(), buffer_.size(), stream.read.position);
    if (got <= 0) return;
    const char* at = buffer_.data();
    const char* const end = at + got;
    while (stream.builder.bytes() < kBatchBytes) {
      const char* line_end = static_cast<const char*>(memchr(at, '\n', end - at));
      if (line_end == nullptr) break;
      stream.builder.Add({at, static_cast<size_t>(line_end - at)}, stream.read.line++);
      stream.read.position += line_end + 1 - at;
      at = line_end + 1;
    }
    if (at != buffer_.data()) continue;
    if (static_cast<size_t>(got) > kMaxLineBytes) {
      stream.skip_from = stream.read.position + got;
    } else if (stream.finishing && stream.read.position + got >= SizeOf(stream.fd)) {
      stream.builder.AddMalformed(stream.read.line++, "cut off: the file ends before the line does");
      stream.read.position += got;
    } else {
      return;
    }
  }
}

// Returns false if the end of the line is not in the file yet.
bool EventFollower::SkipLongLine(Stream& stream) {
  for (;;) {
    const ssize_t got = pread(stream.fd, buffer_.data(), buffer_.size(), stream.skip_from);
    if (got <= 0 && !stream.finishing) return false;
    const void* line_end = got > 0 ? memchr(buffer_.data(), '\n', got) : nullptr;
    if (got > 0 && line_end == nullptr) {
      stream.skip_from += got;
      continue;
    }
    stream.builder.AddMalformed(stream.read.line++, "longer than 64 KiB");
    stream.read.position = stream.skip_from;
    if (line_end != nullptr) stream.read.position += static_cast<const char*>(line_end) - buffer_.data() + 1;
    stream.skip_from = 0;
    return true;
  }
}

bool EventFollower::HasPending(const Stream& stream) {
  return !stream.fenced && (!stream.known || stream.read.position > stream.durable.position);
}

bool EventFollower::IsDrained(const Stream& stream) {
  return stream.fenced || (stream.finishing && stream.known && stream.durable == stream.read &&
                           stream.read.position >= SizeOf(stream.fd));
}

void EventFollower::MaybeSend(bool flush) {
  if (!in_flight_.empty() || retry_timer_ != 0) return;
  size_t waiting = 0;
  for (const auto& [token, source] : sources_) {
    for (const auto& stream : source.streams) {
      if (!HasPending(*stream)) continue;
      waiting += stream->builder.bytes();
      flush = flush || !stream->known || stream->finishing || stream->builder.urgent();
    }
  }
  if (!flush && waiting < kFlushBytes) return;

  v1::ReportEventsRequest request;
  size_t bytes = 0;
  for (auto& [token, source] : sources_) {
    for (auto& stream : source.streams) {
      if (!HasPending(*stream) || bytes >= kRequestBytes) continue;
      // Goes into the next request.
      if (bytes > 0 && bytes + stream->builder.bytes() > kRequestBytes) continue;
      bytes += stream->builder.bytes() + token.size() + 40;
      v1::EventBatch& batch = *request.add_batches();
      batch = stream->builder.Take();
      batch.set_token(token);
      batch.set_rank(stream->rank);
      batch.set_begin_position(stream->durable.position);
      batch.set_begin_line(stream->durable.line);
      batch.set_end_position(stream->read.position);
      batch.set_end_line(stream->read.line);
      in_flight_.push_back({token, stream->rank, stream->durable, stream->read});
    }
  }
  if (in_flight_.empty()) return;
  send_(request,
        [this, alive = std::weak_ptr<bool>(alive_)](absl::StatusOr<v1::ReportEventsResponse> answer) {
          if (!alive.expired()) OnAnswer(std::move(answer));
        });
}

void EventFollower::OnAnswer(absl::StatusOr<v1::ReportEventsResponse> answer) {
  const std::vector<Sent> sent = std::exchange(in_flight_, {});
  if (answer.ok() && answer->streams_size() != static_cast<int>(sent.size())) {
    answer = absl::InternalError("the coordinator's answer does not cover every batch");
  }
  if (!answer.ok()) {
    // The coordinator may or may not have stored the batch: send again from the last position known
    // to be durable.
    for (const Sent& part : sent) {
      if (Stream* stream = Find(part.token, part.rank)) Rewind(*stream, stream->durable);
    }
    if (failures_ == 0)
      spdlog::warn("Events could not be delivered; retrying: {}", answer.status().ToString());
    WaitAndRetry();
  } else {
    bool moved = false;
    for (size_t i = 0; i < sent.size(); ++i) moved |= Apply(sent[i], answer->streams(static_cast<int>(i)));
    if (!moved) {
      WaitAndRetry();
    } else if (std::exchange(failures_, 0) > 0) {
      spdlog::info("Events are delivered again");
    }
  }
  for (const Sent& part : sent) {
    if (Stream* stream = Find(part.token, part.rank)) Read(*stream);
  }
  MaybeSend(false);
  NotifyDrained();
}

// Returns whether the answer made progress on the stream.
bool EventFollower::Apply(const Sent& sent, const v1::ReportEventsResponse::Stream& state) {
  Stream* stream = Find(sent.token, sent.rank);
  if (stream == nullptr) return true;
  if (state.outcome() == v1::ReportEventsResponse::Stream::FENCED) {
    spdlog::info("Attempt {} rank {}: superseded; no more of its events are sent", sent.token, sent.rank);
    stream->fenced = true;
    return true;
  }
  const bool asked = !std::exchange(stream->known, true);
  stream->durable = {state.position(), state.line()};
  if (stream->durable != sent.end) Rewind(*stream, stream->durable);
  return asked || stream->durable != sent.begin;
}

void EventFollower::WaitAndRetry() {
  retry_timer_ = loop_.After(BackoffAfter(++failures_), [this] {
    retry_timer_ = 0;
    MaybeSend(true);
  });
}

void EventFollower::Rewind(Stream& stream, Place place) {
  stream.read = place;
  stream.skip_from = 0;
  stream.builder.Take();
}

void EventFollower::NotifyDrained() {
  std::vector<std::function<void()>> callbacks;
  for (auto& [token, source] : sources_) {
    if (!source.drained) continue;
    bool all = true;
    for (const auto& stream : source.streams) all = all && IsDrained(*stream);
    if (all) callbacks.push_back(std::exchange(source.drained, nullptr));
  }
  for (auto& drained : callbacks) drained();  // may call Forget
}

EventFollower::Stream* EventFollower::Find(const std::string& token, int rank) {
  auto it = sources_.find(token);
  if (it == sources_.end()) return nullptr;
  for (auto& stream : it->second.streams) {
    if (stream->rank == rank) return stream.get();
  }
  return nullptr;
}

EventFollower::Send SendThrough(CoordinatorClient& client, EventLoop& loop) {
  return [&client, &loop](const v1::ReportEventsRequest& request, EventFollower::Answer answer) {
    client.ReportEvents(request, [&loop, answer](absl::StatusOr<v1::ReportEventsResponse> got) {
      loop.Post([answer, got = std::move(got)] { answer(got); });
    });
  };
}

}  // namespace scalelab::worker
