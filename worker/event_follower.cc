#include "worker/event_follower.h"

#include <errno.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "planted/bug.h"
#include "spdlog/spdlog.h"
#include "worker/backoff.h"

namespace scalelab::worker {
namespace {

constexpr absl::Duration kTick =
    absl::Milliseconds(500);  // maximum delay before lines that were read are sent
// Longest time, in ticks, between two reads of a file without new lines: 5 s if inotify has reported a change of the file,
// 2 s otherwise.
constexpr int kLongestPause = 10, kLongestPauseWithoutNotice = 4;
constexpr absl::Duration kReadPause =
    absl::Milliseconds(20);  // shortest time between two reads of the files, or of inotify
// Shortest time between two requests: the last lines of short attempts that end together share one.
constexpr absl::Duration kSendPause = absl::Milliseconds(5);
constexpr size_t kFlushBytes = 256 << 10;  // pending bytes that are sent without waiting for the tick
constexpr size_t kBatchBytes = 768 << 10;  // limit for one rank in one request
constexpr size_t kRequestBytes = 1 << 20;  // limit for one request
constexpr size_t kReadBytes = 256 << 10;   // longer than the longest line

constexpr int kMaxRefusals = 3;  // refusals of one stream's lines, see Limits::refused

// Returns whether the error concerns the contents of a request, so that the same request would fail again.
// The coordinator returns other errors for problems of its own.
bool IsRefusal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsInternal(status) || absl::IsUnimplemented(status);
}

}  // namespace

EventFollower::EventFollower(EventLoop& loop, Send send, Limits limits)
    : loop_(loop),
      send_(std::move(send)),
      limits_(limits),
      notify_fd_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      buffer_(kReadBytes),
      alive_(std::make_shared<bool>(true)) {
  if (notify_fd_ >= 0) {
    loop_.Watch(notify_fd_, [this] { OnNotify(); });
  } else {
    spdlog::warn("inotify is not available ({}): new events are found up to 2 s later", strerror(errno));
  }
}

EventFollower::~EventFollower() {
  for (EventLoop::TimerId timer : {tick_timer_, notify_timer_, read_timer_, retry_timer_, send_timer_})
    loop_.Cancel(timer);
  if (notify_fd_ >= 0) {
    if (notify_timer_ == 0) loop_.Unwatch(notify_fd_);
    close(notify_fd_);
  }
}

void EventFollower::Follow(const std::string& token, const std::string& directory, int first_rank, int ranks,
                           bool fresh, Observe observe) {
  Source& source = sources_[token];
  for (int rank = first_rank; rank < first_rank + ranks; ++rank) {
    source.streams.push_back(std::make_unique<Stream>(
        token, rank, absl::StrCat(directory, "/events-", rank, ".jsonl"), fresh, limits_.unreadable));
  }
  if (ranks > 0) source.streams.front()->observe = std::move(observe);
  if (notify_fd_ >= 0) {
    // If this fails (no watches left, unsupported filesystem), Tick still finds the lines.
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
  it->second.finishing = true;
  for (auto& stream : it->second.streams) {
    stream->file.Finish(loop_.Now());
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
  sources_.erase(it);
}

std::string EventFollower::Problem(const std::string& token) const {
  auto it = sources_.find(token);
  if (it == sources_.end()) return "";
  std::string first;
  int others = 0;
  for (const auto& stream : it->second.streams) {
    if (stream->file.problem().empty()) continue;
    if (first.empty()) {
      first = stream->file.problem();
    } else {
      ++others;
    }
  }
  if (others > 0) absl::StrAppend(&first, " (", others, " more event files have a problem)");
  return first;
}

void EventFollower::Retry() {
  if (retry_timer_ == 0) return;
  loop_.Cancel(retry_timer_);
  retry_timer_ = 0;
  last_send_ = absl::ZeroDuration();
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
        for (auto& [token, source] : sources_) {
          for (auto& stream : source.streams) stream->changed = true;
        }
        ReadLater();
      } else if (event->mask & IN_IGNORED) {
        OnWatchEnded(event->wd);
      } else if (auto it = watches_.find(event->wd); it != watches_.end() && event->len > 0) {
        OnChange(sources_[it->second], event->name);
      }
    }
  }
  // A directory changes several times while an attempt is launched; one wake-up is enough for these changes.
  loop_.Unwatch(notify_fd_);
  notify_timer_ = loop_.After(kReadPause, [this] {
    notify_timer_ = 0;
    loop_.Watch(notify_fd_, [this] { OnNotify(); });
  });
}

// Handles a change of the file `name` in the directory of the attempt.
void EventFollower::OnChange(Source& source, const char* name) {
  absl::string_view rest = name;
  int rank = 0;
  if (!absl::ConsumePrefix(&rest, "events-") || !absl::ConsumeSuffix(&rest, ".jsonl") ||
      !absl::SimpleAtoi(rest, &rank))
    return;
  Stream* stream = Find(source, rank);
  if (stream == nullptr) return;
  stream->changed = stream->notified = true;
  ReadLater();
}

// Handles that the kernel has removed a watch, because the directory was deleted or its filesystem was unmounted.
void EventFollower::OnWatchEnded(int watch) {
  const auto it = watches_.find(watch);
  if (it == watches_.end()) return;
  Source& source = sources_[it->second];
  source.watch = -1;
  for (auto& stream : source.streams) stream->notified = false;
  watches_.erase(it);
}

// Limits the rate: a rank may write a line every few microseconds.
void EventFollower::ReadLater() {
  if (read_timer_ != 0) return;
  read_timer_ = loop_.After(last_read_ + kReadPause - loop_.Now(), [this] {
    read_timer_ = 0;
    ReadChanged();
  });
}

void EventFollower::Tick() {
  tick_timer_ = sources_.empty() ? 0 : loop_.After(kTick, [this] { Tick(); });
  for (auto& [token, source] : sources_) {
    for (auto& stream : source.streams) {
      if (source.finishing) {
        Read(*stream);
      } else {
        ReadIfDue(*stream);
      }
    }
  }
  MaybeSend(true);
  NotifyDrained();  // a file may have been given up
}

// Reads the file if its pause is over. Doubles the pause if there is no new line.
void EventFollower::ReadIfDue(Stream& stream) {
  const int longest = stream.notified ? kLongestPause : kLongestPauseWithoutNotice;
  stream.wait = std::min(stream.wait, longest);
  if (--stream.wait > 0) return;
  const int pause = stream.pause;
  const Place before = stream.file.place();
  Read(stream);
  if (stream.file.place() == before && stream.file.error().empty())
    stream.pause = std::min(2 * pause, longest);
  stream.wait = stream.pause;
}

void EventFollower::ReadChanged() {
  last_read_ = loop_.Now();
  for (auto& [token, source] : sources_) {
    for (auto& stream : source.streams) {
      if (std::exchange(stream->changed, false)) Read(*stream);
    }
  }
  MaybeSend(false);
  NotifyDrained();
}

// Reads complete lines into the stream's batch until the batch is full or the file ends.
void EventFollower::Read(Stream& stream) {
  if (!stream.known || stream.fenced || stream.query) return;
  const Place before = stream.file.place();
  const bool more = stream.file.Read(stream.builder, kBatchBytes, buffer_, loop_.Now());
  if (stream.file.place() != before) stream.pause = stream.wait = 1;
  if (!more) return;
  stream.changed = true;
  ReadLater();
}

bool EventFollower::HasPending(const Stream& stream) {
  return !stream.fenced && (!stream.known || stream.query || stream.file.place() != stream.durable);
}

bool EventFollower::IsDrained(const Stream& stream) {
  return stream.fenced || (stream.known && stream.file.AtEnd() && stream.durable == stream.file.place());
}

// Returns the streams for the next request; none if there is nothing to send yet. A stream that was refused goes
// into a request of its own.
std::vector<EventFollower::Stream*> EventFollower::Choose(bool flush) {
  std::vector<Stream*> chosen;
  size_t bytes = 0, waiting = 0;
  const absl::Duration now = loop_.Now();
  for (auto& [token, source] : sources_) {
    for (auto& stream : source.streams) {
      if (!HasPending(*stream) || stream->not_before > now) continue;
      if (stream->alone) return {stream.get()};
      waiting += stream->builder.bytes();
      flush = flush || !stream->known || source.finishing || stream->builder.urgent();
      // Lines that do not fit are sent with the next request.
      if (bytes > 0 && bytes + stream->builder.bytes() > kRequestBytes) continue;
      bytes += stream->builder.bytes() + token.size() + 40;
      chosen.push_back(stream.get());
    }
  }
  if (!flush && waiting < kFlushBytes) chosen.clear();
  return chosen;
}

void EventFollower::MaybeSend(bool flush) {
  if (!in_flight_.empty() || retry_timer_ != 0) return;
  flush_later_ |= flush;
  if (send_timer_ != 0) return;
  if (const absl::Duration wait = last_send_ + kSendPause - loop_.Now(); wait > absl::ZeroDuration()) {
    send_timer_ = loop_.After(wait, [this] {
      send_timer_ = 0;
      MaybeSend(false);
    });
    return;
  }
  flush = std::exchange(flush_later_, false);
  v1::ReportEventsRequest request;
  for (Stream* stream : Choose(flush)) {
    v1::EventBatch& batch = *request.add_batches();
    const Place end = stream->file.place();
    batch = stream->builder.Take();
    batch.set_token(stream->token);
    batch.set_rank(stream->rank);
    batch.set_begin_position(stream->durable.position);
    batch.set_begin_line(stream->durable.line);
    batch.set_end_position(end.position);
    batch.set_end_line(end.line);
    if (stream->observe) stream->observe(batch);
    in_flight_.push_back({stream->token, stream->rank, stream->durable, end});
  }
  if (in_flight_.empty()) return;
  last_send_ = loop_.Now();
  send_(request,
        [this, alive = std::weak_ptr<bool>(alive_)](absl::StatusOr<v1::ReportEventsResponse> answer) {
          if (!alive.expired()) OnAnswer(std::move(answer));
        });
}

void EventFollower::OnAnswer(absl::StatusOr<v1::ReportEventsResponse> answer) {
  const std::vector<Sent> sent = std::exchange(in_flight_, {});
  if (answer.ok() && answer->streams_size() != static_cast<int>(sent.size())) {
    answer = absl::UnknownError("the coordinator's answer does not cover every batch");
  }
  if (!answer.ok()) {
    // The coordinator may or may not have stored the batch: send again from the last position known
    // to be durable.
    for (const Sent& part : sent) {
      Stream* stream = Find(part.token, part.rank);
      if (stream == nullptr) continue;
      if (Planted(Bug::kPositionBeforeAnswer)) stream->durable = part.end;
      Rewind(*stream, stream->durable);
    }
    if (IsRefusal(answer.status())) {
      Refuse(sent, answer.status());
    } else {
      if (failures_ == 0)
        spdlog::warn("Events could not be delivered; retrying: {}", answer.status().ToString());
      WaitAndRetry();
    }
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
  const bool query = std::exchange(stream->query, false);
  const bool asked = !std::exchange(stream->known, true) || query;
  stream->durable = {state.position(), state.line()};
  if (stream->durable != sent.end) Rewind(*stream, stream->durable);
  const bool moved = stream->durable != sent.begin;
  if (moved) {
    stream->alone = false;
    stream->refusals = stream->failures = 0;
  } else if (query) {
    GiveUpIfRefused(*stream);
  }
  return asked || moved;
}

// Handles a request whose contents the coordinator refuses, for example because a string is not valid UTF-8.
// Streams that were refused together are sent one by one, so that only streams with bad lines are refused
// again. After each refusal of its lines, a stream queries its durable position. If the query is answered,
// the lines are at fault and not the coordinator.
void EventFollower::Refuse(const std::vector<Sent>& sent, const absl::Status& status) {
  const absl::Duration now = loop_.Now();
  for (const Sent& part : sent) {
    Stream* stream = Find(part.token, part.rank);
    if (stream == nullptr) continue;
    stream->alone = true;
    if (sent.size() > 1) continue;
    if (stream->failures++ == 0) {
      stream->refused_since = now;
      spdlog::warn("Attempt {} rank {}: the coordinator refuses its events; retrying: {}", part.token,
                   part.rank, status.ToString());
    }
    stream->not_before = now + BackoffAfter(stream->failures, loop_.Random());
    if (part.end == part.begin) {
      stream->refusals = 0;
    } else {
      ++stream->refusals;
      stream->refusal = status.ToString();
    }
    stream->query = true;
    loop_.After(stream->not_before - now, [this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) MaybeSend(true);
    });
  }
}

// Gives up a stream whose lines are refused while queries are answered.
void EventFollower::GiveUpIfRefused(Stream& stream) {
  if (stream.refusals < kMaxRefusals || loop_.Now() - stream.refused_since < limits_.refused) return;
  spdlog::error("Attempt {} rank {}: giving up its event file after line {}: {}", stream.token, stream.rank,
                stream.durable.line, stream.refusal);
  stream.file.Abort(absl::StrCat("the coordinator refuses events-", stream.rank, ".jsonl after line ",
                                 stream.durable.line, ": ", stream.refusal));
}

void EventFollower::WaitAndRetry() {
  retry_timer_ = loop_.After(BackoffAfter(++failures_, loop_.Random()), [this] {
    retry_timer_ = 0;
    MaybeSend(true);
  });
}

void EventFollower::Rewind(Stream& stream, Place place) {
  stream.file.Seek(place);
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
  return it == sources_.end() ? nullptr : Find(it->second, rank);
}

EventFollower::Stream* EventFollower::Find(Source& source, int rank) {
  if (source.streams.empty()) return nullptr;
  const int64_t index = int64_t{rank} - source.streams.front()->rank;
  return index >= 0 && index < std::ssize(source.streams) ? source.streams[index].get() : nullptr;
}

EventFollower::Send SendThrough(CoordinatorClient& client, EventLoop& loop) {
  return [&client, &loop](const v1::ReportEventsRequest& request, EventFollower::Answer answer) {
    client.ReportEvents(request, [&loop, answer](absl::StatusOr<v1::ReportEventsResponse> got) {
      loop.Post([answer, got = std::move(got)] { answer(got); });
    });
  };
}

}  // namespace scalelab::worker
