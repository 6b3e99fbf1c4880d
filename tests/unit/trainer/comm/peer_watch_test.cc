// The ranks are PeerWatch objects of one process. Tests check the verdicts on ranks that are late, leave
// or are missing.
#include "worker/trainer/comm/peers/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <sstream>
#include <thread>

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;
using testing::Not;

class PeerWatchTest : public testing::Test {
 protected:
  PeerWatchTest() {
    std::vector<std::string> endpoints;
    for (int r = 0; r < kRanks; ++r) {
      ranks_.push_back(std::make_unique<PeerWatch>(r, kRanks, "127.0.0.1"));
      endpoints.push_back(ranks_[r]->endpoint());
    }
    for (auto& rank : ranks_) rank->Join(endpoints, "token");
  }

  // Makes the rank finish `finished` operations, and start one more if `in_next`.
  void Work(int rank, int finished, bool in_next) {
    for (int i = 0; i < finished; ++i) {
      ranks_[rank]->Started("all-reduce");
      ranks_[rank]->Finished("all-reduce");
    }
    if (in_next) ranks_[rank]->Started("broadcast");
  }

  Socket ConnectTo(int rank) {
    std::istringstream endpoint(ranks_[rank]->endpoint());
    std::string address;
    int port;
    endpoint >> address >> port;
    return Connect(address, port, std::chrono::seconds(5));
  }

  // Waits until `rank` is interrupted and returns its verdict.
  std::string Interruption(int rank) {
    auto done = std::make_shared<std::promise<void>>();
    ranks_[rank]->OnCondemned([done] { done->set_value(); });
    if (done->get_future().wait_for(std::chrono::seconds(20)) != std::future_status::ready) return "(never)";
    return ranks_[rank]->verdict();
  }

  static constexpr int kRanks = 4;
  std::vector<std::unique_ptr<PeerWatch>> ranks_;
};

TEST_F(PeerWatchTest, NamesTheRankThatHasNotStartedTheOperation) {
  for (int r : {0, 1, 3}) Work(r, 5, /*in_next=*/true);
  Work(2, 3, /*in_next=*/false);
  const std::string verdict = ranks_[0]->Investigate("broadcast timed out after 7 s", -1);
  EXPECT_THAT(verdict, HasSubstr("broadcast timed out after 7 s on rank 0"));
  EXPECT_THAT(verdict, HasSubstr("rank 2 on "));
  EXPECT_THAT(verdict, HasSubstr("has not started operation 4"));
  EXPECT_THAT(verdict, HasSubstr("finished is 3 (all-reduce)"));
  EXPECT_THAT(verdict, Not(HasSubstr("rank 1 on ")));
  for (int r = 1; r < kRanks; ++r) EXPECT_EQ(Interruption(r), verdict) << "all ranks have the same verdict";
}

TEST_F(PeerWatchTest, BlamesTheNetworkIfAllRanksHaveStarted) {
  for (int r = 0; r < kRanks; ++r) Work(r, 2, /*in_next=*/true);
  EXPECT_THAT(ranks_[1]->Investigate("broadcast timed out after 7 s", -1), HasSubstr("raise comm_timeout_s"));
}

TEST_F(PeerWatchTest, NamesARankThatLeftBeforeAnOperationOfOthers) {
  for (int r : {0, 1, 3}) Work(r, 5, /*in_next=*/true);
  Work(2, 5, /*in_next=*/false);
  ranks_[2]->Leave();
  for (int r : {0, 1, 3}) EXPECT_THAT(Interruption(r), HasSubstr("left before operation 6")) << r;
}

TEST_F(PeerWatchTest, UsesTheVerdictOfARankThatFailedAndLeft) {
  Work(0, 5, /*in_next=*/true);
  const auto send = [&](const std::string& line) {
    Socket socket = ConnectTo(0);
    EXPECT_TRUE(SendLine(socket, "token " + line + "\n"));
    return socket;
  };
  const Socket leaving = send("bye 2 5 5 all-reduce");
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // a line on another connection may arrive later
  const Socket verdict = send("verdict rank 1 does not answer");
  EXPECT_EQ(Interruption(0), "rank 1 does not answer");
}

TEST_F(PeerWatchTest, LeaveReadsTheLinesOfNeighboursToTheEnd) {
  Socket neighbour = ConnectTo(0);
  EXPECT_TRUE(SendLine(neighbour, "token watch 3\n"));
  std::thread leaving([&] { ranks_[0]->Leave(); });
  std::string received;
  char bytes[256];
  for (ssize_t count = 1; count > 0; received.append(bytes, std::max<ssize_t>(count, 0))) {
    pollfd ready{neighbour.get(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 20'000), 1) << received;
    count = recv(neighbour.get(), bytes, sizeof bytes, 0);
  }
  EXPECT_THAT(received, HasSubstr("token bye 0 "));
  // If the connection were closed, the first line would reset it and the second would fail.
  EXPECT_TRUE(SendLine(neighbour, "token at 3 1 1 all-reduce\n"));
  EXPECT_TRUE(SendLine(neighbour, "token at 3 2 2 all-reduce\n"));
  neighbour = Socket();
  leaving.join();
}

TEST_F(PeerWatchTest, AcceptsARankThatLeavesAfterTheLastOperation) {
  // These ranks are in the fifth operation, which rank 2 has finished.
  for (int r : {0, 1, 3}) Work(r, 4, /*in_next=*/true);
  Work(2, 5, /*in_next=*/false);
  ranks_[2]->Leave();
  // Any verdict about the rank that left would arrive before this answer.
  const std::string verdict = ranks_[0]->Investigate("receive timed out after 1 s", /*peer=*/3);
  EXPECT_THAT(verdict, HasSubstr("rank 3 on "));
  EXPECT_THAT(verdict, HasSubstr("does not take part in the operation"));
}

// In a chain of messages a rank waits for its neighbour, which may itself wait for the stopped rank.
TEST(PeerWatch, NamesTheRankThatDoesNotAnswerIfAMessageFromAnotherIsLate) {
  std::vector<std::unique_ptr<PeerWatch>> ranks;
  std::vector<std::string> endpoints;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(std::make_unique<PeerWatch>(r, 3, "127.0.0.1"));
    endpoints.push_back(ranks[r]->endpoint());
  }
  for (int r : {0, 1}) ranks[r]->Join(endpoints, "token");  // rank 2 accepts connections but never answers
  const std::string verdict = ranks[0]->Investigate("receive timed out after 1 s", /*peer=*/1);
  EXPECT_THAT(verdict, HasSubstr("rank 2 on "));
  EXPECT_THAT(verdict, HasSubstr("does not answer"));
  EXPECT_THAT(verdict, Not(HasSubstr("rank 1 on ")));
}

class RunningClockTest : public testing::Test {
 protected:
  // Lets the time pass while a thread reads the clock ten times a second. Returns how much of it counts.
  std::chrono::milliseconds Run(std::chrono::milliseconds time) {
    const auto begin = clock_.Now();
    for (const auto end = now_ + time; now_ < end; clock_.Now()) now_ += std::chrono::milliseconds(100);
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now() - begin);
  }
  // Lets the time pass while the process is stopped. Returns how much of it counts.
  std::chrono::milliseconds Stop(std::chrono::milliseconds time) {
    const auto begin = clock_.Now();
    now_ += time;
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now() - begin);
  }

  RunningClock::Steady::time_point now_{std::chrono::hours(1000)};
  RunningClock clock_{[this] { return now_; }};
};

TEST_F(RunningClockTest, CountsTheTimeInWhichTheProcessRuns) {
  EXPECT_EQ(Run(std::chrono::minutes(20)), std::chrono::minutes(20));
  EXPECT_EQ(Stop(std::chrono::milliseconds(1900)), std::chrono::milliseconds(1900)) << "threads may be late";
}

TEST_F(RunningClockTest, DoesNotCountTheTimeInWhichTheProcessIsStopped) {
  Run(std::chrono::seconds(5));
  EXPECT_EQ(Stop(std::chrono::hours(9)), std::chrono::seconds(0));
  EXPECT_EQ(Run(std::chrono::milliseconds(9900)), std::chrono::seconds(0))
      << "other ranks may continue up to 10 s later";
  EXPECT_EQ(Run(std::chrono::seconds(60)), std::chrono::seconds(60));
  EXPECT_EQ(Stop(std::chrono::seconds(30)), std::chrono::seconds(0)) << "every stop is detected";
  EXPECT_EQ(Run(std::chrono::seconds(60)), std::chrono::milliseconds(50'100));
}

TEST_F(PeerWatchTest, IgnoresLinesWithAnotherToken) {
  std::istringstream endpoint(ranks_[1]->endpoint());
  std::string address;
  int port = 0;
  endpoint >> address >> port;
  const Socket stranger = Connect(address, port, std::chrono::seconds(5));
  ASSERT_TRUE(stranger);
  ASSERT_TRUE(SendLine(stranger, "guess verdict all is lost\n"));
  // When rank 1 answers the later query, it has read the line.
  ranks_[0]->Investigate("x", 1);
  EXPECT_THAT(Interruption(1), Not(HasSubstr("all is lost")));
}

}  // namespace
}  // namespace scalelab::trainer
