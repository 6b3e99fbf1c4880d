// Failure detection between the ranks of a run, over TCP connections that do not depend on
// the communicator's transport.
//
// Every rank listens on a TCP port and keeps a connection to the next rank. About ten times a second, a
// rank sends its progress to its two neighbours if the progress has changed. If a connection closes without
// a `bye` message, the rank's process was killed, and its neighbours detect this at once. To find a late
// rank, a rank requests the progress of all ranks; a stopped or disconnected rank does not respond. The
// rank that finds a failure sends the error message (the verdict) to all others, so that all ranks fail
// with the same message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/trainer/comm/peers/network.h"
#include "worker/trainer/comm/peers/running_clock.h"

namespace scalelab::trainer {

class PeerWatch {
 public:
  // Listens on `address`.
  PeerWatch(int rank, int size, const std::string& address);
  ~PeerWatch() { Leave(); }

  // Returns the one-line endpoint of this rank for Join on all ranks.
  std::string endpoint() const { return endpoint_; }
  const std::string& address() const { return address_; }
  // Starts the failure detection. `endpoints` are the endpoints of all ranks in rank order. All ranks must
  // pass the same `token`; messages with another token are ignored. Throws TrainerError if the next rank
  // cannot be reached.
  void Join(const std::vector<std::string>& endpoints, const std::string& token);

  // Sends `bye` to the neighbours. Later operations cannot include this rank. Takes at most half a second.
  void Leave();

  // Adds a function that is called once, as soon as a failure is known. If a failure is already known, the
  // function is called at once. It must interrupt the operations of one communicator that this rank waits
  // for. It is called on the thread of the watch, or by Investigate.
  void OnCondemned(std::function<void()> interrupt);

  // Returns the time for deadlines of operations. Once all ranks have joined, the thread of the watch reads
  // the clock at least ten times a second, so that the clock detects stops.
  RunningClock::time_point Now() { return clock_.Now(); }

  // Record this rank's progress through collective operations, which all ranks count in the same way. Must
  // not be called for operations of groups. `what` must be a string literal.
  void Started(const char* what);
  void Finished(const char* what);

  // Returns whether a failure is known. Fast. If so, verdict() returns the error message for the user.
  bool condemned() const { return condemned_.load(std::memory_order_acquire); }
  std::string verdict() const;

  // Handles a failure on this rank: finds the rank that caused it, sends the verdict to the other ranks and
  // returns the verdict. `symptom` is, for example, "all-reduce timed out after 5 s". `peer` is the other
  // rank of a message, or -1 for a collective operation. For an operation of a group, `group` has its ranks,
  // and `peer` is an index into `group`. Takes up to 3 s.
  std::string Investigate(const std::string& symptom, int peer, const std::vector<int>& group = {});

 private:
  struct Progress {
    int64_t started = 0, finished = 0;  // number of the last collective operation, counted from 1
    std::string what = "nothing";       // name of the last finished operation
  };
  struct Peer {
    std::string address, host;
    int port = 0;
    Progress progress;
    bool left = false;                              // whether it has sent `bye`
    bool lost = false;                              // whether its connection has closed without `bye`
    std::chrono::steady_clock::time_point gone_at;  // when `left` or `lost` was set
  };
  struct Connection {
    Socket socket;
    std::string unread;
    int rank = -1;  // rank of a neighbour; -1: a rank that sends a single request or verdict
  };

  void Run();
  void AnnounceLeaving();
  void Accept();
  bool Read(Connection& connection);  // returns false if the connection is closed
  void Handle(Connection& connection, const std::string& line);
  void LookAtNeighbours();
  void Condemn(const std::string& verdict, bool notify);
  std::string Line(const char* verb, const std::string& rest) const;
  std::string ProgressLine(const char* verb, int rank, const Progress& progress) const;
  std::string Name(int rank) const;
  static std::string Listed(const std::vector<int>& ranks);
  static std::string LastKnown(int rank, const Progress& progress);

  const int rank_, size_;
  std::string address_, endpoint_, token_;
  Socket listener_, wake_;
  RunningClock clock_;
  std::vector<Connection> connections_;  // used by the thread
  int64_t announced_ = -1;               // used by the thread: progress last sent to the neighbours

  mutable std::mutex mutex_;  // guards peers_, mine_, verdict_ and interrupts_
  std::vector<Peer> peers_;   // address, host and port are constant after Join
  Progress mine_;
  std::string verdict_;
  std::vector<std::function<void()>> interrupts_;
  std::atomic<bool> condemned_ = false, closing_ = false;
  std::thread thread_;
};

// A function that exchanges one line of less than 1 KiB between all ranks. Returns the lines in rank order.
using GatherLines = std::function<std::vector<std::string>(const std::string& mine)>;

// Creates a watch over all ranks of a run. Collective.
std::unique_ptr<PeerWatch> WatchPeers(int rank, int size, const GatherLines& gather);

}  // namespace scalelab::trainer
