// Tests of `study export` and `study get`. tests/python/test_export.py compares exported values with those of
// the Python client.
#include <sqlite3.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>

#include "client/export/data_files.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "google/protobuf/util/message_differencer.h"
#include "study/file/study_file.h"
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using RunMessage = scalelab::v1::Run;  // the fixture has a function Run

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename());
  return names;
}

class Export : public ClientTest {
 protected:
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  // Returns the values of the first column; "NULL" for nothing.
  static std::vector<std::string> Query(const std::string& path, const std::string& sql) {
    sqlite3* database = nullptr;
    std::vector<std::string> values;
    EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    const auto add = [](void* out, int, char** row, char**) {
      static_cast<std::vector<std::string>*>(out)->emplace_back(row[0] == nullptr ? "NULL" : row[0]);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), add, &values, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
    return values;
  }
  // A server with two runs, of which one has points.
  void StartWithRuns() {
    Start();
    server_.studies = {MakeStudy(7, "small", scalelab::v1::Study::SUCCEEDED, 0, 0, 2)};
    for (const int number : {11, 12}) {
      RunMessage run;
      run.set_name(absl::StrCat("studies/7/runs/", number));
      run.set_state(number == 11 ? RunMessage::SUCCEEDED : RunMessage::QUEUED);
      (*run.mutable_key()->mutable_fields())["ranks"].set_number_value(number - 10);
      (*run.mutable_key()->mutable_fields())["engine"].set_string_value("native/ddp");
      run.mutable_spec()->set_ranks(number - 10);
      if (number == 11) {
        auto& repeated = *run.add_attempts();
        repeated.set_number(1);
        repeated.set_state(scalelab::v1::Attempt::FAILED);
        repeated.set_cause(scalelab::v1::Attempt::NOISY);
        repeated.set_message("other processes used 80%, too");
        repeated.add_nodes("n1");
        repeated.add_nodes("n2");
        repeated.mutable_assign_time()->set_seconds(1'795'000'000);
        repeated.set_throughput(700.5);
        auto& counted = *run.add_attempts();
        counted.set_number(2);
        counted.set_state(scalelab::v1::Attempt::SUCCEEDED);
        counted.set_throughput(812.4375);
        counted.set_epoch_seconds(8.5);
        (*run.mutable_summary())["run/throughput"] = 812.4375;
      }
      server_.runs.push_back(run);
    }
    auto& points = server_.points.emplace_back();
    points.set_key("train/loss");
    for (const double value : {2.5, std::numeric_limits<double>::quiet_NaN()}) {
      points.add_step(points.step_size());
      points.add_time(1795000000.25);
      points.add_value(value);
    }
  }
};

const DataTable kTable = {"things", {"a,b", "key"}, [](const DataSink& sink) {
                            absl::Status status;
                            for (const std::vector<DataCell>& row : std::vector<std::vector<DataCell>>{
                                     {"say \"hi\"\n", int64_t{1} << 60},
                                     {std::monostate(), 0.1},
                                     {"bad \xff", std::numeric_limits<double>::quiet_NaN()}}) {
                              if (status.ok()) status = sink(row);
                            }
                            return status;
                          }};

TEST_F(Export, CsvQuotesTextAndKeepsEveryDigit) {
  ASSERT_TRUE(WriteCsv(kTable, Path("t.csv")).ok());
  EXPECT_EQ(ReadText(Path("t.csv")),
            "\"a,b\",key\n\"say \"\"hi\"\"\n\",1152921504606846976\n,0.1\nbad \xff,nan\n");
}

TEST_F(Export, JsonHasOneObjectALineAndNoNan) {
  ASSERT_TRUE(WriteJson(kTable, Path("t.json")).ok());
  EXPECT_EQ(ReadText(Path("t.json")),
            "[\n{\"a,b\":\"say \\\"hi\\\"\\n\",\"key\":1152921504606846976},\n{\"a,b\":null,\"key\":0.1},\n"
            "{\"a,b\":\"bad \xef\xbf\xbd\",\"key\":null}\n]\n");
  const DataTable empty{"none", {"a"}, [](const DataSink&) { return absl::OkStatus(); }};
  ASSERT_TRUE(WriteJson(empty, Path("t.json")).ok());
  EXPECT_EQ(ReadText(Path("t.json")), "[]\n");
}

TEST_F(Export, SqliteKeepsTypesAndStoresNothingForNan) {
  ASSERT_TRUE(WriteSqlite({kTable}, Path("t.sqlite")).ok());
  EXPECT_THAT(Query(Path("t.sqlite"), "SELECT key FROM things"),
              ElementsAre("1152921504606846976", "0.1", "NULL"));
  EXPECT_THAT(Query(Path("t.sqlite"), "SELECT typeof(key) FROM things"),
              ElementsAre("integer", "real", "null"));
  EXPECT_THAT(Query(Path("t.sqlite"), "SELECT \"a,b\" FROM things LIMIT 2"),
              ElementsAre("say \"hi\"\n", "NULL"));
}

TEST_F(Export, NamesThatDifferOnlyInCaseAreColumnsOfSqlite) {
  const DataTable table{"things", {"run/Loss", "run/loss", "RUN/LOSS"}, [](const DataSink& sink) {
                          return sink({int64_t{1}, int64_t{2}, int64_t{3}});
                        }};
  const absl::Status written = WriteSqlite({table}, Path("t.sqlite"));
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_THAT(Query(Path("t.sqlite"), "SELECT name FROM pragma_table_info('things')"),
              ElementsAre("run/Loss", "run/loss_2", "RUN/LOSS_3"));
  EXPECT_THAT(Query(Path("t.sqlite"), "SELECT \"run/loss_2\" FROM things"), ElementsAre("2"));
}

TEST_F(Export, AfterAnErrorTheOldFilesRemain) {
  const DataTable broken{"things", {"a"}, [](const DataSink& sink) {
                           EXPECT_TRUE(sink({DataCell("x")}).ok());
                           return absl::UnavailableError("the server is gone");
                         }};
  for (const char* name : {"t.csv", "t.json", "t.sqlite"}) WriteFile(name, "old");
  for (const absl::Status& status : {WriteCsv(broken, Path("t.csv")), WriteJson(broken, Path("t.json")),
                                     WriteSqlite({broken}, Path("t.sqlite"))})
    EXPECT_EQ(status.message(), "the server is gone");
  for (const char* name : {"t.csv", "t.json", "t.sqlite"}) EXPECT_EQ(ReadText(Path(name)), "old");
  EXPECT_THAT(FilesIn(dir_), UnorderedElementsAre("t.csv", "t.json", "t.sqlite"));
}

TEST_F(Export, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(WriteCsv(kTable, "/none/t.csv").message(),
              HasSubstr("cannot write /none/t.csv: No such file or directory; check its directory"));
  EXPECT_THAT(WriteCsv(kTable, "/dev/full").message(),
              HasSubstr("cannot write /dev/full: No space left on device"));
  EXPECT_THAT(WriteSqlite({kTable}, "/none/t.sqlite").message(), HasSubstr("cannot write /none/t.sqlite"));
}

TEST_F(Export, AWriteErrorEndsTheReadingOfRows) {
  constexpr int kRows = 1'000'000;
  int read = 0;
  const DataTable table = {"things", {"a"}, [&read](const DataSink& sink) {
                             absl::Status status;
                             for (read = 0; read < kRows && status.ok(); ++read)
                               status = sink({int64_t{read}});
                             return status;
                           }};
  EXPECT_THAT(WriteCsv(table, "/dev/full").message(),
              HasSubstr("cannot write /dev/full: No space left on device; check its directory"));
  EXPECT_LT(read, kRows / 10);
  EXPECT_THAT(WriteJson(table, "/dev/full").message(),
              HasSubstr("cannot write /dev/full: No space left on device; check its directory"));
  EXPECT_LT(read, kRows / 10);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {1 << 16, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status sqlite = WriteSqlite({table}, Path("t.sqlite"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(sqlite.message(), absl::StrCat("cannot write ", Path("t.sqlite"),
                                           ": disk I/O error; check its directory, your permissions and the "
                                           "free space"));
  EXPECT_LT(read, kRows);
  EXPECT_THAT(FilesIn(dir_), ::testing::IsEmpty());
}

TEST_F(Export, WritesRunsPointsAndTheStudyFile) {
  StartWithRuns();
  const Outcome outcome = Run({"study", "export", "7", "-o", Path("new/data")});
  ASSERT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.err, HasSubstr("studies/7: 2 runs are in "));
  EXPECT_EQ(
      ReadText(Path("new/data/runs.csv")),
      "run,engine,ranks,repeat,position,state,cause,message,start_time,finish_time,attempts,global_batch,"
      "batch_per_rank,seed,fingerprint,run/throughput\n"
      "studies/7/runs/11,native/ddp,1,0,0,SUCCEEDED,,,,,2,0,0,0,,812.4375\n"
      "studies/7/runs/12,native/ddp,2,0,0,QUEUED,,,,,0,0,0,0,,\n");
  EXPECT_EQ(ReadText(Path("new/data/attempts.csv")),
            "run,attempt,state,cause,message,nodes,assign_time,finish_time,throughput,epoch_seconds\n"
            "studies/7/runs/11,1,FAILED,NOISY,\"other processes used 80%, too\",\"n1,n2\","
            "2026-11-18T11:06:40Z,,700.5,\n"
            "studies/7/runs/11,2,SUCCEEDED,,,,,,812.4375,8.5\n");
  EXPECT_EQ(ReadText(Path("new/data/metrics.csv")),
            "run,rank,step,time,key,value\n"
            "studies/7/runs/11,0,0,1795000000.25,train/loss,2.5\n"
            "studies/7/runs/11,0,1,1795000000.25,train/loss,nan\n");
  EXPECT_THAT(FilesIn(Path("new/data")),
              UnorderedElementsAre("runs.csv", "attempts.csv", "metrics.csv", "curve.csv", "study.yaml"));
}

TEST_F(Export, WritesTheSelectedRunsAndTheWholeCurve) {
  StartWithRuns();
  auto& series = *server_.curve.add_series();
  for (const int ranks : {1, 2}) series.add_points()->set_ranks(ranks);
  const Outcome outcome = Run(
      {"study", "export", "7", "--where", "state=queued and ranks>1", "--format", "sqlite", "-o", Path("s")});
  ASSERT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.err, HasSubstr("studies/7: 1 runs are in "));
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT run FROM runs"), ElementsAre("studies/7/runs/12"));
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT run FROM metrics"), ::testing::IsEmpty());
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT ranks FROM curve"), ElementsAre("1", "2"));
  EXPECT_THAT(Run({"study", "export", "7", "--where", "colour=red", "-o", Path("t")}).err,
              HasSubstr("'colour' is no field of these runs"));
  const Outcome python =
      Run({"study", "export", "7", "--where", "ranks>1", "--format", "parquet", "-o", Path("t")});
  EXPECT_THAT(python, Exits(ExitCode::kUsage));
  EXPECT_THAT(python.err, HasSubstr("use --format csv, json or sqlite"));
  EXPECT_FALSE(std::filesystem::exists(Path("t")));
}

TEST_F(Export, TheBatchHasOneColumnIfItIsAnAxis) {
  StartWithRuns();
  auto& series = *server_.curve.add_series();
  for (RunMessage& run : server_.runs) {
    (*run.mutable_key()->mutable_fields())["global_batch"].set_number_value(64);
    run.mutable_spec()->set_global_batch(64);
  }
  (*series.mutable_key()->mutable_fields())["global_batch"].set_number_value(64);
  auto& point = *series.add_points();
  point.set_ranks(2);
  point.set_global_batch(64);
  ASSERT_THAT(Run({"study", "export", "7", "--format", "sqlite", "-o", Path("s")}), Exits(ExitCode::kOk));
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT global_batch FROM runs"), ElementsAre("64", "64"));
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT global_batch FROM curve"), ElementsAre("64"));
  EXPECT_EQ(CurveData(server_.curve).columns[0], "global_batch");
}

TEST_F(Export, ThePointsOfManyRunsAreInTheOrderOfTheRuns) {
  constexpr int kRuns = 60, kPoints = 50'000;
  Start();
  server_.page_size = kRuns;
  server_.studies = {MakeStudy(7, "large", scalelab::v1::Study::SUCCEEDED, 0, 0, kRuns)};
  for (int number = 1; number <= kRuns; ++number) {
    RunMessage& run = server_.runs.emplace_back();
    run.set_name(absl::StrCat("studies/7/runs/", number));
    run.add_attempts();
  }
  auto& points = server_.points.emplace_back();
  points.set_key("train/loss");
  for (int step = 0; step < kPoints; ++step) {
    points.add_step(step);
    points.add_time(0);
    points.add_value(0.5);
  }
  ASSERT_THAT(Run({"study", "export", "7", "-o", Path("d")}), Exits(ExitCode::kOk));
  std::ifstream file(Path("d/metrics.csv"));
  std::string line;
  std::getline(file, line);
  for (int number = 1; number <= kRuns; ++number) {
    for (int step = 0; step < kPoints; ++step) {
      ASSERT_TRUE(std::getline(file, line));
      ASSERT_EQ(line, absl::StrCat("studies/7/runs/", number, ",0,", step, ",0,train/loss,0.5"));
    }
  }
  EXPECT_FALSE(std::getline(file, line));
}

TEST_F(Export, AFileThatCannotBeWrittenEndsTheCallsInFlight) {
  StartWithRuns();
  for (int number = 13; number < 60; ++number) {
    server_.runs.push_back(server_.runs.front());
    server_.runs.back().set_name(absl::StrCat("studies/7/runs/", number));
  }
  server_.page_size = 100;
  const auto server = Connection::Open({*ParseServerAddress(socket_), "", ""}, absl::Seconds(60));
  ASSERT_TRUE(server.ok()) << server.status();
  const DataTable table =
      PointData(**server, server_.runs, absl::InfiniteDuration(), [](absl::string_view) {});
  EXPECT_EQ(
      table.rows([](const std::vector<DataCell>&) { return absl::UnknownError("disk full"); }).message(),
      "disk full");
}

TEST_F(Export, SqliteAndJsonAreOtherFormats) {
  StartWithRuns();
  ASSERT_THAT(Run({"study", "export", "7", "--format", "sqlite", "-o", Path("s")}), Exits(ExitCode::kOk));
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT value FROM metrics ORDER BY step"),
              ElementsAre("2.5", "NULL"));
  EXPECT_THAT(Query(Path("s/study.sqlite"), "SELECT throughput FROM attempts WHERE cause = 'NOISY'"),
              ElementsAre("700.5"));
  ASSERT_THAT(Run({"study", "export", "7", "--format", "json", "-o", Path("j")}), Exits(ExitCode::kOk));
  EXPECT_THAT(ReadText(Path("j/runs.json")), HasSubstr("\"run/throughput\":812.4375}"));
}

TEST_F(Export, ThePythonClientWritesItsFormats) {
  // A python3 that imports scalelab if the file "installed" exists, and fails for tensorboard.
  std::filesystem::create_directory(Path("bin"));
  const std::string python =
      WriteFile("bin/python3",
                absl::StrCat("#!/bin/sh\n[ \"$1\" != -c ] || exec test -e ", Path("installed"),
                             "\necho \"$@\" > ", Path("arguments"), "\n[ \"$6\" = parquet ] || exit 6\n"));
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", absl::StrCat(Path("bin"), ":", path).c_str(), 1);
  const auto run = [this](const std::string& format) {
    return Run({"study", "export", "last", "--format", format, "-o", "data", "--token-file", "t", "--timeout",
                "1m30s"});
  };
  const Outcome missing = run("parquet");
  WriteFile("installed", "");
  const Outcome parquet = run("parquet"), tensorboard = run("tensorboard");
  setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(missing, Exits(ExitCode::kUsage));
  EXPECT_THAT(missing.err, HasSubstr("needs the Python client, and python3 cannot import scalelab"));
  EXPECT_THAT(missing.err,
              HasSubstr("pip install \"$(echo /usr/share/scalelab/python/scalelab-*.whl)[export]\""));
  EXPECT_THAT(missing.err, HasSubstr("python3 -m scalelab export last --format parquet -o data"));
  EXPECT_THAT(parquet, Exits(ExitCode::kOk));
  EXPECT_THAT(tensorboard, Exits(ExitCode::kUnreachable));
  EXPECT_EQ(ReadText(Path("arguments")),
            absl::StrCat("-m scalelab export last --format tensorboard -o data --server ", socket_,
                         " --token-file t --timeout 90\n"));
}

TEST_F(Export, ASignalThatEndsThePythonClientIsTheExitCode) {
  // A python3 that imports scalelab, and whose export ends by the signal in the file "signal".
  std::filesystem::create_directory(Path("bin"));
  const std::string python = WriteFile(
      "bin/python3",
      absl::StrCat("#!/bin/sh\n[ \"$1\" != -c ] || exit 0\nkill -$(cat ", Path("signal"), ") $$\n"));
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", absl::StrCat(Path("bin"), ":", path).c_str(), 1);
  const auto run = [this](const std::string& signal) {
    WriteFile("signal", signal);
    return Run({"study", "export", "last", "--format", "parquet", "-o", "data"});
  };
  const Outcome interrupted = run("INT"), terminated = run("TERM"), killed = run("KILL");
  setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(interrupted, Exits(ExitCode::kInterrupted));
  EXPECT_THAT(terminated, Exits(ExitCode::kTerminated));
  EXPECT_THAT(killed, Exits(ExitCode::kFailure));
  EXPECT_THAT(killed.err, HasSubstr("was ended by signal 9 (Killed); if the machine has too little memory"));
}

TEST_F(Export, AStudyThatDoesNotExistMakesNoFiles) {
  Start();
  EXPECT_NE(Run({"study", "export", "none", "-o", Path("d")}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(Path("d")));
}

TEST_F(Export, AStudyFileSurvivesBeingPrinted) {
  const std::string path = WriteFile("a.yaml", R"(
study: "2024"
fixed:
  engine: custom
  command: [sh, ./train.sh, --lr, 1e-3, "true", "", "a \"b\": {c}\t# d\\", "ü", 'no', "12", "-x", "~", "null", " y ", "[z]"]
  momentum: 0.123456789012345
  augment: true
matrix:
  ranks: {pow2: [1, 4]}
  precision: [fp32, amp-bf16]
zip:
  - {epochs: [1, 2], weight_decay: [0, 1e-20]}
  - {bucket_cap_mib: [1, 25], batch_norm: [train, eval]}
exclude:
  - {ranks: 4, precision: fp32}
scaling: {mode: weak, batch_per_rank: 8}
lr: {base: 0.05, rule: sqrt, warmup_epochs: 0.5}
repeats: 3
seed: 123456789012345
measure: {warmup_steps: 0, evaluate: false, target_accuracy: 0.75, communication: true}
order: listed
baseline: {ranks: 1}
resources: {time: 1-01:30:05, exclusive: true, partition: "a b"}
slurm: {sbatch_options: {constraint: "a100&nvme", nice: 5}}
retry: {max: 0, on: [node_fail, timeout]}
limits: {gpu_hours: 0.5}
allocation: per-run
on_unusable: exclude
priority: -5
visibility: private
notify: {on: [end, first_failure], webhook: "http://localhost/x?y=1"}
)");
  const auto first = ReadStudyFile(path);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string printed = StudyYaml(first->spec);
  const auto second = ReadStudyFile(WriteFile("b.yaml", printed));
  ASSERT_TRUE(second.ok()) << second.status() << "\n" << printed;
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(first->spec, second->spec)) << difference << printed;
}

TEST_F(Export, AdaptiveRepeatsHaveTheSpellingOfStudyFiles) {
  scalelab::v1::StudySpec spec;
  spec.set_study("a");
  spec.mutable_adaptive_repeats()->set_max(8);
  spec.mutable_adaptive_repeats()->set_half_width(0.02);
  EXPECT_EQ(StudyYaml(spec), "study: a\nrepeats: {max: 8, until: {half_width: 0.02}}\n");
}

TEST_F(Export, NumbersOfTheStudyFileAreExact) {
  scalelab::v1::StudySpec spec;
  (*spec.mutable_fixed()->mutable_fields())["learning_rate"].set_number_value(0.1 + 0.2);
  EXPECT_THAT(StudyYaml(spec), HasSubstr("learning_rate: 0.30000000000000004"));
}

TEST_F(Export, GetPrintsTheStudyFile) {
  Start();
  ASSERT_THAT(Run({"study", "submit", StudyFile()}), Exits(ExitCode::kOk));
  server_.studies = {MakeStudy(7, "small", scalelab::v1::Study::SUCCEEDED, 0, 0, 2)};
  *server_.studies[0].mutable_spec() = server_.created.at(0).spec();
  const Outcome outcome = Run({"study", "get", "7"});
  ASSERT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_EQ(
      outcome.out,
      "study: small\nfixed:\n  dataset: synthetic\n  epochs: 1\n  model: resnet20\nmatrix:\n"
      "  engine: [native/ddp]\n  ranks: [1, 2]\nscaling: {mode: strong, global_batch: 64}\nrepeats: 3\n");
  EXPECT_THAT(Run({"study", "get", "7", "-o", "json"}).out, HasSubstr("\"global_batch\": 64"));
}

TEST_F(Export, GetPrintsTheSubmittedFileByteForByte) {
  Start();
  const std::string text =
      "# for the paper\r\nstudy:   small  # twice\nfixed: {model: resnet20, dataset: synthetic}\n"
      "matrix: {ranks: [1, 2]}";
  ASSERT_THAT(Run({"study", "submit", WriteFile("commented.yaml", text)}), Exits(ExitCode::kOk));
  server_.studies = {MakeStudy(7, "small", scalelab::v1::Study::SUCCEEDED, 0, 0, 2)};
  *server_.studies[0].mutable_spec() = server_.created.at(0).spec();
  server_.study_file = server_.created.at(0).study_file();
  const Outcome submitted = Run({"study", "get", "7"});
  ASSERT_THAT(submitted, Exits(ExitCode::kOk));
  EXPECT_EQ(submitted.out, text);
  EXPECT_EQ(submitted.err, "");
  EXPECT_EQ(Run({"study", "get", "7", "--rendered"}).out, StudyYaml(server_.created[0].spec()));
  const std::string json = Run({"study", "get", "7", "-o", "json"}).out;
  EXPECT_THAT(json, HasSubstr("\"study\": \"small\""));
  EXPECT_THAT(json, ::testing::Not(HasSubstr("for the paper")));
}

TEST_F(Export, GetPrintsAMessageIfTheSubmittedFileHasRelativePaths) {
  Start();
  std::filesystem::create_directories(dir_ + "/data");
  const std::string text =
      "study: small\nfixed: {model: resnet20, dataset: cifar10, data_dir: data}\nmatrix: {ranks: [1, 2]}\n";
  ASSERT_THAT(Run({"study", "submit", WriteFile("relative.yaml", text)}), Exits(ExitCode::kOk));
  server_.studies = {MakeStudy(7, "small", scalelab::v1::Study::SUCCEEDED, 0, 0, 2)};
  *server_.studies[0].mutable_spec() = server_.created.at(0).spec();
  server_.study_file = text;
  const Outcome submitted = Run({"study", "get", "7"});
  EXPECT_EQ(submitted.out, text);
  EXPECT_THAT(submitted.err, HasSubstr("--rendered"));
  const Outcome rendered = Run({"study", "get", "7", "--rendered"});
  EXPECT_THAT(rendered.out, HasSubstr(absl::StrCat("data_dir: ", dir_, "/data")));
  EXPECT_EQ(rendered.err, "");
}

}  // namespace
}  // namespace scalelab::client
