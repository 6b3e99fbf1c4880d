#include "db/sqlite/sqlite.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::db {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Database> Memory() {
  auto db = Database::Open(":memory:", Database::Mode::kReadWrite, 0);
  EXPECT_TRUE(db.ok()) << db.status();
  EXPECT_TRUE((*db)->Execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x REAL, s TEXT) STRICT").ok());
  return std::move(*db);
}

TEST(Sqlite, NanIsStoredAsNullAndReadAsNan) {
  auto db = Memory();
  ASSERT_TRUE(Statement(*db, "INSERT INTO t VALUES (?, ?, ?)").Run(1, std::nan(""), "").ok());
  EXPECT_EQ(*db->QueryInt("SELECT x IS NULL FROM t"), 1);
  Statement s(*db, "SELECT x, s FROM t");
  ASSERT_TRUE(s.Step());
  double x = 0;
  std::string text = "old";
  s.Read(x, text);
  EXPECT_TRUE(std::isnan(x));
  EXPECT_EQ(text, "");
}

TEST(Sqlite, AnOptionalTellsNullFromZero) {
  auto db = Memory();
  Statement insert(*db, "INSERT INTO t VALUES (?, ?, 'x')");
  ASSERT_TRUE(insert.Run(1, std::optional<double>()).ok());
  ASSERT_TRUE(insert.Run(2, std::optional<double>(0.0)).ok());
  Statement s(*db, "SELECT x FROM t ORDER BY id");
  std::optional<double> x = 7.0;
  ASSERT_TRUE(s.Step());
  s.Read(x);
  EXPECT_EQ(x, std::nullopt);
  ASSERT_TRUE(s.Step());
  s.Read(x);
  EXPECT_EQ(x, 0.0);
}

TEST(Sqlite, ATransactionThatIsNotCommittedRollsBack) {
  auto db = Memory();
  {
    Transaction transaction(*db, Transaction::Kind::kWrite);
    ASSERT_TRUE(db->Execute("INSERT INTO t (id) VALUES (1)").ok());
  }
  EXPECT_EQ(*db->QueryInt("SELECT count(*) FROM t"), 0);
  {
    Transaction transaction(*db, Transaction::Kind::kWrite);
    ASSERT_TRUE(db->Execute("INSERT INTO t (id) VALUES (1)").ok());
    ASSERT_TRUE(transaction.Commit().ok());
  }
  EXPECT_EQ(*db->QueryInt("SELECT count(*) FROM t"), 1);
}

TEST(Sqlite, APreparedStatementServesAgainAfterAnError) {
  auto db = Memory();
  for (int i = 0; i < 2; ++i) {
    Statement insert(*db, "INSERT INTO t (id) VALUES (?)");
    const absl::Status status = insert.Run(1);
    if (i == 0)
      EXPECT_TRUE(status.ok());
    else
      EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  }
  EXPECT_TRUE(Statement(*db, "INSERT INTO t (id) VALUES (?)").Run(2).ok());
}

TEST(Sqlite, ErrorsSayWhereAndWhatToTry) {
  const auto text = [](int rc) { return std::string(StatusOf(rc, 0, "/data/x.db", "why").message()); };
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(SQLITE_FULL, 0, "p", "m")));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(SQLITE_IOERR_SHMMAP, 0, "p", "m")));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(SQLITE_BUSY, 0, "p", "m")));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(SQLITE_READONLY, 0, "p", "m")));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(SQLITE_CANTOPEN, 0, "p", "m")));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(SQLITE_NOTADB, 0, "p", "m")));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(SQLITE_CONSTRAINT_FOREIGNKEY, 0, "p", "m")));
  EXPECT_TRUE(absl::IsAlreadyExists(StatusOf(SQLITE_CONSTRAINT_UNIQUE, 0, "p", "m")));
  EXPECT_TRUE(absl::IsDataLoss(StatusOf(SQLITE_CORRUPT, 0, "p", "m")));
  EXPECT_TRUE(StatusOf(SQLITE_DONE, 0, "p", "m").ok());
  EXPECT_THAT(text(SQLITE_FULL), HasSubstr("/data/x.db"));
  EXPECT_THAT(text(SQLITE_FULL), HasSubstr("free space"));
  EXPECT_THAT(text(SQLITE_READONLY), HasSubstr("write permission"));
  EXPECT_THAT(std::string(StatusOf(SQLITE_IOERR, ENOSPC, "p", "m").message()),
              HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace scalelab::db
