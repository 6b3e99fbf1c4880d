#include "db/maintenance.h"

#include "absl/synchronization/notification.h"
#include "tests/contract/store_fixture.h"
#include "tests/unit/server/core/forwarding_store.h"

namespace scalelab::db {
namespace {

// A store whose Maintain returns the given answers, then "nothing left". Notifies at the last answer.
class Scripted : public server::ForwardingStore {
 public:
  explicit Scripted(std::vector<absl::StatusOr<bool>> answers)
      : ForwardingStore(nullptr), answers_(std::move(answers)) {}
  absl::StatusOr<bool> Maintain() override {
    if (calls_ >= answers_.size()) return false;
    if (calls_ + 1 == answers_.size()) last_.Notify();
    return answers_[calls_++];
  }
  bool WaitForLast() { return last_.WaitForNotificationWithTimeout(absl::Seconds(30)); }

 private:
  const std::vector<absl::StatusOr<bool>> answers_;
  size_t calls_ = 0;
  absl::Notification last_;
};

TEST(Maintenance, CallsUntilNothingIsLeft) {
  Scripted store({true, true, true, false});
  Maintenance maintenance(store, [](const absl::Status& status) { ADD_FAILURE() << status; });
  EXPECT_TRUE(store.WaitForLast());
}

TEST(Maintenance, ReportsErrorsAndContinues) {
  Scripted store({absl::ResourceExhaustedError("full"), true, false});
  std::atomic<int> reports = 0;
  {
    Maintenance maintenance(store, [&](const absl::Status& status) {
      EXPECT_TRUE(absl::IsResourceExhausted(status));
      ++reports;
    });
    EXPECT_TRUE(store.WaitForLast());
  }
  EXPECT_EQ(reports, 1);
}

TEST(Maintenance, EndsWithoutWaitingForTheNextPiece) {
  Scripted store({absl::DataLossError("damaged")});
  const absl::Time before = absl::Now();
  for (int i = 0; i < 20; ++i) Maintenance maintenance(store, [](const absl::Status&) {});
  EXPECT_LT(absl::Now() - before, absl::Seconds(10));
}

}  // namespace
}  // namespace scalelab::db
