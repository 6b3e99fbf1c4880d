#include "server/identity/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/server/identity/memory_access_store.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;
using testing::SizeIs;

db::AuditRow Change(const std::string& target) {
  db::AuditRow row;
  row.time = absl::ToUnixMicros(absl::Now());
  row.user = "alice";
  row.action = "CancelStudy";
  row.target = target;
  row.result = "OK";
  return row;
}

db::AuditRow Refused(const std::string& address, const std::string& action = "ListStudies") {
  db::AuditRow row;
  row.time = absl::ToUnixMicros(absl::Now());
  row.address = address;
  row.action = action;
  row.result = "UNAUTHENTICATED";
  row.refused = true;
  return row;
}

class AuditLogTest : public testing::Test {
 protected:
  void Start(const AuditLimits& limits) {
    log_ = std::make_unique<AuditLog>(
        store_, [] { return absl::OkStatus(); }, limits);
    log_->Start();
  }
  int64_t Calls() {
    int64_t calls = 0;
    for (const auto& row : store_.Audit()) calls += row.count;
    return calls;
  }
  MemoryAccessStore store_;
  std::unique_ptr<AuditLog> log_;
};

AuditLimits Long() {
  AuditLimits limits;
  limits.period = absl::Hours(1);
  limits.refusal_period = absl::Hours(1);
  return limits;
}

TEST_F(AuditLogTest, EveryChangeIsARowAndABatchIsOneWrite) {
  Start(Long());
  for (int i = 0; i < 500; ++i) log_->Add(Change(absl::StrCat("studies/", i)));
  EXPECT_THAT(store_.Audit(), IsEmpty()) << "adding does not write";
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  EXPECT_THAT(store_.Audit(), SizeIs(500));
  EXPECT_EQ(store_.writes, 1);
  EXPECT_EQ(store_.Audit()[499].target, "studies/499");
}

// Collects the messages of the log while it exists.
class LogLines {
 public:
  LogLines() : before_(spdlog::default_logger()) {
    const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    const auto logger = std::make_shared<spdlog::logger>("lines", sink);
    logger->set_pattern("%l %v");
    spdlog::set_default_logger(logger);
  }
  ~LogLines() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  const std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

TEST_F(AuditLogTest, NewCancelledAndDeletedStudiesAreInTheLogOfTheProcess) {
  const LogLines lines;
  Start(Long());
  for (const char* action : {"CreateStudy", "CancelStudy", "CancelRun", "DeleteStudy", "HoldStudy"}) {
    db::AuditRow row = Change("studies/7");
    row.action = action;
    row.address = "10.0.0.3";
    row.source = "token laptop";
    log_->Add(row);
  }
  log_->Add(Refused("10.0.0.4", "DeleteStudy"));
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  log_->Stop();
  EXPECT_EQ(lines.text(),
            "info CreateStudy studies/7 by alice from 10.0.0.3, identified by token laptop\n"
            "info CancelStudy studies/7 by alice from 10.0.0.3, identified by token laptop\n"
            "info CancelRun studies/7 by alice from 10.0.0.3, identified by token laptop\n"
            "info DeleteStudy studies/7 by alice from 10.0.0.3, identified by token laptop\n");
}

TEST_F(AuditLogTest, EqualRefusedCallsAreOneRowWithACount) {
  Start(Long());
  for (int i = 0; i < 1000; ++i) log_->Add(Refused("10.0.0.1"));
  log_->Add(Refused("10.0.0.1", "CreateStudy"));
  log_->Add(Refused("10.0.0.2"));
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  EXPECT_THAT(store_.Audit(), SizeIs(3));
  EXPECT_EQ(Calls(), 1002);
}

TEST_F(AuditLogTest, EqualChangesAreOneRowWithACount) {
  const LogLines lines;
  Start(Long());
  for (int i = 0; i < 1000; ++i) {
    db::AuditRow row = Change("studies/7");
    row.time = 1'000'000 + i;
    log_->Add(row);
  }
  db::AuditRow other = Change("studies/7");
  other.time = 1'000'500;
  other.user = "bob";
  log_->Add(other);
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  ASSERT_THAT(store_.Audit(), SizeIs(2));
  EXPECT_EQ(store_.Audit()[0].user, "bob") << "the rows have the order of their times";
  EXPECT_EQ(store_.Audit()[1].count, 1000);
  EXPECT_EQ(store_.Audit()[1].time, 1'000'999) << "the time of the last call";
  log_->Add(Change("studies/7"));
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  EXPECT_THAT(store_.Audit(), SizeIs(3)) << "the next write has its own rows";
  log_->Stop();
  EXPECT_THAT(lines.text(), HasSubstr("CancelStudy studies/7 by alice from , identified by , 1000 times\n"));
}

TEST_F(AuditLogTest, ChangesThatDifferInAnyFieldButTheTimeAreDifferentRows) {
  Start(Long());
  using Row = db::AuditRow;
  log_->Add(Change("studies/7"));
  for (std::string Row::*field :
       {&Row::user, &Row::source, &Row::address, &Row::action, &Row::target, &Row::result, &Row::detail}) {
    db::AuditRow row = Change("studies/7");
    row.*field = "another";
    log_->Add(row);
  }
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  EXPECT_THAT(store_.Audit(), SizeIs(8));
}

TEST_F(AuditLogTest, TheLogOfTheProcessHasTheNumberOfLostChanges) {
  const LogLines lines;
  AuditLimits limits = Long();
  limits.pending = 10;
  Start(limits);
  for (int i = 0; i < 15; ++i) log_->Add(Change(absl::StrCat("studies/", i)));
  for (int i = 0; i < 15; ++i) log_->Add(Change("studies/3"));
  log_->Stop();
  EXPECT_THAT(store_.Audit(), SizeIs(10));
  EXPECT_EQ(Calls(), 25);
  EXPECT_THAT(lines.text(), HasSubstr("error the audit log has lost 5 entries of changes"));
}

TEST_F(AuditLogTest, ManyDifferentRefusedCallsFillALimitedNumberOfRows) {
  Start(Long());
  for (int i = 0; i < 5000; ++i) log_->Add(Refused(absl::StrCat("address ", i)));
  log_->Add(Change("studies/1"));
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  // A new minute may begin during the test, so more rows are possible.
  EXPECT_THAT(store_.Audit(), SizeIs(Le(2u * 60 + 2)));
  EXPECT_EQ(Calls(), 5001) << "no call is lost from the counts";
}

TEST_F(AuditLogTest, RowsAreWrittenAgainAfterAnError) {
  AuditLimits limits;
  limits.period = absl::Milliseconds(10);
  Start(limits);
  {
    absl::MutexLock lock(&store_.mutex);
    store_.status = absl::ResourceExhaustedError("the disk is full");
  }
  log_->Add(Change("studies/1"));
  EXPECT_TRUE(absl::IsUnavailable(log_->Flush(absl::Milliseconds(100))));
  {
    absl::MutexLock lock(&store_.mutex);
    store_.status = absl::OkStatus();
  }
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  EXPECT_THAT(store_.Audit(), SizeIs(1));
}

TEST_F(AuditLogTest, AFlushWaitsForItsTimeAlsoIfTheWallClockIsSetBack) {
  Start(Long());
  const WallClockShift shift(-3600);
  log_->Add(Change("studies/1"));
  ASSERT_TRUE(log_->Flush(absl::Seconds(20)).ok());
  EXPECT_THAT(store_.Audit(), SizeIs(1));
}

TEST_F(AuditLogTest, AWallClockThatIsSetBackDelaysNoRefusedCall) {
  AuditLimits limits;
  limits.period = limits.refusal_period = absl::Milliseconds(10);
  log_ = std::make_unique<AuditLog>(
      store_, [] { return absl::OkStatus(); }, limits);
  {
    const WallClockShift ahead(3600);
    log_->Add(Refused("10.0.0.1"));
  }
  log_->Start();
  for (int i = 0; i < 2000 && store_.Audit().empty(); ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(Calls(), 1);
}

TEST_F(AuditLogTest, TheEndWritesWhatIsPending) {
  Start(Long());
  log_->Add(Change("studies/1"));
  log_->Add(Refused("10.0.0.1"));
  log_->Stop();
  EXPECT_THAT(store_.Audit(), SizeIs(2));
}

}  // namespace
}  // namespace scalelab::server
