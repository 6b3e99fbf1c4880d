// Tests that no read scans a table that grows with the number of studies.
#include <list>
#include <set>

#include "db/reads.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

class QueryPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    SqliteOptions options;
    options.path = directory_.path() + "/scalelab.db";
    store_ = std::move(*OpenSqliteStore(options));
    db_ = std::move(*Database::Open(options.path, Database::Mode::kReadOnly, 1000));
    explain_ = std::move(*Database::Open(options.path, Database::Mode::kReadOnly, 1000));
    sqlite3_trace_v2(
        db_->handle(), SQLITE_TRACE_STMT,
        [](unsigned, void* self, void* statement, void*) {
          static_cast<QueryPlan*>(self)->sql_.insert(sqlite3_sql(static_cast<sqlite3_stmt*>(statement)));
          return 0;
        },
        this);
  }
  // Returns the plans of all statements that ran since the last call.
  std::string Plans() {
    std::string plans;
    for (const std::string& sql : std::exchange(sql_, {})) {
      if (sql.rfind("SELECT", 0) != 0) continue;
      plans += sql + "\n";
      Statement plan(*explain_, texts_.emplace_back("EXPLAIN QUERY PLAN " + sql).c_str());
      while (plan.Step()) {
        int64_t id, parent, unused;
        std::string detail;
        plan.Read(id, parent, unused, detail);
        plans += "  " + detail + "\n";
      }
    }
    return plans;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Database> db_, explain_;
  std::set<std::string> sql_;
  std::list<std::string> texts_;  // the texts must stay, because Statement caches by their addresses
};

TEST_F(QueryPlan, ReadsUseIndexes) {
  RunFilter filter;
  filter.study_id = 1;
  (void)GetStudy(*db_, 1);
  (void)FindStudy(*db_, "x", {});
  (void)FindRequest(*db_, "ada", "x");
  (void)ListStudies(*db_, 0, 10, {});
  (void)CountRuns(*db_, {1});
  (void)ListCells(*db_, 1);
  (void)GetCells(*db_, {1});
  (void)ListCellValues(*db_, 1);
  (void)GetCellValues(*db_, 1, {0, 1});
  (void)GetRun(*db_, 1);
  (void)ListRuns(*db_, filter);
  filter.state = RunState::kFailed;
  (void)ListRuns(*db_, filter);
  (void)ListAttempts(*db_, 1);
  (void)GetProvenance(*db_, 1);
  (void)GetAllocation(*db_, 1);
  (void)ListStreams(*db_, 1);
  (void)GetSummary(*db_, 1);
  (void)ListSummaries(*db_, 1, 2);
  (void)ListCurveRows(*db_, 1);
  (void)ListRunTimes(*db_, 1);
  (void)ListAttemptTimes(*db_, 1, {});
  (void)ListSeries(*db_, {1, "", {}}, {"a", 0}, 10);
  SeriesPlace place;
  Series series;
  (void)ReadSeriesPart(*db_, 1, 10, place, series);
  (void)CountPoints(*db_, 1, {"a", 0});
  (void)ReadSeries(*db_, 1, 1, 0, series);
  const std::string plans = Plans();
  for (const char* table : {"study",  "cell",       "cell_value",  "run",         "attempt",   "allocation",
                            "stream", "provenance", "run_summary", "run_metrics", "run_times", "run_count",
                            "series", "metric_key", "e",           "k",           "c",         "x",
                            "v",      "w",          "point_chunk", "point_axis"}) {
    EXPECT_EQ(plans.find(std::string("SCAN ") + table + "\n"), std::string::npos) << table << " is scanned:\n"
                                                                                  << plans;
  }
  EXPECT_NE(plans.find("FROM run_count"), std::string::npos) << plans;
  EXPECT_NE(plans.find("USING INDEX run_by_study"), std::string::npos) << plans;
}

TEST_F(QueryPlan, TheLoadAtARestartReadsOnlyWhatIsNotFinal) {
  (void)Load(*db_);
  const std::string plans = Plans();
  EXPECT_NE(plans.find("study USING INDEX study_open"), std::string::npos) << plans;
  EXPECT_NE(plans.find("allocation USING INDEX allocation_open"), std::string::npos) << plans;
  EXPECT_EQ(plans.find("SCAN provenance"), std::string::npos) << plans;
}

}  // namespace
}  // namespace scalelab::db
