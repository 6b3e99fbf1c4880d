// Tests of bundles: their file format, and the verification of their figures.
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/bundle/bundle_data.h"
#include "client/bundle/bundle_figures.h"
#include "client/bundle/bundle_file.h"
#include "client/export/data_files.h"
#include "client/export/study_tables.h"
#include "client/export/study_yaml.h"
#include "client/output/json_printer.h"
#include "nlohmann/json.hpp"
#include "server/curves/study_curve.h"
#include "server/runs/stored_runs.h"
#include "tests/contract/archive_fixture.h"
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using scalelab::v1::GetCurveResponse;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class BundleTest : public ClientTest {
 protected:
  using Files = std::vector<std::pair<std::string, std::string>>;

  // Makes the files of a bundle of a study with results.
  void SetUp() override { Archive(db::AFinalStudy(7, 12, 70)); }
  void Archive(const db::WriteBatch& batch) {
    const std::string path = absl::StrCat(directory_.path(), "/", ++databases_);
    auto store = db::OpenSqliteStore({path + ".db"});
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit(batch).ok());
    const db::OpenFile archive(path + ".archive");
    ASSERT_TRUE(db::WriteArchive(**store, 7, db::TestSeal, archive.fd(), /*publish=*/true).ok());
    const auto study = (*store)->GetStudy(7);
    const absl::Status made = server::MakeStudyCurve(
        **store, *study, true, [] { return false; }, &curve_);
    ASSERT_TRUE(made.ok()) << made;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(study->spec, &spec_).ok());
    ASSERT_GT(curve_.series_size(), 0);
    archive_ = archive.Bytes();
    const auto runs = server::ReadStudyRuns(**store, 7);
    ASSERT_TRUE(runs.ok()) << runs.status();
    runs_ = *runs;
    points_ = Csv(ArchivedPoints(**store, 7));
  }
  std::string Write(const Files& files) {
    std::ostringstream out;
    BundleWriter bundle(out);
    for (const auto& [name, text] : files) EXPECT_TRUE(bundle.Add(name, text).ok());
    EXPECT_TRUE(bundle.Finish().ok());
    return out.str();
  }
  std::string Bundle(const GetCurveResponse& curve) {
    return Write({{"README.txt", "read me\n"},
                  {kBundleManifest, R"({"server":"lab.example:4711","study":"studies/7"})"},
                  {kBundleSpec, StudyYaml(spec_)},
                  {kBundleRuns, RunsText()},
                  {kBundleCurve, ToJson(curve, true)},
                  {kBundleCurveTable, CurveTableText(curve)},
                  {kBundlePoints, points_},
                  {kBundleProvenance, ProvenanceText(runs_)},
                  {kBundleArchive, archive_}});
  }
  std::string RunsText() const { return Csv(RunData(runs_)); }
  static std::string Csv(const DataTable& table) {
    std::ostringstream out;
    EXPECT_TRUE(WriteCsv(table, out).ok());
    return out.str();
  }
  // Returns what `verify` says about the usual bundle with another content of one file.
  Outcome VerifyWith(const std::string& name, const std::string& content) {
    Files files = {{kBundleManifest, "{}"},
                   {kBundleSpec, StudyYaml(spec_)},
                   {kBundleRuns, RunsText()},
                   {kBundleCurve, ToJson(curve_, true)},
                   {kBundleCurveTable, CurveTableText(curve_)},
                   {kBundlePoints, points_},
                   {kBundleProvenance, ProvenanceText(runs_)},
                   {kBundleArchive, archive_}};
    for (auto& [of, text] : files) {
      if (of == name) text = content;
    }
    WriteFile("b.tar", Write(files));
    return RunAsIs({"verify", dir_ + "/b.tar"});
  }
  // Makes the server have the study of the archive.
  void Serve() {
    Start();
    server_.studies = {MakeStudy(7, "archived", scalelab::v1::Study::SUCCEEDED, 0, 0, 4)};
    *server_.studies[0].mutable_spec() = spec_;
    server_.archive = {archive_};
    server_.curve = curve_;
    server_.runs = runs_;
  }
  absl::Status Check(const std::string& bytes) {
    WriteFile("b.tar", bytes);
    return BundleReader::Open(dir_ + "/b.tar").status();
  }

  const db::TemporaryDirectory directory_ = db::TemporaryDirectory::InMemory();
  int databases_ = 0;
  GetCurveResponse curve_;
  scalelab::v1::StudySpec spec_;
  std::vector<scalelab::v1::Run> runs_;
  std::string archive_, points_;
};

TEST_F(BundleTest, AChangeOfAnyByteAndEveryTruncationIsFound) {
  const std::string bytes = Bundle(curve_);
  ASSERT_TRUE(Check(bytes).ok());
  std::mt19937_64 random(1);
  for (int flip = 0; flip < 1000; ++flip) {
    std::string damaged = bytes;
    const size_t at = random() % bytes.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 + random() % 255));
    ASSERT_TRUE(absl::IsDataLoss(Check(damaged))) << "byte " << at;
  }
  for (size_t length = 0; length < bytes.size(); length += length % 512 == 0 ? 1 : 511)
    ASSERT_TRUE(absl::IsDataLoss(Check(bytes.substr(0, length)))) << length;
  EXPECT_TRUE(absl::IsDataLoss(Check(bytes + "x")));
  EXPECT_TRUE(absl::IsDataLoss(Check(bytes + std::string(512, '\0'))));
}

TEST_F(BundleTest, TarAndSha256sumReadIt) {
  WriteFile("b.tar", Bundle(curve_));
  const std::string command =
      "cd " + dir_ + " && tar xf b.tar && sha256sum --quiet -c SHA256SUMS && " +
      "test \"$(cat README.txt)\" = 'read me' && tar tf b.tar | tail -1 | grep -qx bundle.sha256";
  EXPECT_EQ(std::system(command.c_str()), 0);
  const auto size = std::filesystem::file_size(dir_ + "/b.tar");
  const std::string seal = "cd " + dir_ + " && test \"$(head -c " + std::to_string(size - 2048) +
                           " b.tar | sha256sum | cut -c1-64)\" = \"$(cat bundle.sha256)\"";
  EXPECT_EQ(std::system(seal.c_str()), 0);
}

TEST_F(BundleTest, TheFiguresAreComputedAgainFromTheRawData) {
  WriteFile("b.tar", Bundle(curve_));
  const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
  EXPECT_THAT(verified, Exits(ExitCode::kOk));
  EXPECT_THAT(verified.out,
              AllOf(HasSubstr("computed again from the raw data, all equal"), HasSubstr("SHA-256")));
  EXPECT_THAT(verified.err, IsEmpty());
  EXPECT_THAT(verified.out, HasSubstr("12 runs and 192 points made again from the raw data"));
  EXPECT_THAT(verified.out, Not(HasSubstr("not compared")));
  EXPECT_THAT(RunAsIs({"verify", dir_ + "/b.tar", "-o", "json"}).out, HasSubstr("\"equal\""));
}

// The checksums are correct, because they were written for the false figure.
TEST_F(BundleTest, AFalseFigureWithCorrectChecksumsIsFound) {
  GetCurveResponse better = curve_;
  auto* throughput = better.mutable_series(0)->mutable_points(0)->mutable_throughput();
  throughput->set_mean(throughput->mean() * (1 + 1e-6));
  WriteFile("b.tar", Bundle(better));
  const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
  EXPECT_THAT(verified, Exits(ExitCode::kFailure));
  EXPECT_THAT(verified.out,
              AllOf(HasSubstr("with differences"), HasSubstr("series[0].points[0].throughput.mean")));
}

// The checksums are correct in the following bundles, too.
TEST_F(BundleTest, AFalseResultOfARunIsFound) {
  scalelab::v1::Run& run = runs_[2];
  ASSERT_TRUE(run.summary().contains("run/throughput"));
  (*run.mutable_summary())["run/throughput"] += 1e-9;
  const Outcome verified = VerifyWith(kBundleRuns, RunsText());
  EXPECT_THAT(verified, Exits(ExitCode::kFailure));
  EXPECT_THAT(verified.out, HasSubstr("runs.csv differs from the raw data in line 4"));
}

TEST_F(BundleTest, NamesOfResultsMayHaveCommasQuotesAndLineBreaks) {
  db::WriteBatch batch = db::AFinalStudy(7, 12, 70);
  for (const char* name : {"run/top1,5", "run/\"best\"", "run/two\nlines"})
    batch.summaries[0].metrics[name] = 0.5;
  Archive(batch);
  EXPECT_THAT(RunsText(), HasSubstr("\"run/\"\"best\"\"\""));
  EXPECT_THAT(RunsText(), AllOf(HasSubstr("\"run/top1,5\""), HasSubstr("\"run/two\nlines\"")));
  WriteFile("b.tar", Bundle(curve_));
  const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
  EXPECT_THAT(verified, Exits(ExitCode::kOk));
  EXPECT_THAT(verified.out, HasSubstr("12 runs and 192 points made again from the raw data"));
}

TEST_F(BundleTest, AMissingRunAndARunTooManyAreFound) {
  const std::string all = RunsText();
  const std::string fewer = all.substr(0, all.rfind('\n', all.size() - 2) + 1);
  EXPECT_THAT(VerifyWith(kBundleRuns, fewer).out, HasSubstr("runs.csv differs from the raw data in line 13"));
  const std::string last = all.substr(fewer.size());
  EXPECT_THAT(VerifyWith(kBundleRuns, all + last).out,
              HasSubstr("runs.csv differs from the raw data in line 14"));
  EXPECT_THAT(VerifyWith(kBundleRuns, "run\n").out, HasSubstr("runs.csv differs"));
}

TEST_F(BundleTest, AFalsePointAndAFalseMachineAreFound) {
  EXPECT_THAT(points_, AllOf(HasSubstr("run,rank,step,time,key,value\n"), HasSubstr(",loss,-3e+300\n")));
  std::string points = points_;
  const size_t at = points.rfind(",loss,-3e+300");
  const auto line = 1 + std::count(points.begin(), points.begin() + static_cast<ptrdiff_t>(at), '\n');
  points.replace(at, 13, ",loss,-4e+300");
  const Outcome of_points = VerifyWith(kBundlePoints, points);
  EXPECT_THAT(of_points, Exits(ExitCode::kFailure));
  EXPECT_THAT(of_points.out, HasSubstr(absl::StrCat("metrics.csv differs from the raw data in line ", line)));
  std::vector<scalelab::v1::Run> runs = runs_;
  runs[0].mutable_attempts(0)->add_nodes("a-faster-one");
  const Outcome of_machines = VerifyWith(kBundleProvenance, ProvenanceText(runs));
  EXPECT_THAT(of_machines, Exits(ExitCode::kFailure));
  EXPECT_THAT(of_machines.out, HasSubstr("provenance.json differs from the raw data in line"));
}

TEST_F(BundleTest, TheProvenanceHasEachMachineAndProgramOnce) {
  std::vector<scalelab::v1::Run> runs(2);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].set_name(absl::StrCat("studies/7/runs/", 70 + i));
    auto& attempt = *runs[i].add_attempts();
    attempt.set_number(1);
    for (const char* node : {"n1", "n2"}) {
      attempt.add_nodes(node);
      auto& info = *attempt.add_node_infos();
      info.set_cpu_model("EPYC");
      (*info.mutable_software())["torch"] = "2.1";
    }
    attempt.mutable_code()->set_git_commit("abc");
  }
  runs[1].mutable_attempts(0)->mutable_node_infos(1)->set_cpu_model("Xeon");
  const auto provenance = nlohmann::json::parse(ProvenanceText(runs));
  ASSERT_THAT(provenance["machines"], SizeIs(2));
  EXPECT_EQ(provenance["machines"][0]["software"]["torch"], "2.1");
  EXPECT_EQ(provenance["machines"][1]["cpu_model"], "Xeon");
  ASSERT_THAT(provenance["code"], SizeIs(1));
  EXPECT_EQ(provenance["code"][0]["git_commit"], "abc");
  ASSERT_THAT(provenance["attempts"], SizeIs(2));
  const auto& attempt = provenance["attempts"][1];
  EXPECT_EQ(attempt["run"], "studies/7/runs/71");
  EXPECT_EQ(attempt["attempt"], 1);
  EXPECT_EQ(attempt["nodes"], nlohmann::json::array({"n1", "n2"}));
  EXPECT_EQ(attempt["machines"], nlohmann::json::array({0, 1}));
  EXPECT_EQ(attempt["code"], 0);
}

TEST_F(BundleTest, NamesOfRunsAreParsed) {
  ASSERT_TRUE(ParseFirstRun("studies/7/runs/71").has_value());
  EXPECT_EQ(ParseFirstRun("studies/7/runs/71")->study, 7);
  EXPECT_EQ(ParseFirstRun("studies/7/runs/71")->run, 71);
  for (const char* other :
       {"", "71", "studies/7", "studies/7/runs/x", "studies/0/runs/1", "studies/1/runs/-1",
        "studies/99999999999/runs/1", "studies/7/runs/71/attempts/1"})
    EXPECT_FALSE(ParseFirstRun(other).has_value()) << other;
}

TEST_F(BundleTest, ATableThatSaysSomethingElseIsFound) {
  GetCurveResponse other = curve_;
  other.mutable_series(0)->mutable_points(0)->mutable_throughput()->set_mean(1);
  WriteFile("b.tar", Write({{kBundleManifest, "{}"},
                            {kBundleSpec, StudyYaml(spec_) + "# more\n"},
                            {kBundleRuns, RunsText()},
                            {kBundleCurve, ToJson(curve_, true)},
                            {kBundleCurveTable, CurveTableText(other)},
                            {kBundleArchive, archive_}}));
  const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
  EXPECT_THAT(verified, Exits(ExitCode::kFailure));
  EXPECT_THAT(verified.out, AllOf(HasSubstr("curve.csv differs"), HasSubstr("study.yaml differs")));
}

// As a version wrote it that had neither plan.json, metrics.csv and provenance.json nor the last columns of curve.csv.
TEST_F(BundleTest, ABundleOfAnOlderVersionIsVerified) {
  std::vector<std::string> columns = CurveData(curve_).columns;
  ASSERT_EQ(columns.back(), "series_notes");
  columns.resize(columns.size() - 2);
  const std::string table = CurveTableText(curve_, columns);
  EXPECT_THAT(table, Not(HasSubstr("listed_order")));
  const auto verify = [&](const std::string& csv) {
    WriteFile("b.tar", Write({{kBundleManifest, "{}"},
                              {kBundleSpec, StudyYaml(spec_)},
                              {kBundleRuns, RunsText()},
                              {kBundleCurve, ToJson(curve_, true)},
                              {kBundleCurveTable, csv},
                              {kBundleArchive, archive_}}));
    return RunAsIs({"verify", dir_ + "/b.tar"});
  };
  EXPECT_THAT(verify(table), Exits(ExitCode::kOk));
  EXPECT_THAT(verify(table).out, AllOf(HasSubstr("metrics.csv, which this bundle does not have"),
                                       HasSubstr("provenance.json, which this bundle does not have")));
  EXPECT_THAT(verify("colour," + table), Exits(ExitCode::kFailure));
}

// Older versions showed the mean of the repeats that reached the target; this version shows none.
TEST_F(BundleTest, ATimeToAccuracyOfAnOlderVersionIsNotCompared) {
  db::WriteBatch batch = db::AFinalStudy(7, 12, 70);
  batch.cell_values[0].value = R"({"ranks":1,"target_accuracy":0.9})";
  batch.runs[2].cell_id = batch.runs[0].cell_id;
  batch.runs[2].repeat = 1;
  batch.summaries[0].time_to_accuracy = 12;
  Archive(batch);
  GetCurveResponse older = curve_;
  auto& point = *older.mutable_series(0)->mutable_points(0);
  ASSERT_EQ(point.time_to_target().reached(), 1);
  ASSERT_EQ(point.time_to_target().n(), 2);
  EXPECT_FALSE(point.has_time_to_accuracy());
  point.mutable_time_to_accuracy()->set_mean(12);
  WriteFile("b.tar", Bundle(older));
  const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
  EXPECT_THAT(verified, Exits(ExitCode::kOk));
  EXPECT_THAT(
      verified.out,
      HasSubstr("time_to_accuracy of an older version: the mean of the 1 of 2 repeats that reached it"));
  older.mutable_series(0)->mutable_points(1)->mutable_time_to_accuracy()->set_mean(12);
  WriteFile("b.tar", Bundle(older));
  EXPECT_THAT(RunAsIs({"verify", dir_ + "/b.tar"}), Exits(ExitCode::kFailure)) << "no repeat reached it";
}

// The curve has no version of a program, so it differs from the raw data as soon as a version is added.
TEST_F(BundleTest, ADifferenceOfAnotherProgramIsFound) {
  const std::string diff = "+print(2)\n";
  Sha256Stream sum;
  sum.Add(diff);
  curve_.mutable_series(0)->add_code_versions()->mutable_code()->set_diff_sha256(sum.Finish());
  const auto verify = [&](const std::string& text) {
    WriteFile("b.tar", Write({{kBundleManifest, "{}"},
                              {kBundleSpec, StudyYaml(spec_)},
                              {kBundleRuns, RunsText()},
                              {kBundleCurve, ToJson(curve_, true)},
                              {kBundleCurveTable, CurveTableText(curve_)},
                              {"code-0123.diff", text},
                              {kBundleArchive, archive_}}));
    return RunAsIs({"verify", dir_ + "/b.tar"}).out;
  };
  constexpr char kDifference[] = "code-0123.diff has a SHA-256 that curve.json does not name";
  EXPECT_THAT(verify("+print(3)\n"), HasSubstr(kDifference));
  EXPECT_THAT(verify(diff), Not(HasSubstr(kDifference)));
}

TEST_F(BundleTest, AnAxisThatAnOlderVersionWroteTwiceIsWrittenTwiceAgain) {
  GetCurveResponse curve;
  auto& series = *curve.add_series();
  (*series.mutable_key()->mutable_fields())["global_batch"].set_number_value(64);
  series.add_points()->set_ranks(2);
  series.mutable_points(0)->set_global_batch(64);
  EXPECT_EQ(CurveTableText(curve, {"global_batch", "ranks", "global_batch"}),
            "global_batch,ranks,global_batch\n64,2,64\n");
}

TEST_F(BundleTest, OtherFilesAreNoBundles) {
  EXPECT_TRUE(absl::IsDataLoss(Check("")));
  EXPECT_TRUE(absl::IsDataLoss(Check(std::string(4096, '\0'))));
  EXPECT_TRUE(absl::IsDataLoss(Check(archive_)));
  EXPECT_THAT(RunAsIs({"verify", "/nowhere/b.tar"}).err, HasSubstr("cannot read /nowhere/b.tar"));
  WriteFile("b.tar", Write({{"README.txt", "nothing else"}}));
  EXPECT_THAT(RunAsIs({"verify", dir_ + "/b.tar"}).err, HasSubstr("has no curve.json"));
}

// Returns a complete archive with the number of another schema, and with tables that no schema has.
std::string ArchiveOfSchema(int schema) {
  const std::string header = absl::StrCat(R"({"schema":)", schema, R"(,"tables":{}})");
  std::string content = {static_cast<char>(header.size()), 0, 0, 0};
  content += header;
  std::string frame(ZSTD_compressBound(content.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 1));
  const std::string bytes = absl::StrCat("scalelab archive 1\n", frame, std::string(64, ' '));
  Sha256Stream sum;
  sum.Add(bytes);
  return bytes + absl::HexStringToBytes(sum.Finish());
}

TEST_F(BundleTest, ABundleOfAnUnknownSchemaIsRefusedWithBothSchemasAndWhatToDo) {
  const int newest = db::NewestSchema();
  for (const int schema : {newest - 1, newest + 1}) {
    archive_ = ArchiveOfSchema(schema);
    WriteFile("b.tar", Bundle(curve_));
    const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
    EXPECT_THAT(verified, Exits(ExitCode::kFailure));
    EXPECT_THAT(verified.err,
                AllOf(HasSubstr(absl::StrCat("from schema ", schema)),
                      HasSubstr(absl::StrCat("reads schema ", newest)),
                      HasSubstr(schema > newest ? "upgrade scalelab, or use the version that wrote"
                                                : "use the version that wrote the archive")));
  }
}

TEST_F(BundleTest, FieldsOfANewerVersionAreNoDamage) {
  std::string curve = ToJson(curve_, true);
  curve.insert(curve.find('{') + 1, R"("field_of_tomorrow":1,)");
  WriteFile("b.tar", Write({{kBundleManifest, "{}"},
                            {kBundleSpec, StudyYaml(spec_)},
                            {kBundleRuns, RunsText()},
                            {kBundleCurve, curve},
                            {kBundleCurveTable, CurveTableText(curve_)},
                            {kBundleArchive, archive_}}));
  const Outcome verified = RunAsIs({"verify", dir_ + "/b.tar"});
  EXPECT_THAT(verified, Exits(ExitCode::kFailure));
  EXPECT_THAT(verified.err,
              AllOf(HasSubstr("field_of_tomorrow"), HasSubstr("the version that manifest.json names")));
}

TEST_F(BundleTest, HasThePlanAndTheChangesOfTheProgram) {
  Serve();
  server_.plan.set_runs(12);
  server_.plan.add_allocations()->set_script("#!/bin/sh\nexec /opt/secret/place\n");
  WriteFile("code.diff", "+print(2)\n");
  // The server names the paths, so what is there may be anything. Nobody writes to the FIFO.
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  const std::pair<const char*, const char*> versions[] = {
      {"+print(2)\n", "/code.diff"}, {"+print(3)\n", "/code.diff"}, {"+print(4)\n", "/fifo"}};
  for (const auto& [text, path] : versions) {
    Sha256Stream sum;
    sum.Add(text);
    auto& code = *server_.curve.mutable_series(0)->add_code_versions()->mutable_code();
    code.set_git_dirty(true);
    code.set_diff_sha256(sum.Finish());
    code.set_diff_path(dir_ + path);
  }
  const Outcome written = Run({"study", "bundle", "7", "-o", dir_ + "/b.tar"});
  ASSERT_THAT(written, Exits(ExitCode::kOk));
  auto bundle = BundleReader::Open(dir_ + "/b.tar");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  const std::string plan = bundle->Read(kBundlePlan).value();
  EXPECT_THAT(plan, AllOf(HasSubstr("\"runs\": 12"), Not(HasSubstr("/opt/secret"))));
  std::vector<std::string> diffs;
  for (const auto& [name, entry] : bundle->entries()) {
    if (name.starts_with("code-")) diffs.push_back(name);
  }
  ASSERT_THAT(diffs, SizeIs(1)) << "the others do not have the text of their version";
  EXPECT_EQ(bundle->Read(diffs[0]).value(), "+print(2)\n");
  EXPECT_THAT(written.err, HasSubstr("cannot be read on this machine, or has changed"));
  EXPECT_THAT(bundle->Read("README.txt").value(), AllOf(HasSubstr("plan.json"), HasSubstr("code-*.diff")));
  EXPECT_EQ(bundle->Read(kBundlePoints).value(), points_);
  EXPECT_EQ(bundle->Read(kBundleProvenance).value(), ProvenanceText(runs_));
}

TEST_F(BundleTest, TheCopyOfTheArchiveIsInTheDirectoryForTemporaryFiles) {
  Serve();
  const std::string before = std::filesystem::temp_directory_path();
  const auto bundle = [this](const std::string& temporary) {
    setenv("TMPDIR", temporary.c_str(), 1);
    return Run({"study", "bundle", "7", "-o", dir_ + "/b.tar"});
  };
  const Outcome refused = bundle(dir_ + "/none");
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/b.tar"));
  std::filesystem::create_directory(dir_ + "/temporary");
  const Outcome written = bundle(dir_ + "/temporary");
  setenv("TMPDIR", before.c_str(), 1);
  EXPECT_THAT(refused, Exits(ExitCode::kFailure));
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("cannot create a temporary file: "), HasSubstr("set TMPDIR to a directory")));
  EXPECT_THAT(written, Exits(ExitCode::kOk));
  EXPECT_TRUE(std::filesystem::is_empty(dir_ + "/temporary"));
}

TEST_F(BundleTest, ABundleThatCannotBeReadIsNoUnreachableServer) {
  WriteFile("b.tar", Bundle(curve_));
  auto bundle = BundleReader::Open(dir_ + "/b.tar");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  std::filesystem::resize_file(dir_ + "/b.tar", 0);
  const absl::Status read = bundle->Read(kBundleManifest).status();
  EXPECT_EQ(ExitCodeOf(read), ExitCode::kFailure) << read;
  EXPECT_THAT(read.message(), HasSubstr(absl::StrCat("cannot read ", dir_)));
}

TEST_F(BundleTest, AStudyThatCannotBePlannedAgainHasABundleWithoutPlan) {
  Serve();
  server_.plan_error = absl::InvalidArgumentError("partition gpu is gone");
  const Outcome written = Run({"study", "bundle", "7", "-o", dir_ + "/b.tar"});
  ASSERT_THAT(written, Exits(ExitCode::kOk));
  EXPECT_THAT(written.err, HasSubstr("no plan.json: partition gpu is gone"));
  EXPECT_EQ(BundleReader::Open(dir_ + "/b.tar")->entries().count(kBundlePlan), 0u);
  EXPECT_THAT(RunAsIs({"verify", dir_ + "/b.tar"}), Exits(ExitCode::kOk));
}

TEST_F(BundleTest, AnImportSendsTheArchiveAndWhereItComesFrom) {
  Start();
  server_.studies = {MakeStudy(3, "archived", scalelab::v1::Study::SUCCEEDED, 0, 0, 4)};
  WriteFile("b.tar", Bundle(curve_));
  const Outcome imported = Run({"study", "import", dir_ + "/b.tar"});
  EXPECT_THAT(imported, Exits(ExitCode::kOk));
  EXPECT_EQ(imported.out, "studies/3\n");
  EXPECT_EQ(server_.restored, archive_);
  EXPECT_EQ(server_.restored_from.server(), "lab.example:4711");
  EXPECT_EQ(server_.restored_from.study(), "studies/7");
  EXPECT_EQ(server_.restored_from.sha256().size(), 64u);
  EXPECT_THAT(imported.err, HasSubstr("studies/7 of lab.example:4711"));
}

}  // namespace
}  // namespace scalelab::client
