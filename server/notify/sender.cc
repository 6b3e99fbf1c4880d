#include "server/notify/sender.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "db/outbox/outbox.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr int kThreads = 4;
// Maximum number of due notifications that the first query of a search reads. If all of them are for busy
// receivers, the next query reads more, so that a long queue of one receiver does not delay other receivers.
constexpr int kPerLook = 200;

// Returns the receiver of a notification: the host of a URL, the domain of an address, or a command.
std::string ReceiverOf(const db::NoticeRow& notice) {
  const std::string& target = notice.target;
  if (notice.channel == "webhook") {
    const size_t host = target.find("://");
    if (host == std::string::npos) return target;
    return "webhook " + target.substr(host + 3, target.find('/', host + 3) - host - 3);
  }
  if (notice.channel == "mail")
    return "mail " + target.substr(std::min(target.rfind('@') + 1, target.size()));
  return "command " + target;
}

absl::Duration Backoff(const SenderOptions& options, int failures) {
  absl::Duration wait = options.first_retry;
  for (int i = 1; i < failures && wait < options.longest_retry; ++i) wait *= 2;
  thread_local absl::BitGen random;
  return std::min(wait, options.longest_retry) * absl::Uniform(random, 0.8, 1.2);
}

}  // namespace

Sender::Sender(SenderOptions options, db::Store& store) : options_(std::move(options)), store_(store) {
  {
    SteadyMutexLock lock(&mutex_);
    running_ = kThreads;
  }
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
}

Sender::~Sender() { Stop(absl::InfiniteDuration()); }

bool Sender::Stop(absl::Duration grace) {
  bool ended = true;
  stop_.Stop();
  {
    SteadyMutexLock lock(&mutex_);
    const auto over = [this] {
      mutex_.AssertHeld();
      return running_ == 0;
    };
    ended = mutex_.AwaitWithTimeout(over, grace);
  }
  for (std::thread& thread : threads_) {
    if (ended)
      thread.join();
    else
      thread.detach();
  }
  threads_.clear();
  return ended;
}

void Sender::Run() {
  bool more = true;
  while (!stop_.WaitFor(more ? absl::ZeroDuration() : options_.period)) more = SendOne();
  SteadyMutexLock lock(&mutex_);
  --running_;
  mutex_.SignalAll();
}

absl::StatusOr<std::optional<db::NoticeRow>> Sender::FindNext() {
  const db::Micros now = absl::ToUnixMicros(options_.now());
  std::optional<db::DueMark> mark;
  if (!busy_.empty()) {
    const absl::StatusOr<db::DueMark> read = db::GetDueMark(store_, now);
    if (!read.ok()) return read.status();
    mark = *read;
    if (mark == searched_) return std::nullopt;
  }
  searched_.reset();
  const auto idle = [this](const db::NoticeRow& n)
                        ABSL_NO_THREAD_SAFETY_ANALYSIS { return !busy_.contains(ReceiverOf(n)); };
  const auto idle_and_new = [&](const db::NoticeRow& n) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return idle(n) && !unstored_.contains(n.id);
  };
  for (int limit = kPerLook;; limit *= 4) {
    absl::StatusOr<std::vector<db::NoticeRow>> due = db::ListDueNotices(store_, now, limit);
    if (!due.ok()) return due.status();
    auto next = std::find_if(due->begin(), due->end(), idle_and_new);
    if (next == due->end()) next = std::find_if(due->begin(), due->end(), idle);
    if (next != due->end()) return std::optional<db::NoticeRow>(std::move(*next));
    if (due->size() < static_cast<size_t>(limit)) break;
  }
  searched_ = mark;
  return std::nullopt;
}

bool Sender::SendOne() {
  db::NoticeRow notice;
  std::string receiver;
  bool delivered = false;
  {
    // Query while holding the lock, so that no two threads take the same notification.
    SteadyMutexLock lock(&mutex_);
    absl::StatusOr<std::optional<db::NoticeRow>> next = FindNext();
    if (!next.ok()) {
      spdlog::error("notifications cannot be read: {}", next.status().ToString());
      return false;
    }
    if (!next->has_value()) return false;
    notice = **std::move(next);
    receiver = ReceiverOf(notice);
    busy_.insert(receiver);
    if (const auto result = unstored_.find(notice.id); result != unstored_.end()) {
      notice = result->second;
      delivered = true;
    }
  }
  if (!delivered) notice = Send(std::move(notice));
  const absl::Status stored = db::UpdateNotice(store_, notice);
  if (!stored.ok() && !delivered)  // once for each notification, not in each period
    spdlog::error("the state of notification {} cannot be stored, and is tried again: {}", notice.key,
                  stored.ToString());
  SteadyMutexLock lock(&mutex_);
  busy_.erase(receiver);
  searched_.reset();  // there may be notifications for this receiver
  if (stored.ok()) {
    unstored_.erase(notice.id);
  } else {
    unstored_[notice.id] = notice;
  }
  return stored.ok();  // otherwise the thread waits before the next try
}

db::NoticeRow Sender::Send(db::NoticeRow notice) {
  const absl::Status status = options_.deliver(notice);
  const absl::Time now = options_.now();
  if (status.ok()) {
    notice.state = db::NoticeRow::State::kSent;
    notice.ended = absl::ToUnixMicros(now);
  } else {
    ++notice.attempts;
    notice.error = std::string(status.message());
    const bool hopeless =
        !absl::IsUnavailable(status) || now - absl::FromUnixMicros(notice.created) >= options_.give_up;
    if (hopeless) {
      notice.state = db::NoticeRow::State::kGivenUp;
      notice.ended = absl::ToUnixMicros(now);
    } else {
      notice.due = absl::ToUnixMicros(now + Backoff(options_, notice.attempts));
    }
    spdlog::warn("notification {} could not be sent, and {}: {}", notice.key,
                 hopeless ? "is given up" : "is tried again", notice.error);
  }
  return notice;
}

}  // namespace scalelab::server
