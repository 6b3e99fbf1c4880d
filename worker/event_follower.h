// Follows the event files of this node's ranks and sends what they say, exactly once.
//
// The files are the spool: nothing is kept here but positions, and the coordinator's answer is the truth
// about them. A resend is dropped there, a gap makes this side go back and read again, so any message may get
// lost.
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
  // Sends a request; calls back once, on the loop's thread, after it has returned.
  using Send = std::function<void(const v1::ReportEventsRequest&, Answer)>;

  EventFollower(EventLoop& loop, Send send);
  ~EventFollower();

  // Follows <directory>/events-<rank>.jsonl of these ranks; the directory exists, the files may not yet.
  // `fresh`: no line of them was ever sent, so that the position need not be asked for.
  void Follow(const std::string& token, const std::string& directory, int first_rank, int ranks, bool fresh);
  // Nobody writes to the attempt's files any more: sends the rest, a cut-off last line as malformed, then
  // calls `drained` once: everything is durable, or refused because the attempt was superseded.
  void Finish(const std::string& token, std::function<void()> drained);
  // Drops the attempt; `drained` will not be called.
  void Forget(const std::string& token);
  // The coordinator is there again: try at once what waits for another try.
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
    bool known = false;  // the durable position has been heard, or is 0 for certain
    bool fenced = false;
    bool finishing = false;
    Place durable, read;    // read: after the last line that `builder` has
    int64_t skip_from = 0;  // > 0: inside a line that is too long; its end is searched from here
    BatchBuilder builder;
  };
  struct Source {
    std::vector<std::unique_ptr<Stream>> streams;
    int watch = -1;
    std::function<void()> drained;
  };
  // What of a stream is in the request under way; the stream may be gone when the answer comes.
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
  std::vector<Sent> in_flight_;  // empty: no request is under way
  int failures_ = 0;             // since the last answer
  std::vector<char> buffer_;
  std::shared_ptr<bool> alive_;  // guards callbacks that outlive the follower
};

// The usual `send`: through a client, whose answers come on other threads. Both outlive what is returned.
EventFollower::Send SendThrough(CoordinatorClient& client, EventLoop& loop);

}  // namespace scalelab::worker
