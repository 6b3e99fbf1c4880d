// Tails the event files of this node's ranks and delivers their lines exactly once.
//
// The files are the spool. The follower only keeps positions, and the positions in the coordinator's answers
// are authoritative: the coordinator drops a duplicate batch, and after a gap the follower reads again from
// the durable position. So any request or answer may get lost.
//
// All methods and callbacks run on the event loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/worker.pb.h"
#include "worker/coordinator_client.h"
#include "worker/event_line.h"
#include "worker/process/event_loop.h"

namespace scalelab::worker {

class EventFollower {
 public:
  using Answer = std::function<void(absl::StatusOr<v1::ReportEventsResponse>)>;
  // Sends a request. Calls `Answer` once, on the loop's thread, after Send has returned. Its status is
  // that of CoordinatorClient::ReportEvents.
  using Send = std::function<void(const v1::ReportEventsRequest&, Answer)>;

  // `loop` must outlive the follower. `send` is called with one request at a time.
  EventFollower(EventLoop& loop, Send send);
  ~EventFollower();

  // Starts to follow <directory>/events-<rank>.jsonl of ranks first_rank to first_rank + ranks - 1.
  // `directory` must exist; the files may appear later. `fresh` means that none of their lines was ever sent,
  // so that the follower need not ask for the durable positions.
  void Follow(const std::string& token, const std::string& directory, int first_rank, int ranks, bool fresh);
  // To be called when no process writes to the attempt's files any more. Sends the rest, reports an
  // incomplete last line as malformed, then calls `drained` once: every line is durable, or was refused
  // because the attempt was superseded (FENCED). Requests that fail are retried with backoff, without a
  // limit. Ignores an unknown token.
  void Finish(const std::string& token, std::function<void()> drained);
  // Stops following the attempt; its `drained` callback is never called.
  void Forget(const std::string& token);
  // Ends the current backoff and sends at once, because the coordinator answers again.
  void Retry();

 private:
  struct Place {
    int64_t position = 0;
    int64_t line = 0;
    bool operator==(const Place&) const = default;
  };
  struct Stream {
    ~Stream();
    std::string token, path;
    int rank = 0;
    int fd = -1;
    bool known = false;  // `durable` is known: reported by the coordinator, or 0
    bool fenced = false;
    bool finishing = false;
    Place durable, read;    // read: after the last line in `builder`
    int64_t skip_from = 0;  // > 0: in a line that is too long; the search for its end continues here
    BatchBuilder builder;
  };
  struct Source {
    std::vector<std::unique_ptr<Stream>> streams;
    int watch = -1;
    std::function<void()> drained;
  };
  // The part of a stream that is in the request in flight; the stream may be gone when the answer arrives.
  struct Sent {
    std::string token;
    int rank;
    Place begin, end;
  };

  void OnNotify();
  void Tick();
  void ReadDirty();
  void Read(Stream& stream);
  bool SkipLongLine(Stream& stream);
  void MaybeSend(bool flush);
  void WaitAndRetry();
  void OnAnswer(absl::StatusOr<v1::ReportEventsResponse> answer);
  bool Apply(const Sent& sent, const v1::ReportEventsResponse::Stream& state);
  void NotifyDrained();
  Stream* Find(const std::string& token, int rank);
  static void Rewind(Stream& stream, Place place);
  static bool HasPending(const Stream& stream);
  static bool IsDrained(const Stream& stream);

  EventLoop& loop_;
  Send send_;
  int notify_fd_;
  std::map<std::string, Source> sources_;  // by token
  std::map<int, std::string> watches_;     // inotify watch -> token
  std::set<std::string> dirty_;            // tokens whose files have changed
  EventLoop::TimerId tick_timer_ = 0, read_timer_ = 0, retry_timer_ = 0;
  absl::Time last_read_;
  std::vector<Sent> in_flight_;  // empty: no request is in flight
  int failures_ = 0;             // since the last answer
  std::vector<char> buffer_;
  std::shared_ptr<bool> alive_;  // expires with the follower: late callbacks check it
};

// Returns a `send` for production: it sends through `client` and posts the answers to `loop`. Both must
// outlive the returned function.
EventFollower::Send SendThrough(CoordinatorClient& client, EventLoop& loop);

}  // namespace scalelab::worker
