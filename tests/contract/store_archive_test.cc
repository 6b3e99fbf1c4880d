// The contract of every Store: archives of studies.
#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "db/outbox/outbox.h"
#include "db/sqlite/sqlite.h"
#include "db/study_files/study_files.h"
#include "tests/contract/archive_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class StoreArchive : public StoreContract {
 protected:
  void SetUp() override {
    StoreContract::SetUp();
    file_ = std::make_unique<OpenFile>(directory_.path() + "/archive");
  }
  absl::Status Archive(int64_t id) { return Archive(id, *file_); }
  absl::Status Archive(int64_t id, const OpenFile& file) {
    return WriteArchive(*store_, id, TestSeal, file.fd());
  }
  absl::Status Check(const std::string& bytes) {
    const int fd = memfd_create("archive", MFD_CLOEXEC);
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const absl::Status checked = CheckArchive(fd).status();
    close(fd);
    return checked;
  }
  void Delete(int64_t id) {
    WriteBatch batch;
    batch.deleted_studies = {id};
    Commit(batch);
    MaintainAll();
  }
  void MaintainAll() {
    absl::StatusOr<bool> more = true;
    while (more.ok() && *more) more = store_->Maintain();
    ASSERT_TRUE(more.ok()) << more.status();
  }
  // Returns the number of rows of each table, by name.
  std::map<std::string, int64_t> RowCounts() {
    std::map<std::string, int64_t> counts;
    const absl::Status status = store_->ReadRows([&](Database& db) {
      for (const ArchiveTable& table : ArchiveTables())
        counts[table.name] = *db.QueryInt(std::string("SELECT count(*) FROM ") + table.name);
      for (const char* name : {"deleted_study", "run_count", "metric_key"})
        counts[name] = *db.QueryInt(std::string("SELECT count(*) FROM ") + name);
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    return counts;
  }
  int64_t Counter(const std::string& name) {
    int64_t value = 0;
    EXPECT_TRUE(store_
                    ->ReadRows([&](Database& db) {
                      value = *db.QueryInt("SELECT value FROM counter WHERE name = '" + name + "'");
                      return absl::OkStatus();
                    })
                    .ok());
    return value;
  }

  std::unique_ptr<OpenFile> file_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreArchive, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StoreArchive, ARestoredStudyEqualsTheArchivedOne) {
  WriteBatch batch = AFinalStudy(3, 40, 300);
  batch.notices.clear();  // the restore of a pending one changes it
  Commit(batch);
  Commit(AFinalStudy(4, 2, 400));  // another study, which must not change
  MaintainAll();
  const std::vector<CurveRow> curve = *store_->ListCurveRows(3).value();
  ASSERT_TRUE(Archive(3).ok());
  Delete(3);
  ASSERT_EQ(RestoreAll(*store_, file_->fd(), 1000).value(), 1000);

  const StudyRow study = store_->GetStudy(1000).value();
  EXPECT_EQ(study.name, "archived");
  EXPECT_EQ(study.state, StudyState::kFailed);
  EXPECT_EQ(study.request_id, "");
  EXPECT_TRUE(study.is_private);
  EXPECT_EQ(GetStudyFile(*store_, 1000).value(), "study: archived  # for the paper\n");
  EXPECT_THAT(store_->CountRuns({1000}).value().front(), ElementsAre(0, 0, 0, 20, 20, 0, 0));
  const OpenFile again(directory_.path() + "/again");
  ASSERT_TRUE(Archive(1000, again).ok());
  const std::vector<std::string> rows = Rows(file_->fd()), restored_rows = Rows(again.fd());
  ASSERT_EQ(restored_rows.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(restored_rows[i], rows[i]);

  const std::vector<CurveRow> restored = *store_->ListCurveRows(1000).value();
  ASSERT_EQ(restored.size(), curve.size());
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(restored[i].throughput, curve[i].throughput);
    EXPECT_EQ(restored[i].state, curve[i].state);
    EXPECT_EQ(restored[i].message, curve[i].message);
    EXPECT_EQ(restored[i].attempt_id == 0, curve[i].attempt_id == 0);
  }
  const std::vector<AttemptRow> attempts = store_->ListAttempts(1001).value();
  ASSERT_THAT(attempts, SizeIs(2));
  EXPECT_EQ(attempts[1].directory, "");
  EXPECT_EQ(attempts[0].throughput, 51.5);
  EXPECT_EQ(attempts[1].throughput, std::nullopt);
  const std::vector<Series> points = Points({attempts[1].id, "loss", 1});
  ASSERT_THAT(points, SizeIs(1));
  EXPECT_EQ(points[0].value[3], -3e300);
  EXPECT_EQ(points[0].step[3], 6);
  EXPECT_THAT(Points({402, "", {}}), SizeIs(4)) << "the other study has lost points";
}

TEST_P(StoreArchive, AnArchiveForOthersHasNoNotificationsAndOtherTokens) {
  WriteBatch batch = AFinalStudy(3, 4, 300);
  batch.studies[0].spec = R"({"study":"s","notify":{"webhook":"https://secret.example"},"seed":"1"})";
  Commit(batch);
  const OpenFile published(directory_.path() + "/published");
  ASSERT_TRUE(Archive(3).ok());
  ASSERT_TRUE(WriteArchive(*store_, 3, TestSeal, published.fd(), /*publish=*/true).ok());
  const std::vector<std::string> all = Rows(file_->fd()), some = Rows(published.fd());
  const auto count = [](const std::vector<std::string>& rows, const std::string& table) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const auto& row) { return row.rfind(table + " ", 0) == 0; });
  };
  EXPECT_EQ(count(all, "notice"), 1);
  EXPECT_EQ(count(some, "notice"), 0);
  EXPECT_EQ(count(some, "attempt"), count(all, "attempt"));
  EXPECT_EQ(count(some, "point_chunk"), count(all, "point_chunk"));
  EXPECT_THAT(some[0], AllOf(HasSubstr(R"({"study":"s","seed":"1"})"), Not(HasSubstr("secret"))));
  const std::vector<AttemptRow> attempts = store_->ListAttempts(301).value();
  for (const AttemptRow& attempt : attempts) EXPECT_THAT(some, Each(Not(HasSubstr(attempt.token))));
  Delete(3);
  EXPECT_EQ(RestoreAll(*store_, published.fd(), 1000).value(), 1000);
}

TEST_P(StoreArchive, AnArchiveForOthersHasTheStudyFileUnlessItMayNameTheirReceivers) {
  const auto published_file = [&](int64_t id, const std::string& spec, const std::string& text) {
    WriteBatch batch = AFinalStudy(id, 1, 100 * id);
    batch.studies[0].spec = spec;
    batch.study_files[0].text = text;
    Commit(batch);
    const OpenFile published(directory_.path() + "/published");
    EXPECT_TRUE(WriteArchive(*store_, id, TestSeal, published.fd(), /*publish=*/true).ok());
    Delete(id);
    EXPECT_EQ(RestoreAll(*store_, published.fd(), 1000 * id).value(), 1000 * id);
    return GetStudyFile(*store_, 1000 * id).value();
  };
  EXPECT_EQ(published_file(3, R"({"study":"s"})", "study: s  # mine\n"), "study: s  # mine\n");
  EXPECT_EQ(published_file(4, R"({"study":"s"})", "study: s\n# Notify: {mail: a@b}\n"), "");
  const std::string escaped = "study: s\n\"not\\x69fy\": {mail: a@b}\n";
  const std::string notified = R"({"study":"s","notify":{"mail":"a@b"}})";
  EXPECT_EQ(published_file(5, notified, escaped), "");
  EXPECT_EQ(published_file(6, notified, "study: s\n"), "study: s\n") << "the configuration has added it";
}

TEST_P(StoreArchive, PointsThatAreNotMergedYetAreMergedAfterTheRestore) {
  WriteBatch batch = AFinalStudy(1, 1, 1);
  Commit(batch);
  for (int part = 1; part < 5; ++part) {
    WriteBatch more;
    more.appends = {AnAppend(1, 0, 40 * part, 40 * part + 40)};
    more.appends[0].columns = {AColumn("loss", 4 * part, {1, 2, 3, 4})};
    Commit(more);
  }
  ASSERT_TRUE(Archive(1).ok());
  Delete(1);
  ASSERT_TRUE(RestoreAll(*store_, file_->fd(), 100).ok());
  const int64_t before = RowCounts()["point_chunk"];
  MaintainAll();
  EXPECT_LT(RowCounts()["point_chunk"], before);
  EXPECT_THAT(Points({100, "loss", 0})[0].value, SizeIs(20));
}

TEST_P(StoreArchive, AStudyThatIsThereIsNotStoredAgain) {
  Commit(AFinalStudy(3, 2, 300));
  MaintainAll();
  ASSERT_TRUE(Archive(3).ok());
  const auto before = RowCounts();
  const absl::Status refused = RestoreAll(*store_, file_->fd(), 1000).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("studies/3"));
  MaintainAll();
  EXPECT_EQ(RowCounts(), before);
  Delete(3);
  ASSERT_TRUE(RestoreAll(*store_, file_->fd(), 1000).ok());
  EXPECT_THAT(RestoreAll(*store_, file_->fd(), 2000).status().message(), HasSubstr("studies/1000"));
}

TEST_P(StoreArchive, OneStudyIsNotRestoredTwiceAtTheSameTime) {
  Commit(AFinalStudy(3, 2, 300));
  ASSERT_TRUE(Archive(3).ok());
  Delete(3);
  const ArchiveHead head = CheckArchive(file_->fd()).value();
  Restore first(*store_, file_->fd(), head, IdsFrom(1000));
  ASSERT_TRUE(first.Step().ok());
  EXPECT_EQ(RestoreAll(*store_, file_->fd(), 2000).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(first.Step().value());
  EXPECT_TRUE(store_->GetStudy(1000).ok());
}

TEST_P(StoreArchive, AnyChangedByteIsFound) {
  Commit(AFinalStudy(3, 1, 300));
  ASSERT_TRUE(Archive(3).ok());
  const std::string bytes = file_->Bytes();
  ASSERT_TRUE(Check(bytes).ok());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    ASSERT_EQ(Check(damaged).code(), absl::StatusCode::kDataLoss) << "byte " << at;
  }
}

TEST_P(StoreArchive, AnyCutIsFound) {
  Commit(AFinalStudy(3, 1, 300));
  ASSERT_TRUE(Archive(3).ok());
  const std::string bytes = file_->Bytes();
  for (size_t size = 0; size < bytes.size(); ++size)
    ASSERT_EQ(Check(bytes.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size << " bytes";
  EXPECT_EQ(Check(bytes + "x").code(), absl::StatusCode::kDataLoss);
}

// Writes the rows of `from` after `change`, with a correct checksum, to `forged`.
void Forge(const OpenFile& forged, int from, const std::function<bool(ArchiveRow&)>& change) {
  ArchiveWriter writer(forged.fd());
  EXPECT_TRUE(writer.WriteHeader(NewestSchema()).ok());
  ArchiveReader reader(from);
  EXPECT_TRUE(reader.CheckWhole().ok());
  EXPECT_TRUE(reader.Begin(NewestSchema()).ok());
  ArchiveRow row;
  for (absl::StatusOr<bool> more = reader.Next(row); more.ok() && *more; more = reader.Next(row)) {
    const bool kept = change(row);
    EXPECT_TRUE(!kept || writer.WriteRow(row).ok());
  }
  EXPECT_TRUE(writer.Finish(TestSeal).ok());
}

// Like Forge, and checks the result.
absl::Status CheckForged(const std::string& path, int from, const std::function<bool(ArchiveRow&)>& change) {
  const OpenFile forged(path);
  Forge(forged, from, change);
  return CheckArchive(forged.fd()).status();
}

TEST_P(StoreArchive, RowsThatDoNotFitTogetherAreRefused) {
  Commit(AFinalStudy(3, 2, 300));
  ASSERT_TRUE(Archive(3).ok());
  const auto check = [&](const std::string& name, const std::string& column, int64_t value) {
    return CheckForged(directory_.path() + "/forged", file_->fd(), [&](ArchiveRow& row) {
      const ArchiveTable& table = ArchiveTables()[row.table];
      if (table.name == name) row.values[ColumnIndex(table, column.c_str())].integer = value;
      return true;
    });
  };
  EXPECT_TRUE(check("study", "priority", 1).ok());
  for (const char* name : {"study", "run", "attempt", "allocation"}) {
    EXPECT_EQ(check(name, "state", 1).code(), absl::StatusCode::kDataLoss) << name;
    EXPECT_EQ(check(name, "state", 99).code(), absl::StatusCode::kDataLoss) << name;
  }
  EXPECT_EQ(check("run", "study_id", 4).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check("run", "id", 300).code(), absl::StatusCode::kDataLoss) << "one id twice";
  EXPECT_EQ(check("point_chunk", "id", int64_t{77} << 32).code(), absl::StatusCode::kDataLoss);
  const auto without = [&](const std::string& name) {
    return CheckForged(directory_.path() + "/forged", file_->fd(),
                       [&](ArchiveRow& row) { return ArchiveTables()[row.table].name != name; });
  };
  for (const char* name : {"study", "run", "cell", "attempt", "series"})
    EXPECT_EQ(without(name).code(), absl::StatusCode::kDataLoss) << name;
}

// The coordinator uses positions as indexes.
TEST_P(StoreArchive, RunsWhosePositionsDoNotCountUpAreRefused) {
  Commit(AFinalStudy(3, 2, 300));
  ASSERT_TRUE(Archive(3).ok());
  const auto check = [&](const Value& first, const Value& second) {
    int64_t runs = 0;
    return CheckForged(directory_.path() + "/forged", file_->fd(), [&](ArchiveRow& row) {
      const ArchiveTable& table = ArchiveTables()[row.table];
      if (table.name != std::string("run")) return true;
      row.values[ColumnIndex(table, "position")] = runs++ == 0 ? first : second;
      return true;
    });
  };
  const auto number = [](int64_t n) { return Value{Value::Type::kInteger, n, 0, ""}; };
  EXPECT_TRUE(check(number(0), number(1)).ok());
  EXPECT_EQ(check(number(-1), number(0)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check(number(0), number(0)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check(number(1), number(0)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check(number(0), number(2'147'483'647)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check(number(0), Value{Value::Type::kText, 1, 0, "-1"}).code(), absl::StatusCode::kDataLoss)
      << "SQLite would store the number -1";
}

TEST_P(StoreArchive, AStateThatIsNoNumberIsRefused) {
  Commit(AFinalStudy(3, 2, 300));
  ASSERT_TRUE(Archive(3).ok());
  for (const char* name : {"study", "run", "attempt", "allocation"}) {
    const absl::Status checked =
        CheckForged(directory_.path() + "/forged", file_->fd(), [&](ArchiveRow& row) {
          const ArchiveTable& table = ArchiveTables()[row.table];
          if (table.name != std::string(name)) return true;
          Value& state = row.values[ColumnIndex(table, "state")];
          state.type = Value::Type::kText;
          state.bytes = "1";  // SQLite would store the number 1, a state that is not final
          return true;
        });
    EXPECT_EQ(checked.code(), absl::StatusCode::kDataLoss) << name;
  }
}

// Such a file is small, because zstd shrinks zeros to a ten-thousandth.
TEST_P(StoreArchive, ValuesAndRowsThatWouldFillTheMemoryAreRefused) {
  Commit(AFinalStudy(3, 1, 300));
  ASSERT_TRUE(Archive(3).ok());
  const auto check = [&](size_t columns, size_t bytes) {
    return CheckForged(directory_.path() + "/forged", file_->fd(), [&](ArchiveRow& row) {
      const ArchiveTable& table = ArchiveTables()[row.table];
      if (table.name != std::string("run_summary")) return true;
      for (size_t i = row.values.size() - columns; i < row.values.size(); ++i)
        row.values[i] = {Value::Type::kBlob, 0, 0, std::string(bytes, '\0')};
      return true;
    });
  };
  constexpr size_t kMiB = 1 << 20;
  EXPECT_TRUE(check(1, 32 * kMiB).ok()) << "no legal value is larger";
  EXPECT_EQ(check(1, 64 * kMiB).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(check(4, 15 * kMiB).ok());
  EXPECT_EQ(check(4, 17 * kMiB).code(), absl::StatusCode::kDataLoss) << "one row with 68 MiB";
}

TEST_P(StoreArchive, ACheckEndsAtTheLimitOfTheContentAndWhenNobodyWaits) {
  Commit(AFinalStudy(3, 20, 300));
  ASSERT_TRUE(Archive(3).ok());
  // 200 MiB of content in a small file.
  const OpenFile large(directory_.path() + "/large");
  Forge(large, file_->fd(), [](ArchiveRow& row) {
    const ArchiveTable& table = ArchiveTables()[row.table];
    if (table.name == std::string("run"))
      row.values[ColumnIndex(table, "message")] = {Value::Type::kText, 0, 0, std::string(10 << 20, ' ')};
    return true;
  });
  EXPECT_LT(large.Bytes().size(), 1u << 20);
  const absl::StatusOr<ArchiveHead> whole = CheckArchive(large.fd());
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_GT(whole->content_bytes, 200 << 20);
  EXPECT_TRUE(CheckArchive(large.fd(), whole->content_bytes).ok());
  int64_t asked = 0;
  const auto count = [&asked] { return ++asked < 0; };
  const absl::Status refused = CheckArchive(large.fd(), 50 << 20, count).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_LT(asked, 50) << "it ended after about five of the runs";
  asked = 0;
  const auto third = [&asked] { return ++asked == 3; };
  EXPECT_EQ(CheckArchive(large.fd(), whole->content_bytes, third).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
}

// They may have run on machines of another service, whose nodes have the same names.
TEST_P(StoreArchive, ProvenanceOfRestoredAttemptsIsNotLoadedAsThatOfTheNewestAttempts) {
  Commit(AFinalStudy(3, 4, 300));
  Commit(AFinalStudy(4, 2, 400));
  ASSERT_TRUE(Archive(3).ok());
  Delete(3);
  ASSERT_EQ(RestoreAll(*store_, file_->fd(), 1000).value(), 1000);
  ASSERT_NE(store_->GetProvenance(1000).value(), "");
  const Snapshot loaded = store_->Load().value();
  std::vector<int64_t> attempts;
  for (const ProvenanceRow& row : loaded.newest_provenance) attempts.push_back(row.attempt_id);
  EXPECT_THAT(attempts, ElementsAre(402, 401, 400));
}

TEST_P(StoreArchive, NamesThatNoSubmissionAllowsAreRefused) {
  Commit(AFinalStudy(3, 2, 300));
  ASSERT_TRUE(Archive(3).ok());
  const auto check = [&](const char* column, const std::string& value) {
    const absl::Status checked =
        CheckForged(directory_.path() + "/forged", file_->fd(), [&](ArchiveRow& row) {
          const ArchiveTable& table = ArchiveTables()[row.table];
          if (table.name == std::string("study")) row.values[ColumnIndex(table, column)].bytes = value;
          return true;
        });
    return checked.code();
  };
  EXPECT_EQ(check("name", std::string(100, 'n')), absl::StatusCode::kOk);
  EXPECT_EQ(check("owner", std::string(64, 'o')), absl::StatusCode::kOk);
  EXPECT_EQ(check("name", std::string(101, 'n')), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check("owner", std::string(65, 'o')), absl::StatusCode::kDataLoss);
  for (const char* column : {"name", "owner"}) {
    for (const char* text : {"\xff", "two\nlines"})
      EXPECT_EQ(check(column, text), absl::StatusCode::kDataLoss) << column << " " << text;
  }
}

// The tables and columns that newer schemas have added to schema 7.
const std::set<std::string> kAddedLater = {"attempt.resumed_step",
                                           "attempt.checkpoint_step",
                                           "attempt.throughput",
                                           "attempt.epoch_seconds",
                                           "allocation.cancelled",
                                           "study_origin",
                                           "study_file"};

TEST_P(StoreArchive, AStudyOfTheFirstSchemaWithArchivesIsRestored) {
  WriteBatch batch = AFinalStudy(3, 3, 300);
  batch.notices.clear();  // the restore of a pending one changes it
  batch.study_files.clear();
  for (AttemptRow& attempt : batch.attempts) {
    attempt.resumed_step = 0;
    attempt.checkpoint_step = 0;
    attempt.throughput.reset();
  }
  Commit(batch);
  MaintainAll();
  ASSERT_TRUE(Archive(3).ok());
  const std::vector<std::string> rows = Rows(file_->fd());
  const OpenFile old(directory_.path() + "/old");
  const std::string bytes = ArchiveOfSchema(7, file_->fd(), kAddedLater);
  ASSERT_EQ(write(old.fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  Delete(3);
  const absl::StatusOr<int64_t> restored = RestoreAll(*store_, old.fd(), 1000);
  ASSERT_TRUE(restored.ok()) << restored.status();
  const OpenFile again(directory_.path() + "/again");
  ASSERT_TRUE(Archive(1000, again).ok());
  EXPECT_EQ(Rows(again.fd()), rows);
}

TEST_P(StoreArchive, AnArchiveWithWhatThisVersionDoesNotKnowIsRefused) {
  Commit(AFinalStudy(3, 1, 300));
  ASSERT_TRUE(Archive(3).ok());
  const int newest = NewestSchema();
  EXPECT_TRUE(Check(ArchiveOfSchema(newest, file_->fd(), {})).ok());
  EXPECT_TRUE(Check(ArchiveOfSchema(7, file_->fd(), kAddedLater)).ok());
  for (const std::string& unknown :
       {ArchiveOfSchema(newest, file_->fd(), {}, {"table_of_tomorrow"}),
        ArchiveOfSchema(newest + 1, file_->fd(), {}), ArchiveOfSchema(7, file_->fd(), {"run.message"}),
        ArchiveOfSchema(7, file_->fd(), {"study"})}) {
    EXPECT_EQ(Check(unknown).code(), absl::StatusCode::kFailedPrecondition) << Check(unknown);
  }
}

// An archive without a column gives its rows the value that the migration gave to the rows of the database.
TEST_P(StoreArchive, AColumnThatOldArchivesLackHasTheDefaultOfTheSchema) {
  const absl::Status status = store_->ReadRows([](Database& db) {
    for (const ArchiveTable& table : ArchiveTables()) {
      for (const ArchiveColumn& column : table.columns) {
        if (!column.before.has_value()) continue;
        const std::string query = std::string("SELECT dflt_value FROM pragma_table_info('") + table.name +
                                  "') WHERE name = '" + column.name + "'";
        EXPECT_EQ(*db.QueryInt(query.c_str()), column.before->integer) << table.name << "." << column.name;
        const std::string null = "SELECT (" + query + ") IS NULL";
        EXPECT_EQ(*db.QueryInt(null.c_str()), column.before->type == Value::Type::kNull)
            << table.name << "." << column.name;
      }
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
}

TEST_P(StoreArchive, AStudyIsInvisibleUntilAllOfItIsStored) {
  Commit(AFinalStudy(3, 250, 10'000));
  ASSERT_TRUE(Archive(3).ok());
  Delete(3);
  Restore restore(*store_, file_->fd(), CheckArchive(file_->fd()).value(), IdsFrom(100'000));
  int steps = 0;
  for (bool more = true; more; ++steps) {
    EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(100'000).status()));
    EXPECT_THAT(store_->ListStudies(0, 10, {}).value(), IsEmpty());
    EXPECT_THAT(store_->Load().value().studies, IsEmpty());
    ASSERT_TRUE(store_->Maintain().ok());
    const absl::StatusOr<bool> stepped = restore.Step();
    ASSERT_TRUE(stepped.ok()) << stepped.status();
    more = *stepped;
  }
  EXPECT_GT(steps, 3);
  EXPECT_THAT(store_->ListStudies(0, 10, {}).value(), SizeIs(1));
  EXPECT_EQ(store_->ListRuns({100'000, {}, -1, 10'000}).value().size(), 250u);
  ASSERT_TRUE(store_->Maintain().ok());
  EXPECT_EQ(store_->ListRuns({100'000, {}, -1, 10'000}).value().size(), 250u);
}

TEST_P(StoreArchive, ARestoreThatIsAbandonedLeavesNothingAndUsesItsIdsUp) {
  Commit(AFinalStudy(3, 250, 10'000));
  ASSERT_TRUE(Archive(3).ok());
  Delete(3);
  const auto before = RowCounts();
  {
    Restore restore(*store_, file_->fd(), CheckArchive(file_->fd()).value(), IdsFrom(100'000));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(restore.Step().value());
    EXPECT_NE(RowCounts(), before);
  }
  MaintainAll();
  EXPECT_EQ(RowCounts(), before);
  EXPECT_EQ(Counter("study"), 100'000);
  EXPECT_EQ(Counter("run"), 100'249);
  // Rows that are added later have larger ids. Ids that were reserved before the restore are smaller.
  WriteBatch batch;
  batch.studies = {AStudy(99'999)};
  batch.runs = {ARun(99'999, 99'999, 1)};
  Commit(batch);
  EXPECT_EQ(Counter("study"), 100'000);
}

TEST_P(StoreArchive, NotificationsOfARestoredStudyAreNotSent) {
  Commit(AFinalStudy(3, 1, 300));
  ASSERT_TRUE(Archive(3).ok());
  std::vector<NoticeRow> due = ListDueNotices(*store_, 1, 10).value();
  ASSERT_THAT(due, SizeIs(1));
  due[0].state = NoticeRow::State::kSent;
  Delete(3);
  ASSERT_TRUE(UpdateNotice(*store_, due[0]).ok());
  ASSERT_EQ(RestoreAll(*store_, file_->fd(), 1000).value(), 1000);
  EXPECT_THAT(ListDueNotices(*store_, 1, 10).value(), IsEmpty());
  const std::vector<NoticeRow> notices = ListNotices(*store_, 1000).value();
  ASSERT_THAT(notices, SizeIs(1));
  EXPECT_EQ(notices[0].state, NoticeRow::State::kGivenUp);
}

TEST_P(StoreArchive, AJobThatEndsAfterItsStudyIsArchivedAsEnded) {
  WriteBatch batch = AFinalStudy(3, 1, 300);
  batch.allocations[0].state = AllocationState::kReleasing;
  Commit(batch);
  ASSERT_TRUE(Archive(3).ok());
  Delete(3);
  EXPECT_EQ(RestoreAll(*store_, file_->fd(), 500).status().code(), absl::StatusCode::kUnavailable)
      << "the row of the job is there";
  WriteBatch end;
  end.allocations = batch.allocations;
  end.allocations[0].state = AllocationState::kEnded;
  Commit(end);
  MaintainAll();
  ASSERT_EQ(RestoreAll(*store_, file_->fd(), 1000).value(), 1000);
  const AllocationRow allocation = store_->GetAllocation(1000).value();
  EXPECT_EQ(allocation.state, AllocationState::kEnded);
  EXPECT_EQ(allocation.ended, batch.studies[0].finished);
  EXPECT_THAT(store_->Load().value().allocations, IsEmpty());
}

TEST_P(StoreArchive, OnlyFinalStudiesAreArchived) {
  CommitStudyWithAttempt(1);
  EXPECT_EQ(Archive(1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Archive(2).code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreArchive, ALargeStudyIsReadWithoutSortingItsRows) {
  const absl::Status status = store_->ReadRows([](Database& db) {
    static std::vector<std::string> texts;  // a Statement caches by address
    for (const ArchiveTable& table : ArchiveTables()) texts.push_back("EXPLAIN QUERY PLAN " + table.select);
    for (const std::string& text : texts) {
      Statement plan(db, text.c_str());
      plan.Bind(1);
      while (plan.Step()) {
        int64_t id, parent, unused;
        std::string detail;
        plan.Read(id, parent, unused, detail);
        EXPECT_THAT(detail, Not(HasSubstr("TEMP B-TREE"))) << text;
        EXPECT_THAT(detail, Not(HasSubstr("SCAN"))) << text;
      }
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
}

// Archives must contain all data that a later schema adds to studies.
TEST_P(StoreArchive, EveryTableAndColumnOfAStudyIsInTheArchive) {
  // Tables that belong to the whole service, and columns that a restore computes.
  const std::set<std::string> others = {
      "access_token", "audit_entry", "counter", "deleted_study", "drain", "meta",       "metric_key",
      "ordinal",      "prediction",  "removal", "run_count",     "usage", "usage_hour", "sqlite_sequence"};
  const std::set<std::string> computed = {"study.first_run_id", "study.last_run_id", "merge_task.series_id",
                                          "merge_task.chunk_id", "merge_task.ended"};
  std::set<std::string> archived = computed;
  for (const ArchiveTable& table : ArchiveTables()) {
    for (const ArchiveColumn& column : table.columns)
      archived.insert(std::string(table.name) + "." + column.name);
  }
  const absl::Status status = store_->ReadRows([&](Database& db) {
    Statement columns(
        db,
        "SELECT t.name, t.name || '.' || c.name FROM sqlite_schema t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table'");
    while (columns.Step()) {
      std::string table, column;
      columns.Read(table, column);
      if (others.contains(table)) continue;
      EXPECT_EQ(archived.erase(column), 1u) << column << " is not in archives; see db/archive/README.md";
    }
    return columns.status();
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(archived, IsEmpty());
}

}  // namespace
}  // namespace scalelab::db
