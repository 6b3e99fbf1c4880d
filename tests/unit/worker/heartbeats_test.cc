#include "worker/heartbeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace scalelab::worker {
namespace {

using namespace std::chrono_literals;

// A CoordinatorClient that records calls of any thread; the test answers them.
class RecordingClient final : public CoordinatorClient {
 public:
  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override {
    std::lock_guard lock(mutex_);
    calls_.push_back({request, std::move(done)});
    changed_.notify_all();
  }
  void CancelSynchronize() override {
    std::deque<Call> cancelled;
    {
      std::lock_guard lock(mutex_);
      cancelled.swap(calls_);
    }
    for (Call& call : cancelled) call.done(absl::CancelledError());
  }
  void ReportEvents(const v1::ReportEventsRequest&, Reported) override {}

  // Waits for a call and answers it. Returns the call's generation; -1 if there is no call within `limit`.
  int64_t AnswerNext(absl::Status status = absl::OkStatus(), std::chrono::milliseconds limit = 30s) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return !calls_.empty(); })) return -1;
    Call call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    if (status.ok()) {
      call.done(v1::SynchronizeResponse());
    } else {
      call.done(status);
    }
    return call.request.generation();
  }

 private:
  struct Call {
    v1::SynchronizeRequest request;
    Synchronized done;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
};

class HeartbeatsTest : public ::testing::Test {
 protected:
  HeartbeatsTest() : heartbeats_(std::unique_ptr<CoordinatorClient>(client_), absl::Milliseconds(5)) {}
  void Call(int64_t generation) {
    v1::SynchronizeRequest request;
    request.set_generation(generation);
    heartbeats_.Synchronize(request, [this](const auto&) { ++answers_; });
  }

  RecordingClient* client_ = new RecordingClient;
  Heartbeats heartbeats_;
  std::atomic<int> answers_ = 0;  // number of answers to the test's own calls
};

TEST_F(HeartbeatsTest, RepeatTheLastReportWhenTheNextOneDoesNotCome) {
  Call(7);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client_->AnswerNext(), 7);
  EXPECT_EQ(client_->AnswerNext(absl::UnavailableError("gone")), 7);
  EXPECT_EQ(client_->AnswerNext(), 7);
  EXPECT_EQ(answers_, 1);
}

TEST_F(HeartbeatsTest, RepeatNothingWhileACallIsInFlight) {
  Call(7);
  EXPECT_EQ(client_->AnswerNext(), 7);
  Call(8);
  int64_t generation = client_->AnswerNext();
  if (generation == 7) generation = client_->AnswerNext();  // the repeated report arrived first
  EXPECT_EQ(generation, 8);
  EXPECT_EQ(client_->AnswerNext(), 8);
  EXPECT_EQ(answers_, 2);
}

TEST_F(HeartbeatsTest, EndWhenTheAllocationIsOverOrTheCallsAreCancelled) {
  Call(7);
  EXPECT_EQ(client_->AnswerNext(absl::UnauthenticatedError("over")), 7);
  EXPECT_EQ(client_->AnswerNext(absl::OkStatus(), 50ms), -1);
  Call(8);
  EXPECT_EQ(client_->AnswerNext(), 8);
  heartbeats_.CancelSynchronize();
  EXPECT_EQ(client_->AnswerNext(absl::OkStatus(), 50ms), -1);
}

TEST(SteppedHeartbeats, RepeatTheLastReportWhenTheClockReachesTheNextStep) {
  auto* client = new RecordingClient;
  absl::Duration now = absl::Seconds(7);
  Heartbeats heartbeats(std::unique_ptr<CoordinatorClient>(client), absl::Seconds(2), [&] { return now; });
  EXPECT_EQ(heartbeats.NextStep(), absl::InfiniteDuration());
  v1::SynchronizeRequest request;
  request.set_generation(7);
  heartbeats.Synchronize(request, [](const auto&) {});
  EXPECT_EQ(heartbeats.NextStep(), absl::InfiniteDuration());
  EXPECT_EQ(client->AnswerNext(), 7);
  EXPECT_EQ(heartbeats.NextStep(), now + absl::Seconds(2));
  heartbeats.Step();
  EXPECT_EQ(client->AnswerNext(absl::OkStatus(), 0ms), -1);
  now += absl::Seconds(2);
  heartbeats.Step();
  EXPECT_EQ(heartbeats.NextStep(), absl::InfiniteDuration());
  EXPECT_EQ(client->AnswerNext(absl::UnavailableError("gone"), 0ms), 7);
  EXPECT_EQ(heartbeats.NextStep(), now + absl::Seconds(6));
  heartbeats.CancelSynchronize();
  EXPECT_EQ(heartbeats.NextStep(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace scalelab::worker
