// Who of the other ranks is still there, and how far: beside the communicator's own transport, so that it
// answers when that one does not.
//
//   Every rank listens on a TCP port and keeps a connection to the next rank. Its two neighbours hear ten
//   times a second how far it is. A connection that closes without a goodbye is a rank that was killed: known
//   at once. A rank that is late is found by a roll call: all ranks are asked, and one that is stopped or cut
//   off does not answer. Whoever knows what is wrong tells all others, who then fail with the same sentence.
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

#include "worker/trainer/comm/network.h"

namespace scalelab::trainer {

class PeerWatch {
 public:
  // Listens on `address`.
  PeerWatch(int rank, int size, const std::string& address);
  ~PeerWatch() { Leave(); }

  // What the other ranks must know, in one line.
  std::string endpoint() const { return endpoint_; }
  const std::string& address() const { return address_; }
  // Starts watching; `endpoints` of all ranks in their order. All ranks pass the same `token`, which keeps
  // strangers out. Throws TrainerError when the next rank cannot be reached.
  void Join(const std::vector<std::string>& endpoints, const std::string& token);

  // Says goodbye: the others know that no later operation can include this rank. Takes half a second at most.
  void Leave();

  // What to do as soon as something is known to be wrong, on a thread of the watch or of Investigate:
  // interrupt what this rank waits for. Once; at once if it is known already.
  void OnCondemned(std::function<void()> interrupt);

  // This rank's progress through the collective operations, which all ranks count alike. `what` must be a
  // literal.
  void Started(const char* what);
  void Finished(const char* what);

  // Whether something is known to be wrong; cheap. verdict() is then the sentence for the user.
  bool condemned() const { return condemned_.load(std::memory_order_acquire); }
  std::string verdict() const;

  // Something is wrong on this rank: `symptom` ("all-reduce was not over after 5 s"). Finds out which rank is
  // to blame, tells the others and returns the verdict. `peer` is the only other rank concerned, -1: all are.
  // Takes up to 3 s.
  std::string Investigate(const std::string& symptom, int peer);

 private:
  struct Progress {
    int64_t started = 0, finished = 0;  // numbers of collective operations, from 1
    std::string what = "nothing";       // the last finished one
  };
  struct Peer {
    std::string address, host;
    int port = 0;
    Progress heard;
    bool left = false;  // said goodbye
    bool lost = false;  // the connection closed without
    std::chrono::steady_clock::time_point gone_at;  // when either became known
  };
  struct Connection {
    Socket socket;
    std::string unread;
    int rank = -1;  // of a neighbour; -1: somebody who asks or tells, once
  };

  void Run();
  void SayGoodbye();
  void Accept();
  bool Read(Connection& connection);  // false: closed
  void Handle(Connection& connection, const std::string& line);
  void LookAtNeighbours();
  void Condemn(const std::string& verdict, bool tell);
  std::string Line(const char* verb, const std::string& rest) const;
  std::string ProgressLine(const char* verb, int rank, const Progress& progress) const;
  std::string Name(int rank) const;
  static std::string LastKnown(int rank, const Progress& progress);

  const int rank_, size_;
  std::string address_, endpoint_, token_;
  Socket listener_, wake_;
  std::vector<Connection> connections_;  // of the thread
  int64_t told_ = -1;                    // of the thread: progress that neighbours have heard of

  mutable std::mutex mutex_;  // guards the four below
  std::vector<Peer> peers_;
  Progress mine_;
  std::string verdict_;
  std::function<void()> interrupt_;
  std::atomic<bool> condemned_ = false, closing_ = false;
  std::thread thread_;
};

// One line of every rank to every rank, by whatever the ranks already have in common; shorter than 1 KiB.
using GatherLines = std::function<std::vector<std::string>(const std::string& mine)>;

// Joins a watch over all ranks of a run; all call it at the same time.
std::unique_ptr<PeerWatch> WatchPeers(int rank, int size, const GatherLines& gather);

}  // namespace scalelab::trainer
