// Tails the event files of this node's ranks and delivers their lines exactly once.
//
// The files are the spool. The follower only keeps positions, and the positions in the coordinator's answers
// are authoritative: the coordinator drops a duplicate batch, and after a gap the follower reads again from
// the durable position. So any request or answer may get lost.
//
// A file is read when inotify reports a change of it. It is also read from time to time, because some filesystems have no
// inotify. The time between these reads is 0.5 s. While there are no new lines, it doubles up to 2 s, or up to 5 s if
// inotify has reported a change of this file before.
//
// All methods and callbacks run on the event loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "events/event_file.h"
#include "events/event_line.h"
#include "scalelab/v1/worker.pb.h"
#include "worker/coordinator_client.h"
#include "worker/process/event_loop.h"

namespace scalelab::worker {

class EventFollower {
 public:
  using Answer = std::function<void(absl::StatusOr<v1::ReportEventsResponse>)>;
  // Sends a request. Calls `Answer` once, on the loop's thread, after Send has returned. Its status is
  // that of CoordinatorClient::ReportEvents.
  using Send = std::function<void(const v1::ReportEventsRequest&, Answer)>;
  // Is called with each batch before it is sent, and again if the batch is sent again. May add metrics to its events.
  using Observe = std::function<void(v1::EventBatch&)>;

  // Time limits for conditions that delay the end of an attempt.
  struct Limits {
    // A stream is given up when the coordinator has refused it for this long, while it answered other requests.
    absl::Duration refused = absl::Minutes(1);
    // A file is given up when it could not be read for this long after Finish.
    absl::Duration unreadable = absl::Minutes(1);
  };

  // `loop` must outlive the follower. `send` is called with one request at a time.
  EventFollower(EventLoop& loop, Send send) : EventFollower(loop, std::move(send), Limits()) {}
  EventFollower(EventLoop& loop, Send send, Limits limits);
  ~EventFollower();

  // Starts to follow <directory>/events-<rank>.jsonl of ranks first_rank to first_rank + ranks - 1.
  // `directory` must exist; the files may appear later. `fresh` means that none of their lines was ever
  // sent, so that the follower need not query the durable positions. `observe` gets the batches of
  // first_rank; may be empty.
  void Follow(const std::string& token, const std::string& directory, int first_rank, int ranks, bool fresh,
              Observe observe = {});
  // Must be called when no process writes to the attempt's files any more. Sends the rest, reports an
  // incomplete last line as malformed, then calls `drained` once: every line is durable, or was refused
  // because the attempt was superseded (FENCED), or cannot be delivered (Problem). While the coordinator does
  // not answer, requests are retried with backoff, without a limit. Ignores an unknown token.
  void Finish(const std::string& token, std::function<void()> drained);
  // Returns why events of the attempt may be missing: an event file is not a regular file, cannot be read, was
  // truncated or replaced, or the coordinator refuses its lines. Empty if there is no such reason.
  std::string Problem(const std::string& token) const;
  // Stops following the attempt; its `drained` callback is never called.
  void Forget(const std::string& token);
  // Ends the current backoff and sends at once, because the coordinator answers again.
  void Retry();

 private:
  using Place = EventFile::Place;
  struct Stream {
    Stream(std::string its_token, int its_rank, const std::string& path, bool fresh,
           absl::Duration unreadable)
        : token(std::move(its_token)), rank(its_rank), file(path, unreadable), known(fresh) {}
    const std::string token;
    const int rank;
    EventFile file;
    Observe observe;
    bool known;  // `durable` is known: reported by the coordinator, or 0
    bool fenced = false;
    Place durable;
    BatchBuilder builder;   // the lines from `durable` to file.place()
    bool changed = false;   // the file has changed, or a read has not reached its end
    bool notified = false;  // inotify has reported a change of this file
    int pause = 1;          // ticks between two reads by Tick
    int wait = 1;           // ticks until the next of these reads
    // Set when the coordinator has refused a request with this stream, see Refuse.
    bool alone = false;            // whether it is sent in a separate request
    bool query = false;            // whether the next request only queries the durable position
    int refusals = 0;              // number of refusals of lines while such queries were answered
    int failures = 0;              // refusals in a row, for the backoff
    absl::Duration refused_since;  // EventLoop::Now
    absl::Duration not_before;     // EventLoop::Now: the end of the backoff
    std::string refusal;           // the coordinator's last error
  };
  struct Source {
    std::vector<std::unique_ptr<Stream>> streams;
    int watch = -1;
    bool finishing = false;
    std::function<void()> drained;
  };
  // The part of a stream that is in the request in flight; the stream may be gone when the answer arrives.
  struct Sent {
    std::string token;
    int rank;
    Place begin, end;
  };

  void OnNotify();
  void OnChange(Source& source, const char* name);
  void OnWatchEnded(int watch);
  void Tick();
  void ReadIfDue(Stream& stream);
  void ReadChanged();
  void ReadLater();
  void Read(Stream& stream);
  void MaybeSend(bool flush);
  std::vector<Stream*> Choose(bool flush);
  void WaitAndRetry();
  void OnAnswer(absl::StatusOr<v1::ReportEventsResponse> answer);
  bool Apply(const Sent& sent, const v1::ReportEventsResponse::Stream& state);
  void Refuse(const std::vector<Sent>& sent, const absl::Status& status);
  void GiveUpIfRefused(Stream& stream);
  void NotifyDrained();
  Stream* Find(const std::string& token, int rank);
  static Stream* Find(Source& source, int rank);
  static void Rewind(Stream& stream, Place place);
  static bool HasPending(const Stream& stream);
  static bool IsDrained(const Stream& stream);

  EventLoop& loop_;
  Send send_;
  const Limits limits_;
  int notify_fd_;
  std::map<std::string, Source> sources_;  // by token
  std::map<int, std::string> watches_;     // inotify watch -> token
  EventLoop::TimerId tick_timer_ = 0, notify_timer_ = 0, read_timer_ = 0, retry_timer_ = 0, send_timer_ = 0;
  absl::Duration last_read_, last_send_;  // EventLoop::Now
  bool flush_later_ = false;     // the request that waits for send_timer_ is sent even if it is small
  std::vector<Sent> in_flight_;  // empty: no request is in flight
  int failures_ = 0;             // number of failures since the last answer
  std::vector<char> buffer_;
  std::shared_ptr<bool> alive_;  // expires with the follower: late callbacks check it
};

// Returns a `send` for production: it sends through `client` and posts the answers to `loop`. Both must
// outlive the returned function.
EventFollower::Send SendThrough(CoordinatorClient& client, EventLoop& loop);

}  // namespace scalelab::worker
