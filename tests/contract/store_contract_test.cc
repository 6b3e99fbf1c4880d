// The contract of every Store: studies, cells, runs, attempts, allocations and results.
#include <array>
#include <thread>

#include "absl/strings/str_cat.h"
#include "db/sqlite/sqlite.h"
#include "db/study_files/study_files.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

template <class Row>
std::vector<int64_t> Ids(const std::vector<Row>& rows) {
  std::vector<int64_t> ids;
  for (const Row& row : rows) ids.push_back(row.id);
  return ids;
}

TEST_P(StoreContract, KeepsEveryMemberOfEveryRecordAcrossAReopen) {
  StudyRow study = AStudy(7, "strong");
  study.request_id = "r-1";
  study.state = StudyState::kRunning;
  study.priority = -3;
  study.runs = 1;
  study.started = 11;
  study.finished = 12;
  study.cancel_requested = true;
  CellRow cell = ACell(70, 7, 4);
  cell.excluded = true;
  cell.key = "[2]";
  cell.spec = "[1,2]";
  RunRow run = ARun(700, 7, 70, 2);
  run.state = RunState::kFailed;
  run.cause = Cause::kOutOfMemory;
  run.attempts = 2;
  run.message = "rank 1: CUDA out of memory \xe2\x80\x94 sorry";
  run.started = 21;
  run.finished = 22;
  AttemptRow attempt = AnAttempt(7000, 700, 2);
  attempt.allocation_id = 5;
  attempt.state = AttemptState::kStopping;
  attempt.cause = Cause::kOutOfMemory;
  attempt.message = "m";
  attempt.nodes = "n1,n2";
  attempt.directory = "/runs/7/700/x";
  attempt.exit_status = 137;
  attempt.parameter_hash = "beef";
  attempt.assigned = 31;
  attempt.started = 32;
  attempt.finished = 33;
  attempt.throughput = 812.25;
  attempt.epoch_seconds = 8.5;
  AllocationRow allocation = AnAllocation(5, 7);
  allocation.run_id = 700;
  allocation.state = AllocationState::kPending;
  allocation.external_id = "4711";
  allocation.ranks_per_node = 4;
  allocation.cpus_per_rank = 8;
  allocation.gpus_per_rank = 1;
  allocation.reason = "Resources";
  allocation.created = 41;
  allocation.started = 42;
  allocation.ended = 43;
  allocation.owner = "ada";
  allocation.partition = "gpu";
  allocation.charged_until = 44;
  allocation.held = 45;
  allocation.cancelled = 46;
  RunSummary summary = ASummary(700, 7000, 812.5);
  summary.throughput_mean = 800;
  summary.peak_memory = 1e9;
  summary.straggler_skew = 0.25;
  summary.reported_step = 0.5;
  summary.nodes_hash = -7;
  summary.times.nodes = "n1,n2";
  summary.times.ranks_per_node = 1;
  summary.times.ranks = {{0.5, 0.125, 0}, {0.25, 0, 0.0625}};
  summary.times.rank_norm = 3;
  summary.times.mean_norm = 2;
  summary.metrics["odd"] = std::numeric_limits<double>::quiet_NaN();
  WriteBatch batch;
  batch.studies = {study};
  batch.cells = {cell};
  batch.runs = {run};
  batch.allocations = {allocation};
  batch.attempts = {attempt};
  batch.provenance = {{7000, R"({"gpu":"A100"})"}};
  batch.epochs = {{7000, 0, 0, 1.5, {{"eval/accuracy", 0.4}}}};
  batch.summaries = {summary};
  Commit(batch);
  Reopen();

  const StudyRow s = store_->GetStudy(7).value();
  EXPECT_EQ(std::tie(s.name, s.owner, s.request_id, s.spec),
            std::tie(study.name, study.owner, study.request_id, study.spec));
  EXPECT_EQ(std::tie(s.state, s.priority, s.runs, s.created, s.started, s.finished, s.cancel_requested),
            std::tie(study.state, study.priority, study.runs, study.created, study.started, study.finished,
                     study.cancel_requested));
  const std::vector<CellRow> cells = store_->ListCells(7).value();
  ASSERT_THAT(cells, SizeIs(1));
  const CellRow& c = cells[0];
  EXPECT_EQ(std::tie(c.id, c.position, c.engine, c.model, c.precision, c.backend, c.ranks, c.global_batch,
                     c.key, c.spec, c.excluded),
            std::tie(cell.id, cell.position, cell.engine, cell.model, cell.precision, cell.backend,
                     cell.ranks, cell.global_batch, cell.key, cell.spec, cell.excluded));
  const RunRow r = store_->GetRun(700).value();
  EXPECT_EQ(std::tie(r.study_id, r.cell_id, r.repeat, r.position, r.state, r.cause, r.attempts, r.message,
                     r.started, r.finished),
            std::tie(run.study_id, run.cell_id, run.repeat, run.position, run.state, run.cause, run.attempts,
                     run.message, run.started, run.finished));
  const std::vector<AttemptRow> attempts = store_->ListAttempts(700).value();
  ASSERT_THAT(attempts, SizeIs(1));
  const AttemptRow& a = attempts[0];
  EXPECT_EQ(std::tie(a.id, a.run_id, a.number, a.token, a.allocation_id, a.state, a.cause, a.message, a.nodes,
                     a.directory, a.exit_status, a.parameter_hash, a.assigned, a.started, a.finished,
                     a.throughput, a.epoch_seconds),
            std::tie(attempt.id, attempt.run_id, attempt.number, attempt.token, attempt.allocation_id,
                     attempt.state, attempt.cause, attempt.message, attempt.nodes, attempt.directory,
                     attempt.exit_status, attempt.parameter_hash, attempt.assigned, attempt.started,
                     attempt.finished, attempt.throughput, attempt.epoch_seconds));
  const AllocationRow l = store_->GetAllocation(5).value();
  EXPECT_EQ(std::tie(l.token, l.study_id, l.run_id, l.state, l.external_id, l.nodes, l.ranks_per_node,
                     l.cpus_per_rank, l.gpus_per_rank, l.reason, l.created, l.started, l.ended, l.owner,
                     l.partition, l.charged_until, l.held, l.cancelled),
            std::tie(allocation.token, allocation.study_id, allocation.run_id, allocation.state,
                     allocation.external_id, allocation.nodes, allocation.ranks_per_node,
                     allocation.cpus_per_rank, allocation.gpus_per_rank, allocation.reason,
                     allocation.created, allocation.started, allocation.ended, allocation.owner,
                     allocation.partition, allocation.charged_until, allocation.held, allocation.cancelled));
  const RunSummary u = store_->GetSummary(700).value();
  EXPECT_EQ(std::tie(u.attempt_id, u.throughput, u.throughput_mean, u.peak_memory, u.straggler_skew,
                     u.accuracy, u.steps, u.fingerprint, u.reported_step, u.nodes_hash),
            std::tie(summary.attempt_id, summary.throughput, summary.throughput_mean, summary.peak_memory,
                     summary.straggler_skew, summary.accuracy, summary.steps, summary.fingerprint,
                     summary.reported_step, summary.nodes_hash));
  const std::vector<RunTimes> times = store_->ListRunTimes(7).value();
  ASSERT_THAT(times, SizeIs(1));
  EXPECT_EQ(
      std::tie(times[0].run_id, times[0].attempt_id, times[0].nodes, times[0].ranks_per_node, times[0].ranks),
      std::tie(summary.run_id, summary.attempt_id, summary.times.nodes, summary.times.ranks_per_node,
               summary.times.ranks));
  EXPECT_EQ(
      std::tie(times[0].comm_total, times[0].rank_norm, times[0].mean_norm, times[0].samples_to_accuracy),
      std::tie(summary.times.comm_total, summary.times.rank_norm, summary.times.mean_norm,
               summary.times.samples_to_accuracy));
  EXPECT_THAT(store_->ListRunTimes(8).value(), IsEmpty());
  const std::vector<CurveRow> rows = *store_->ListCurveRows(7).value();
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(
      std::tie(rows[0].throughput, rows[0].reported_step, rows[0].nodes_hash, rows[0].attempts,
               rows[0].message),
      std::tie(summary.throughput, summary.reported_step, summary.nodes_hash, run.attempts, run.message));
  EXPECT_EQ(u.metrics.at("run/throughput"), 812.5);
  EXPECT_TRUE(std::isnan(u.metrics.at("odd")));
}

TEST_P(StoreContract, KeepsUsageAndDrainMode) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.studies[0].held = true;
  batch.usage = {{"ada", 5, 1.5, 2.5, 3.5, 4.5}, {"bob", 6, 1, 0, 2, 0}, {"ada", 7, 10, 20, 30, 40}};
  batch.usage_hours = {{"ada", "gpu", 1000, 50}, {"ada", "", 1001, 60}, {"ada", "gpu", 1000, 70}};
  batch.drain = DrainRow{1, true, "new switch", 9};
  Commit(batch);
  Reopen();
  EXPECT_TRUE(store_->GetStudy(1)->held);
  for (const ServiceState& service : {store_->LoadServiceState().value(), store_->Load()->service}) {
    ASSERT_THAT(service.usage, SizeIs(2));
    const UsageRow& ada = service.usage[0];
    EXPECT_EQ(std::tie(ada.owner, ada.at), std::tuple("ada", 7));
    EXPECT_EQ(std::tie(ada.decayed_node_seconds, ada.decayed_gpu_seconds, ada.node_seconds, ada.gpu_seconds),
              std::tuple(10, 20, 30, 40));
    ASSERT_THAT(service.usage_hours, SizeIs(2));
    EXPECT_EQ(service.usage_hours[1].gpu_seconds, 70);
    EXPECT_TRUE(service.drain.on);
    EXPECT_EQ(service.drain.reason, "new switch");
    EXPECT_EQ(service.drain.since, 9);
  }
  WriteBatch later;
  later.usage_hours = {{"bob", "", 1001 + kUsageHours, 1}};
  later.drain = DrainRow();
  later.deleted_studies = {1};
  Commit(later);
  const ServiceState service = store_->LoadServiceState().value();
  EXPECT_THAT(service.usage, SizeIs(2)) << "usage remains when studies are deleted";
  EXPECT_THAT(service.usage_hours, SizeIs(1)) << "hours that no limit counts are deleted";
  EXPECT_FALSE(service.drain.on);
}

TEST_P(StoreContract, ReadsTheCellsAndValuesThatAreNamed) {
  const std::string script(1 << 20, 'x');
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2)};
  batch.cell_values = {AValue(1, 0, "", R"({"epochs":9})"), AValue(1, 1, "ranks", "1"),
                       AValue(1, 2, "ranks", "2"), AValue(1, 3, "command", script), AValue(2, 0, "", "{}")};
  batch.cells = {ACell(1, 1), ACell(2, 1, 2), ACell(3, 1, 4)};
  Commit(batch);
  Reopen();
  EXPECT_THAT(Ids(store_->GetCells({3, 1}).value()), ElementsAre(3, 1));
  EXPECT_THAT(store_->GetCells({}).value(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store_->GetCells({1, 99}).status()));
  const auto numbers = [](const std::vector<CellValueRow>& values) {
    std::vector<int> all;
    for (const CellValueRow& value : values) all.push_back(value.number);
    return all;
  };
  const std::vector<CellValueRow> all = store_->ListCellValues(1).value();
  EXPECT_THAT(numbers(all), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(std::tie(all[0].study_id, all[0].name, all[0].value),
            std::make_tuple(1, std::string(), std::string(R"({"epochs":9})")));
  EXPECT_EQ(all[3].name, "command");
  EXPECT_EQ(all[3].value, script);
  EXPECT_THAT(numbers(store_->GetCellValues(1, {2, 0, 77}).value()), ElementsAre(2, 0))
      << "77 does not exist";
  EXPECT_THAT(store_->ListCellValues(3).value(), IsEmpty());
  EXPECT_EQ(numbers(store_->Load()->cell_values), (std::vector<int>{0, 1, 2, 3, 0}));
  EXPECT_EQ(numbers(store_->LoadStudy(2)->cell_values), (std::vector<int>{0}));
}

TEST_P(StoreContract, ListsStudiesWithoutTheirSpecifications) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  Commit(batch);
  const std::vector<StudyRow> listed = store_->ListStudies(0, 10, {}).value();
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].name, "resnet");
  EXPECT_EQ(listed[0].created, AStudy(1).created) << "the columns after the specification are in place";
  EXPECT_THAT(listed[0].spec, IsEmpty());
}

TEST_P(StoreContract, ANewRunThatOccursTwiceInABatchIsCountedOnce) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.runs = {ARun(1, 1, 1), ARun(2, 1, 1), ARun(1, 1, 1)};
  batch.runs[2].state = RunState::kRunning;
  Commit(batch);
  EXPECT_THAT(store_->CountRuns({1}).value(), ElementsAre(ElementsAre(0, 1, 1, 0, 0, 0, 0)));
  EXPECT_EQ(store_->GetRun(1)->state, RunState::kRunning);
}

TEST_P(StoreContract, ListsTheSummariesOfARangeOfRuns) {
  for (const int64_t id : {3, 4, 5, 6, 9}) {
    CommitStudyWithAttempt(id);
    if (id == 5) continue;  // a run without results
    WriteBatch batch;
    batch.summaries = {ASummary(id, id, 100.0 * static_cast<double>(id))};
    Commit(batch);
  }
  const std::vector<RunSummary> listed = store_->ListSummaries(4, 8).value();
  ASSERT_THAT(listed, SizeIs(2));
  EXPECT_EQ(listed[0].run_id, 4);
  EXPECT_EQ(listed[0].throughput, 400.0);
  EXPECT_THAT(listed[0].metrics, IsEmpty()) << "lists leave them out";
  EXPECT_EQ(listed[1].run_id, 6);
  EXPECT_THAT(store_->ListSummaries(10, 20).value(), IsEmpty());
}

TEST_P(StoreContract, SaysNotFoundForWhatIsNotThere) {
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->FindStudy("x", {}).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->FindRequest("ada", "r").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetRun(1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetAllocation(1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetSummary(1).status()));
  EXPECT_THAT(store_->ListCells(1).value(), IsEmpty());
  EXPECT_THAT(store_->ListCellValues(1).value(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store_->GetCells({1}).status()));
  EXPECT_THAT(*store_->ListCurveRows(1).value(), IsEmpty());
}

TEST_P(StoreContract, PutsOverwriteById) {
  CommitStudyWithAttempt(1);
  WriteBatch batch;
  RunRow run = ARun(1, 1, 1);
  run.state = RunState::kSucceeded;
  run.attempts = 1;
  batch.runs = {run};
  AttemptRow attempt = AnAttempt(1, 1);
  attempt.state = AttemptState::kSucceeded;
  batch.attempts = {attempt};
  StudyRow study = AStudy(1);
  study.state = StudyState::kSucceeded;
  batch.studies = {study};
  Commit(batch);
  EXPECT_EQ(store_->GetRun(1)->state, RunState::kSucceeded);
  EXPECT_EQ(store_->GetRun(1)->attempts, 1);
  EXPECT_EQ(store_->ListAttempts(1).value()[0].state, AttemptState::kSucceeded);
  EXPECT_EQ(store_->GetStudy(1)->state, StudyState::kSucceeded);
  EXPECT_THAT(store_->ListRuns({.study_id = 1, .state = {}, .after_position = -1, .limit = 10}).value(),
              SizeIs(1));
}

TEST_P(StoreContract, ProvenanceOfTheNewestAttemptsAndNoisyAttemptsAreLoaded) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.cells = {ACell(1, 1)};
  batch.runs = {ARun(1, 1, 1), ARun(2, 1, 1, 1)};
  for (int64_t id = 1; id <= 4; ++id) {
    batch.attempts.push_back(AnAttempt(id, id <= 3 ? 1 : 2));
    batch.attempts.back().number = static_cast<int>(id);
    batch.attempts.back().state = AttemptState::kFailed;
    batch.attempts.back().cause = id == 3 ? Cause::kRankKilled : Cause::kNoisy;
    batch.attempts.back().directory = absl::StrCat("/runs/", id);  // that of a restored attempt is empty
    batch.provenance.push_back({id, absl::StrCat("[", id, "]")});
  }
  batch.attempts.back().state = AttemptState::kSucceeded;  // a noisy attempt that is not repeated
  Commit(batch);
  EXPECT_EQ(store_->GetProvenance(3).value(), "[3]");
  EXPECT_EQ(store_->GetProvenance(99).value(), "");
  const Snapshot snapshot = store_->Load().value();
  EXPECT_EQ(snapshot.noisy_attempts, (std::map<int64_t, int>{{1, 2}}));
  ASSERT_THAT(snapshot.newest_provenance, SizeIs(4));
  EXPECT_EQ(snapshot.newest_provenance.front().attempt_id, 4) << "the newest first";
  EXPECT_THAT(store_->LoadStudy(1)->newest_provenance, IsEmpty());
}

TEST_P(StoreContract, FindsTheNewestStudyOfAName) {
  WriteBatch batch;
  batch.studies = {AStudy(1, "a"), AStudy(2, "b"), AStudy(3, "a"), AStudy(4, "c")};
  Commit(batch);
  EXPECT_EQ(store_->FindStudy("a", {})->id, 3);
  EXPECT_EQ(store_->FindStudy("b", {})->id, 2);
}

TEST_P(StoreContract, FindsARequestOfItsOwnerOnly) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2), AStudy(3), AStudy(4)};
  batch.studies[0].request_id = "r";
  batch.studies[1].request_id = "r";
  batch.studies[1].owner = "bob";  // studies 3 and 4 have no request_id, which is no conflict
  Commit(batch);
  EXPECT_EQ(store_->FindRequest("ada", "r")->id, 1);
  EXPECT_EQ(store_->FindRequest("bob", "r")->id, 2);
  EXPECT_TRUE(absl::IsNotFound(store_->FindRequest("eve", "r").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->FindRequest("ada", "").status()));
}

TEST_P(StoreContract, RefusesASecondStudyOfOneRequest) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2)};
  batch.studies[0].request_id = batch.studies[1].request_id = "r";
  EXPECT_TRUE(absl::IsAlreadyExists(store_->Commit(batch)));
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(1).status()));
}

TEST_P(StoreContract, ListsStudiesNewestFirstInPages) {
  WriteBatch batch;
  for (int64_t id = 1; id <= 5; ++id) batch.studies.push_back(AStudy(id));
  Commit(batch);
  EXPECT_THAT(Ids(store_->ListStudies(0, 2, {}).value()), ElementsAre(5, 4));
  EXPECT_THAT(Ids(store_->ListStudies(4, 2, {}).value()), ElementsAre(3, 2));
  EXPECT_THAT(Ids(store_->ListStudies(2, 2, {}).value()), ElementsAre(1));
  EXPECT_THAT(store_->ListStudies(1, 2, {}).value(), IsEmpty());
}

TEST_P(StoreContract, ListsRunsByPositionInPagesAndByState) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2)};
  batch.cells = {ACell(1, 1), ACell(2, 2)};
  // Two studies with interleaved ids, and positions in another order than the ids.
  for (int64_t id = 1; id <= 8; ++id) {
    RunRow run = ARun(id, 2 - id % 2, 2 - id % 2, static_cast<int>(id));
    run.position = static_cast<int>(10 - id);
    run.state = id <= 4 ? RunState::kSucceeded : RunState::kQueued;
    batch.runs.push_back(run);
  }
  Commit(batch);
  EXPECT_THAT(Ids(store_->ListRuns({.study_id = 1, .state = {}, .after_position = -1, .limit = 100}).value()),
              ElementsAre(7, 5, 3, 1));
  EXPECT_THAT(Ids(store_->ListRuns({.study_id = 1, .state = {}, .after_position = 3, .limit = 2}).value()),
              ElementsAre(5, 3));
  EXPECT_THAT(
      Ids(store_->ListRuns({.study_id = 2, .state = RunState::kSucceeded, .after_position = -1, .limit = 100})
              .value()),
      ElementsAre(4, 2));
  EXPECT_THAT(store_->CountRuns({2, 1, 9}).value(),
              ElementsAre(ElementsAre(0, 2, 0, 2, 0, 0, 0), ElementsAre(0, 2, 0, 2, 0, 0, 0),
                          ElementsAre(0, 0, 0, 0, 0, 0, 0)));
}

TEST_P(StoreContract, GivesCurveRowsByCellAndRepeatWithTheirResults) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2)};
  batch.cells = {ACell(1, 1, 1), ACell(2, 1, 2), ACell(3, 2)};
  batch.runs = {ARun(1, 1, 2, 1), ARun(2, 1, 1, 1), ARun(3, 2, 3, 0), ARun(4, 1, 2, 0), ARun(5, 1, 1, 0)};
  batch.runs[0].state = RunState::kFailed;
  batch.runs[0].cause = Cause::kOutOfMemory;
  batch.runs[1].state = RunState::kSucceeded;
  batch.runs[1].started = 21;
  batch.runs[1].finished = 22;
  batch.runs[3].state = RunState::kSucceeded;
  batch.attempts = {AnAttempt(1, 2), AnAttempt(2, 3), AnAttempt(3, 4)};
  batch.summaries = {ASummary(2, 1, 100), ASummary(3, 2, 999), ASummary(4, 3, 190)};
  batch.summaries[0].accuracy = 0.91;
  Commit(batch);
  const std::vector<CurveRow> rows = *store_->ListCurveRows(1).value();
  ASSERT_THAT(rows, SizeIs(4));
  const auto place = [&](int i) { return std::pair(rows[i].cell_id, rows[i].repeat); };
  EXPECT_EQ(place(0), std::pair(int64_t{1}, 0));
  EXPECT_EQ(place(1), std::pair(int64_t{1}, 1));
  EXPECT_EQ(place(2), std::pair(int64_t{2}, 0));
  EXPECT_EQ(place(3), std::pair(int64_t{2}, 1));
  EXPECT_EQ(rows[0].state, RunState::kQueued);
  EXPECT_EQ(rows[0].throughput, std::nullopt);
  EXPECT_EQ(rows[0].attempt_id, 0);
  EXPECT_EQ(rows[1].attempt_id, 1);
  EXPECT_EQ(rows[0].fingerprint, "");
  EXPECT_EQ(rows[1].throughput, 100);
  EXPECT_EQ(rows[1].accuracy, 0.91);
  EXPECT_EQ(rows[1].train_loss, std::nullopt);
  EXPECT_EQ(rows[1].fingerprint, "a100");
  EXPECT_EQ(rows[2].throughput, 190);
  EXPECT_EQ(rows[3].cause, Cause::kOutOfMemory);
  EXPECT_EQ(rows[1].started, 21);
  EXPECT_EQ(rows[1].finished, 22);
  ASSERT_THAT(*store_->ListCurveRows(2).value(), SizeIs(1));
  EXPECT_EQ(store_->ListCurveRows(2).value()->front().throughput, 999);
}

TEST_P(StoreContract, CurveRowsTellWhyAttemptsWereRepeated) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.cells = {ACell(1, 1)};
  const auto add = [&](AttemptState state, Cause cause, int64_t resumed) {
    AttemptRow& attempt = batch.attempts.emplace_back(AnAttempt(
        static_cast<int64_t>(batch.attempts.size()) + 1, batch.runs.back().id, ++batch.runs.back().attempts));
    attempt.state = state;
    attempt.cause = cause;
    attempt.resumed_step = resumed;
  };
  const auto run = [&] {
    const int64_t id = static_cast<int64_t>(batch.runs.size()) + 1;
    batch.runs.push_back(ARun(id, 1, 1, static_cast<int>(id)));
    batch.runs.back().state = RunState::kSucceeded;
    batch.runs.back().attempts = 0;
  };
  run();  // noisy, and the last attempt is noisy, too
  add(AttemptState::kFailed, Cause::kNoisy, 0);
  add(AttemptState::kSucceeded, Cause::kNoisy, 0);
  run();  // continued twice, with a failure in between
  add(AttemptState::kFailed, Cause::kPreempted, 0);
  add(AttemptState::kFailed, Cause::kNodeFail, 0);
  add(AttemptState::kFailed, Cause::kTimeout, 100);
  add(AttemptState::kSucceeded, Cause::kNone, 200);
  run();  // preempted, and then begun again with the first step
  add(AttemptState::kFailed, Cause::kPreempted, 0);
  add(AttemptState::kSucceeded, Cause::kNone, 0);
  run();
  add(AttemptState::kCancelled, Cause::kNone, 0);
  add(AttemptState::kSucceeded, Cause::kNone, 0);
  Commit(batch);
  const std::vector<CurveRow> rows = *store_->ListCurveRows(1).value();
  std::vector<std::array<int, 4>> counts;
  for (const CurveRow& row : rows)
    counts.push_back({row.attempts, row.noisy_attempts, row.continued_attempts, row.cancelled_attempts});
  EXPECT_THAT(counts, ElementsAre(ElementsAre(2, 1, 0, 0), ElementsAre(4, 0, 2, 0), ElementsAre(2, 0, 0, 0),
                                  ElementsAre(2, 0, 0, 1)));
}

TEST_P(StoreContract, FindsTheAttemptsOfAllStudiesAtTheTimeOfAStudy) {
  constexpr Micros kBegin = 1'796'000'000'000'000;
  constexpr Micros kDay = 86'400'000'000;
  WriteBatch batch;
  int64_t id = 0;
  const auto add = [&](Micros created, Micros started, Micros finished) {
    StudyRow study = AStudy(++id);
    study.created = created;
    study.started = started;
    study.finished = finished;
    study.state = finished == 0 ? StudyState::kRunning : StudyState::kSucceeded;
    batch.studies.push_back(study);
    batch.cells.push_back(ACell(id, id));
    RunRow run = ARun(id, id, id);
    run.attempts = 1;
    run.started = started;
    run.finished = finished;
    run.state = finished == 0 ? RunState::kRunning : RunState::kSucceeded;
    batch.runs.push_back(run);
  };
  add(kBegin - 100 * kDay, kBegin - 100 * kDay, kBegin - 90 * kDay);  // 1: ended long before
  add(kBegin - 99 * kDay, kBegin - 10, 0);                            // 2: old, and still running
  add(kBegin - 20, kBegin - 15, kBegin - 1);                          // 3: over before
  add(kBegin - 20, kBegin - 15, kBegin + 5);                          // 4: overlaps
  add(kBegin - 10, kBegin, kBegin + 100);                             // 5: the study
  add(kBegin + 50, kBegin + 60, kBegin + 70);                         // 6: overlaps
  add(kBegin + 60, kBegin + 101, 0);                                  // 7: begins later
  add(kBegin + 200, kBegin + 201, 0);                                 // 8: is created later
  // The run of study 6 failed once before.
  batch.runs[5].attempts = 2;
  AttemptRow first = AnAttempt(1, 6, 1), second = AnAttempt(2, 6, 2), live = AnAttempt(3, 2, 1);
  first.assigned = kBegin + 60;
  first.finished = kBegin + 63;
  second.assigned = kBegin + 64;
  second.finished = kBegin + 70;
  live.assigned = kBegin - 10;
  batch.attempts = {first, second, live};
  Commit(batch);
  const auto times = store_->ListAttemptTimes(5, *store_->ListCurveRows(5).value());
  ASSERT_TRUE(times.ok()) << times.status();
  std::vector<std::pair<Micros, Micros>> found;
  for (const AttemptTime& time : *times)
    found.emplace_back(time.assigned - kBegin, time.finished == 0 ? 0 : time.finished - kBegin);
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(
                         std::pair(Micros{-10}, Micros{0}), std::pair(Micros{-15}, Micros{5}),
                         std::pair(Micros{0}, Micros{100}), std::pair(Micros{60}, Micros{63}),
                         std::pair(Micros{64}, Micros{70})));
  EXPECT_THAT(store_->ListAttemptTimes(99, {}).value(), IsEmpty());
}

TEST_P(StoreContract, ARestartFindsTheRunThatEachAllocationServedLast) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.cells = {ACell(1, 1)};
  batch.runs = {ARun(1, 1, 1, 0), ARun(2, 1, 1, 1), ARun(3, 1, 1, 2)};
  batch.allocations = {AnAllocation(1, 1), AnAllocation(2, 1)};
  // The second attempt of run 1 is the newest one of allocation 1.
  batch.attempts = {AnAttempt(1, 1, 1), AnAttempt(2, 2), AnAttempt(3, 3), AnAttempt(4, 1, 2)};
  for (int i = 0; i < 4; ++i) batch.attempts[i].allocation_id = i == 1 ? 2 : 1;
  Commit(batch);
  for (const Snapshot& snapshot : {store_->Load().value(), store_->LoadStudy(1).value()}) {
    EXPECT_EQ(snapshot.attempts_served.at(1).attempts, 3);
    EXPECT_EQ(snapshot.attempts_served.at(1).newest_run, 1);
    EXPECT_EQ(snapshot.attempts_served.at(2).newest_run, 2);
  }
}

TEST_P(StoreContract, SeesRunsThatJoinAStudyLater) {
  CommitStudyWithAttempt(5);
  WriteBatch batch;
  batch.runs = {ARun(9, 5, 5, 1), ARun(2, 5, 5, 2)};
  Commit(batch);
  EXPECT_THAT(*store_->ListCurveRows(5).value(), SizeIs(3));
  EXPECT_EQ(store_->CountRuns({5}).value()[0][1], 3);
}

TEST_P(StoreContract, LoadsWhatIsNotFinal) {
  CommitStudyWithAttempt(1);
  CommitStudyWithAttempt(2);
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.studies[0].state = StudyState::kSucceeded;
  batch.runs = {ARun(3, 2, 2, 1), ARun(4, 2, 2, 2)};
  batch.runs[0].state = RunState::kSucceeded;
  batch.attempts = {AnAttempt(3, 3), AnAttempt(4, 4)};
  batch.attempts[0].state = AttemptState::kSucceeded;
  batch.allocations = {AnAllocation(1, 2), AnAllocation(2, 2), AnAllocation(3, 1)};
  batch.allocations[0].state = AllocationState::kEnded;
  // This allocation belongs to a final study, but has not ended yet.
  batch.allocations[2].state = AllocationState::kReleasing;
  batch.appends = {AnAppend(2, 0, 0, 100), AnAppend(3, 0, 0, 100), AnAppend(1, 0, 0, 100)};
  Commit(batch);
  Reopen();
  const Snapshot snapshot = store_->Load().value();
  EXPECT_THAT(Ids(snapshot.studies), ElementsAre(2));
  EXPECT_THAT(Ids(snapshot.cells), ElementsAre(2));
  EXPECT_THAT(Ids(snapshot.runs), ElementsAre(2, 3, 4));
  EXPECT_THAT(Ids(snapshot.attempts), ElementsAre(2, 4));
  EXPECT_THAT(Ids(snapshot.allocations), ElementsAre(2, 3));
  ASSERT_THAT(snapshot.streams, SizeIs(1));
  EXPECT_EQ(snapshot.streams[0].attempt_id, 2);
  EXPECT_EQ(snapshot.streams[0].position, 100);
}

TEST_P(StoreContract, NeverForgetsTheLargestIds) {
  CommitStudyWithAttempt(3);
  WriteBatch batch;
  batch.allocations = {AnAllocation(8, 3)};
  Commit(batch);
  batch.Clear();
  batch.deleted_studies = {3};
  Commit(batch);
  CommitStudyWithAttempt(2);  // smaller ids do not change the counters
  Reopen();
  const Snapshot snapshot = store_->Load().value();
  EXPECT_EQ(snapshot.last_study_id, 3);
  EXPECT_EQ(snapshot.last_cell_id, 3);
  EXPECT_EQ(snapshot.last_run_id, 3);
  EXPECT_EQ(snapshot.last_attempt_id, 3);
  EXPECT_EQ(snapshot.last_allocation_id, 8);
}

TEST_P(StoreContract, DeletesAStudyWithAllThatIsItsAndNothingElse) {
  for (int64_t id : {1, 2}) {
    CommitStudyWithAttempt(id);
    WriteBatch batch;
    batch.allocations = {AnAllocation(id, id)};
    batch.allocations[0].state = AllocationState::kEnded;
    batch.provenance = {{id, "{}"}};
    batch.appends = {AnAppend(id, 0, 0, 100)};
    batch.appends[0].columns = {AColumn("train/loss", 0, {1, 2, 3})};
    batch.epochs = {{id, 0, 0, 1.0, {}}};
    batch.summaries = {ASummary(id, id, 100)};
    Commit(batch);
  }
  WriteBatch batch;
  batch.deleted_studies = {1};
  Commit(batch);
  Reopen();
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetRun(1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetAllocation(1).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->GetSummary(1).status()));
  EXPECT_THAT(store_->ListCells(1).value(), IsEmpty());
  EXPECT_THAT(store_->ListAttempts(1).value(), IsEmpty());
  EXPECT_THAT(store_->ListStreams(1).value(), IsEmpty());
  EXPECT_THAT(Points({1, "", {}}), IsEmpty());
  EXPECT_TRUE(store_->GetSummary(2).ok());
  EXPECT_TRUE(store_->GetAllocation(2).ok());
  EXPECT_THAT(Points({2, "", {}}), SizeIs(1));
  EXPECT_EQ(Stream(2, 0).position, 100);
}

TEST_P(StoreContract, KeepsTheTextsOfStudyFilesAsLongAsTheirStudies) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2), AStudy(3)};
  batch.study_files = {{1, "# one\nstudy: a\n"}, {2, "study: b\r\n"}};
  Commit(batch);
  WriteBatch later;
  later.studies = {AStudy(1), AStudy(4)};  // an update does not change the text
  later.studies[0].state = StudyState::kSucceeded;
  later.study_files = {{4, "study: d\n"}};
  later.deleted_studies = {4};
  Commit(later);
  Reopen();
  EXPECT_EQ(GetStudyFile(*store_, 1).value(), "# one\nstudy: a\n");
  EXPECT_EQ(GetStudyFile(*store_, 2).value(), "study: b\r\n");
  EXPECT_EQ(GetStudyFile(*store_, 3).value(), "");
  EXPECT_EQ(GetStudyFile(*store_, 4).value(), "");
  WriteBatch deletion;
  deletion.deleted_studies = {1};
  Commit(deletion);
  EXPECT_EQ(GetStudyFile(*store_, 1).value(), "");
  EXPECT_EQ(GetStudyFile(*store_, 2).value(), "study: b\r\n");
  int64_t rows = 0;
  ASSERT_TRUE(store_
                  ->ReadRows([&](Database& db) {
                    rows = *db.QueryInt("SELECT count(*) FROM study_file");
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(rows, 1) << "the texts of deleted studies are still there";
}

TEST_P(StoreContract, KeepsTheLiveAllocationsOfADeletedStudy) {
  CommitStudyWithAttempt(1);
  WriteBatch batch;
  batch.allocations = {AnAllocation(1, 1), AnAllocation(2, 1)};
  batch.allocations[0].state = AllocationState::kReleasing;
  batch.allocations[1].state = AllocationState::kEnded;
  Commit(batch);
  batch.Clear();
  batch.deleted_studies = {1};
  Commit(batch);
  Reopen();
  EXPECT_THAT(Ids(store_->Load().value().allocations), ElementsAre(1)) << "its job must still be ended";
  EXPECT_TRUE(absl::IsNotFound(store_->GetAllocation(2).status()));
}

TEST_P(StoreContract, WritesNothingOfABatchThatRefersToNothing) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.attempts = {AnAttempt(1, 77)};  // run 77 does not exist
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Commit(batch)));
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(1).status()));
  CommitStudyWithAttempt(1);  // the store still works
  EXPECT_TRUE(store_->GetRun(1).ok());
}

TEST_P(StoreContract, AcceptsAnEmptyBatch) {
  WriteBatch batch;
  EXPECT_TRUE(batch.empty());
  Commit(batch);
  batch.deleted_studies = {1};
  EXPECT_FALSE(batch.empty());
  Commit(batch);  // deleting a missing study is no error
  batch.Clear();
  EXPECT_TRUE(batch.empty());
}

TEST_P(StoreContract, ReadersSeeWholeCommitsWhileAWriteRuns) {
  CommitStudyWithAttempt(1);
  std::atomic<bool> stop = false;
  std::atomic<int> reads = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 6; ++i) {  // more threads than connections
    readers.emplace_back([&] {
      while (!stop) {
        const auto streams = store_->ListStreams(1);
        ASSERT_TRUE(streams.ok()) << streams.status();
        ++reads;
        // One commit advances the streams of both ranks, so a read finds them equal.
        if (streams->size() == 2)
          ASSERT_EQ((*streams)[0].position, (*streams)[1].position);
        else
          ASSERT_THAT(*streams, IsEmpty());
      }
    });
  }
  for (int64_t i = 0; i < 100 || reads < 100; ++i) {
    WriteBatch batch;
    batch.appends = {AnAppend(1, 0, i * 10, i * 10 + 10), AnAppend(1, 1, i * 10, i * 10 + 10)};
    const absl::Status status = store_->Commit(batch);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace scalelab::db
