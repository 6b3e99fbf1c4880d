#include "worker/trainer/comm/peers/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The interval at which progress is sent to the neighbours.
constexpr milliseconds kTick{100};
// A failing rank sends its verdict before it closes its connections. Other ranks wait for this time, so that
// the verdict arrives before they name that rank as lost.
constexpr milliseconds kGrace{200};
constexpr milliseconds kConnect{500}, kAnswer{2000};
// Time that Leave waits for the neighbours to close their ends of the connections. A stopped neighbour
// never does so.
constexpr milliseconds kLeaveTimeout{500};

}  // namespace

PeerWatch::PeerWatch(int rank, int size, const std::string& address)
    : rank_(rank), size_(size), address_(address), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  int port = 0;
  listener_ = Listen(address, port);
  endpoint_ = address + " " + std::to_string(port) + " " + HostName();
}

void PeerWatch::Leave() {
  closing_ = true;
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) < 0) {  // cannot fail; without it the thread wakes after kTick
  }
  if (thread_.joinable()) thread_.join();
  connections_.clear();
  listener_ = Socket();
}

void PeerWatch::OnCondemned(std::function<void()> interrupt) {
  {
    std::lock_guard lock(mutex_);
    if (!condemned()) {
      interrupts_.push_back(std::move(interrupt));
      return;
    }
  }
  interrupt();
}

void PeerWatch::Join(const std::vector<std::string>& endpoints, const std::string& token) {
  token_ = token;
  peers_.resize(size_);
  for (int r = 0; r < size_; ++r) {
    std::istringstream in(endpoints[r]);
    in >> peers_[r].address >> peers_[r].port >> peers_[r].host;
  }
  if (size_ == 1) return;
  const int next = (rank_ + 1) % size_;
  Connection connection;
  connection.socket = Connect(peers_[next].address, peers_[next].port, milliseconds(10'000));
  connection.rank = next;
  if (!connection.socket || !SendLine(connection.socket, Line("watch", std::to_string(rank_)))) {
    throw TrainerError("rank " + std::to_string(rank_) + " cannot connect to " + Name(next) + " at " +
                           peers_[next].address +
                           ": check that the nodes reach each other there, or set "
                           "GLOO_SOCKET_IFNAME to another interface",
                       ErrorKind::kCommunication);
  }
  connections_.push_back(std::move(connection));
  thread_ = std::thread(&PeerWatch::Run, this);
}

void PeerWatch::Started(const char*) {
  std::lock_guard lock(mutex_);
  ++mine_.started;
}

void PeerWatch::Finished(const char* what) {
  std::lock_guard lock(mutex_);
  ++mine_.finished;
  mine_.what = what;
}

std::string PeerWatch::verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_;
}

std::string PeerWatch::Name(int rank) const {
  return "rank " + std::to_string(rank) + " on " + peers_[rank].host;
}

std::string PeerWatch::LastKnown(int rank, const Progress& progress) {
  return "; the last operation that it is known to have finished is " + std::to_string(progress.finished) +
         " (" + progress.what + "); see rank-" + std::to_string(rank) + ".err";
}

std::string PeerWatch::Listed(const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return list;
}

std::string PeerWatch::Line(const char* verb, const std::string& rest) const {
  return token_ + " " + verb + " " + rest + "\n";
}

std::string PeerWatch::ProgressLine(const char* verb, int rank, const Progress& progress) const {
  std::ostringstream rest;
  rest << rank << ' ' << progress.started << ' ' << progress.finished << ' ' << progress.what;
  return Line(verb, rest.str());
}

void PeerWatch::Run() {
  while (!closing_) {
    Now();
    std::vector<pollfd> ready = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& c : connections_) ready.push_back({c.socket.get(), POLLIN, 0});
    bool in_grace = false;
    {
      std::lock_guard lock(mutex_);
      for (const Peer& peer : peers_) in_grace |= (peer.lost || peer.left) && verdict_.empty();
    }
    poll(ready.data(), ready.size(), static_cast<int>((in_grace ? kGrace / 4 : kTick).count()));
    std::erase_if(connections_, [&](Connection& c) { return !Read(c); });
    Accept();
    LookAtNeighbours();
  }
  Accept();
  AnnounceLeaving();
}

void PeerWatch::AnnounceLeaving() {
  {
    std::lock_guard lock(mutex_);
    // Send to every connection, because a neighbour may not have identified itself yet.
    for (const Connection& c : connections_) {
      SendLine(c.socket, ProgressLine("bye", rank_, mine_));
      shutdown(c.socket.get(), SHUT_WR);
    }
  }
  // Closing a connection with unread data resets it, and discards a `bye` that is still being sent. Therefore
  // wait until the neighbour closes its end after reading the `bye`.
  const auto over = [](Connection& c) {
    char bytes[4096];
    const ssize_t count = recv(c.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  };
  for (const auto deadline = Clock::now() + kLeaveTimeout; !connections_.empty();) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) break;
    std::vector<pollfd> ready;
    for (const Connection& c : connections_) ready.push_back({c.socket.get(), POLLIN, 0});
    poll(ready.data(), ready.size(), static_cast<int>(left));
    std::erase_if(connections_, over);
  }
}

void PeerWatch::Accept() {
  for (int fd; (fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    connections_.emplace_back().socket = Socket(fd);
  }
}

bool PeerWatch::Read(Connection& connection) {
  char bytes[4096];
  ssize_t count;
  while ((count = recv(connection.socket.get(), bytes, sizeof bytes, 0)) > 0) {
    connection.unread.append(bytes, count);
    for (size_t end; (end = connection.unread.find('\n')) != std::string::npos;) {
      Handle(connection, connection.unread.substr(0, end));
      connection.unread.erase(0, end + 1);
    }
    if (connection.unread.size() > sizeof bytes) return false;  // no rank sends lines of this length
  }
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
  if (connection.rank >= 0) {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[connection.rank];
    if (!peer.left && !peer.lost) {
      peer.lost = true;
      peer.gone_at = Clock::now();
    }
  }
  return false;
}

void PeerWatch::Handle(Connection& connection, const std::string& line) {
  std::istringstream in(line);
  std::string token, verb;
  in >> token >> verb;
  if (token != token_) return;
  if (verb == "verdict") {
    std::string verdict;
    std::getline(in >> std::ws, verdict);
    return Condemn(verdict, /*notify=*/false);
  }
  int rank = -1;
  in >> rank;
  if (rank < 0 || rank >= size_) return;
  if (verb == "ask") {
    std::lock_guard lock(mutex_);
    std::string answer;
    for (int neighbour : {(rank_ + 1) % size_, (rank_ + size_ - 1) % size_}) {
      answer += ProgressLine("neighbour", neighbour, peers_[neighbour].progress);
    }
    SendLine(connection.socket, answer + ProgressLine("self", rank_, mine_));
  } else if (verb == "watch") {
    connection.rank = rank;
    announced_ = -1;
  } else if (verb == "at" || verb == "bye") {
    Progress progress;
    in >> progress.started >> progress.finished;
    std::getline(in >> std::ws, progress.what);
    std::lock_guard lock(mutex_);
    peers_[rank].progress = progress;
    if (verb == "bye" && !peers_[rank].left) {
      peers_[rank].left = true;
      peers_[rank].gone_at = Clock::now();
    }
  }
}

void PeerWatch::LookAtNeighbours() {
  std::string verdict;
  {
    std::lock_guard lock(mutex_);
    if (announced_ != mine_.started + mine_.finished) {
      for (const Connection& c : connections_) {
        if (c.rank >= 0) SendLine(c.socket, ProgressLine("at", rank_, mine_));
      }
      announced_ = mine_.started + mine_.finished;
    }
    if (!verdict_.empty()) return;
    for (int r = 0; r < size_ && verdict.empty(); ++r) {
      const Peer& peer = peers_[r];
      const std::string last = LastKnown(r, peer.progress);
      if (!(peer.lost || peer.left) || Clock::now() - peer.gone_at <= kGrace) continue;
      if (peer.lost) {
        verdict = Name(r) + " is gone: its process ended unexpectedly" + last;
      } else if (mine_.started > peer.progress.finished) {
        verdict = Name(r) + " left before operation " + std::to_string(peer.progress.finished + 1) +
                  ", which other ranks have started" + last;
      }
    }
  }
  if (!verdict.empty()) Condemn(verdict, /*notify=*/true);
}

void PeerWatch::Condemn(const std::string& verdict, bool notify) {
  if (condemned()) return;
  std::vector<int> others;
  {
    std::lock_guard lock(mutex_);
    for (int r = 0; notify && r < size_; ++r) {
      if (r != rank_ && !peers_[r].lost && !peers_[r].left) others.push_back(r);
    }
  }
  for (int r : others) {
    const Socket socket = Connect(peers_[r].address, peers_[r].port, kConnect);
    if (socket) SendLine(socket, Line("verdict", verdict));
  }
  std::vector<std::function<void()>> interrupts;
  {
    std::lock_guard lock(mutex_);
    if (verdict_.empty()) verdict_ = verdict;
    condemned_.store(true, std::memory_order_release);
    interrupts.swap(interrupts_);  // each function is called only once
  }
  for (const auto& interrupt : interrupts) interrupt();
}

std::string PeerWatch::Investigate(const std::string& symptom, int peer, const std::vector<int>& group) {
  const int only = peer < 0 || group.empty() ? peer : group[peer];
  struct Asked {
    Socket socket;
    std::string text;
    bool reached = false, answered = false;
  };
  std::vector<Asked> asked(size_);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    asked[r].socket = Connect(peers_[r].address, peers_[r].port, kConnect);
    asked[r].reached = asked[r].socket && SendLine(asked[r].socket, Line("ask", std::to_string(rank_)));
  }
  std::vector<Progress> known(size_);
  {
    std::lock_guard lock(mutex_);
    for (int r = 0; r < size_; ++r) known[r] = r == rank_ ? mine_ : peers_[r].progress;
  }
  for (const auto deadline = Now() + kAnswer; !condemned();) {
    std::vector<pollfd> ready;
    for (const Asked& a : asked) {
      if (a.reached && !a.answered) ready.push_back({a.socket.get(), POLLIN, 0});
    }
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Now()).count();
    if (ready.empty() || left <= 0) break;
    poll(ready.data(), ready.size(), static_cast<int>(std::min<int64_t>(left, 100)));
    for (Asked& a : asked) {
      if (!a.reached || a.answered) continue;
      char bytes[4096];
      const ssize_t count = recv(a.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count > 0) a.text.append(bytes, count);
      if (count == 0 || (count < 0 && errno == ECONNRESET)) a.reached = false;
      std::istringstream lines(a.text);
      for (std::string line; std::getline(lines, line) && !lines.eof();) {
        std::istringstream in(line);
        std::string token, verb;
        int rank = -1;
        Progress progress;
        in >> token >> verb >> rank >> progress.started >> progress.finished;
        std::getline(in >> std::ws, progress.what);
        if (token != token_ || rank < 0 || rank >= size_) continue;
        if (progress.finished >= known[rank].finished) known[rank] = progress;
        a.answered |= verb == "self";
      }
    }
  }
  if (condemned()) return verdict();  // another rank has found the cause

  int64_t furthest = 0;
  for (const Progress& p : known) furthest = std::max(furthest, p.started);
  // For a message, examine all ranks, because its peer may wait for another rank that does not respond.
  const auto concerned = [&](int r) {
    const bool takes_part =
        only < 0 ? group.empty() || std::ranges::find(group, r) != group.end() : r == only;
    return r != rank_ && (takes_part || (asked[r].reached && !asked[r].answered));
  };
  // Ranks that respond may be late because they wait for a rank that does not respond.
  bool all_answer = true;
  for (int r = 0; r < size_; ++r) all_answer &= !concerned(r) || asked[r].answered;
  std::string blame;
  for (int r = 0, named = 0; r < size_; ++r) {
    if (!concerned(r)) continue;
    const bool silent = asked[r].reached && !asked[r].answered,
               gone = !asked[r].reached && !asked[r].answered;
    const bool behind = all_answer && only < 0 && group.empty() && known[r].started < furthest;
    if (!silent && !gone && !behind) continue;
    if (++named > 4) continue;  // limit the length of the message
    blame += (blame.empty() ? "" : "; and ") + Name(r) +
             (gone     ? " cannot be reached (its process ended or its node is disconnected)"
              : silent ? " does not answer (its process is stopped or its node hangs)"
                       : " has not started operation " + std::to_string(known[r].started + 1)) +
             LastKnown(r, known[r]);
  }
  if (blame.empty()) {
    blame = only >= 0        ? Name(only) + " answers, but does not take part in the operation"
            : !group.empty() ? "all ranks answer, but one of ranks " + Listed(group) +
                                   " does not take part in the operation"
                             : "all ranks answer and have started the operation: check the network, or raise "
                               "comm_timeout_s in the study";
  }
  Condemn(symptom + " on " + Name(rank_) + ": " + blame, /*notify=*/true);
  return verdict();
}

std::unique_ptr<PeerWatch> WatchPeers(int rank, int size, const GatherLines& gather) {
  const std::string address = ChooseAddress(gather(DescribeHost()), rank);
  auto watch = std::make_unique<PeerWatch>(rank, size, address);
  std::random_device random;
  std::ostringstream token;
  token << std::hex << random() << random();
  const std::vector<std::string> all = gather(watch->endpoint() + " " + token.str());
  std::istringstream first(all[0]);
  std::string skipped, shared;
  first >> skipped >> skipped >> skipped >> shared;  // the token of rank 0
  watch->Join(all, shared);
  return watch;
}

}  // namespace scalelab::trainer
