#include "server/scheduler/file_lane.h"

#include <atomic>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(50);
constexpr absl::Duration kLong = absl::Minutes(5);

TEST(FileLaneTest, ReturnsTheResultOfTheWork) {
  FileLane lane(kLong);
  EXPECT_TRUE(lane.Run([] { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(absl::IsNotFound(lane.Run([] { return absl::NotFoundError("no such file"); })));
}

TEST(FileLaneTest, WorkThatHangsFailsAndLaterWorkRunsWhenItHasEnded) {
  FileLane lane(kShort);
  const auto release = std::make_shared<absl::Notification>();
  const auto hangs = [release] {
    release->WaitForNotification();
    return absl::OkStatus();
  };
  const absl::Status first = lane.Run(hangs);
  EXPECT_TRUE(absl::IsUnavailable(first)) << first;
  EXPECT_THAT(std::string(first.message()), testing::StartsWith("no response for "));
  const auto called = std::make_shared<std::atomic<bool>>(false);
  const auto works = [called] {
    *called = true;
    return absl::NotFoundError("no such file");
  };
  EXPECT_TRUE(absl::IsUnavailable(lane.Run(works)));
  EXPECT_FALSE(*called);
  release->Notify();
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  absl::Status later = lane.Run(works);
  while (absl::IsUnavailable(later) && absl::Now() < deadline) later = lane.Run(works);
  EXPECT_TRUE(absl::IsNotFound(later)) << later;
  EXPECT_TRUE(*called);
}

TEST(FileLaneTest, TheDestructorDoesNotWaitForWorkThatHangs) {
  const auto release = std::make_shared<absl::Notification>(), ended = std::make_shared<absl::Notification>();
  {
    FileLane lane(kShort);
    EXPECT_TRUE(absl::IsUnavailable(lane.Run([release, ended] {
      release->WaitForNotification();
      ended->Notify();
      return absl::OkStatus();
    })));
  }
  EXPECT_FALSE(ended->HasBeenNotified());
  release->Notify();
  ended->WaitForNotification();
}

}  // namespace
}  // namespace scalelab::server
