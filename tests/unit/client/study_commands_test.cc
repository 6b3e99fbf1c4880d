#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/watcher.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Study;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class StudyCommands : public ClientTest {};

TEST_F(StudyCommands, ValidateNeedsNoServer) {
  const Outcome good = Run({"study", "validate", StudyFile()});
  EXPECT_THAT(good, Exits(ExitCode::kOk));
  EXPECT_THAT(good.out, IsEmpty());
  EXPECT_THAT(good.err, HasSubstr("2 cells x 3 repeats = 6 runs"));
}

TEST_F(StudyCommands, ValidateTellsWhatIsAddedAndLeftOut) {
  const Outcome good = Run({"study", "validate",
                            WriteFile("measured.yaml",
                                      "study: s\nfixed: {model: resnet20, dataset: synthetic}\nmatrix:\n"
                                      "  backend: [mpi, nccl]\n  ranks: [1, 2]\nrepeats: 3\n"
                                      "measure: {communication: true}\non_unusable: exclude\n")});
  EXPECT_THAT(good, Exits(ExitCode::kOk));
  EXPECT_THAT(good.err, AllOf(HasSubstr("2 cells x 3 repeats = 6 runs + 6 baseline runs, 2 cells excluded"),
                              HasSubstr("left out: backend nccl needs GPUs")));
}

TEST_F(StudyCommands, AnInvalidFileExitsWithTwoAndNamesThePlace) {
  const std::string path = WriteFile(
      "bad.yaml", "study: small\nfixed: {model: resnet2O, dataset: synthetic}\nmatrix: {ranks: [1]}\n");
  for (const char* command : {"validate", "plan", "submit"}) {
    const Outcome bad = Run({"study", command, path});
    EXPECT_THAT(bad, Exits(ExitCode::kUsage)) << command;
    EXPECT_THAT(bad.err, StartsWith(path + ":2:9: ")) << command;
    EXPECT_THAT(bad.out, IsEmpty());
  }
  EXPECT_THAT(Run({"study", "validate", dir_ + "/missing.yaml"}), Exits(ExitCode::kUsage));
}

TEST_F(StudyCommands, SubmitPrintsTheNameAndNothingElseOnStdout) {
  Start();
  const Outcome submit = Run({"study", "submit", StudyFile(), "--owner", "ada"});
  EXPECT_THAT(submit, Exits(ExitCode::kOk));
  EXPECT_EQ(submit.out, "studies/7\n");
  EXPECT_THAT(submit.err, HasSubstr("6 runs queued"));
  ASSERT_THAT(server_.created, SizeIs(1));
  EXPECT_EQ(server_.created[0].spec().study(), "small");
  EXPECT_EQ(server_.created[0].owner(), "ada");
  EXPECT_THAT(server_.created[0].request_id(),
              MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
}

TEST_F(StudyCommands, SubmitAddsTheNotificationsOfTheConfiguration) {
  Start();
  std::filesystem::create_directories(dir_ + "/.config/scalelab");
  const std::string config =
      WriteFile(".config/scalelab/config",
                "# mine\nnotify: {on: [end], webhook: \"https://chat.example/x?a=1#b\"}  # all studies\n");
  EXPECT_THAT(Run({"study", "submit", StudyFile()}), Exits(ExitCode::kOk));
  EXPECT_THAT(Run({"study", "submit", StudyFile(), "--set", "notify={mail: bob@uni.example}"}),
              Exits(ExitCode::kOk));
  EXPECT_THAT(Run({"study", "submit", StudyFile(), "--set", "notify=none"}), Exits(ExitCode::kOk));
  ASSERT_THAT(server_.created, SizeIs(3));
  EXPECT_EQ(server_.created[0].spec().notify().webhook(), "https://chat.example/x?a=1#b");
  EXPECT_THAT(server_.created[0].spec().notify().on(), ElementsAre(scalelab::v1::Notify::END));
  EXPECT_EQ(server_.created[1].spec().notify().mail(), "bob@uni.example");
  EXPECT_EQ(server_.created[1].spec().notify().webhook(), "");
  EXPECT_FALSE(server_.created[2].spec().has_notify());
  EXPECT_THAT(Run({"study", "plan", StudyFile()}).out,
              HasSubstr("webhook https://chat.example/x?a=1#b on end (" + config + ":2: notify)"));
  const std::string own = Run({"study", "plan", StudyFile(), "--set", "notify={mail: bob@uni.example}"}).out;
  EXPECT_THAT(own, AllOf(HasSubstr("mail bob@uni.example on end, first_failure"), Not(HasSubstr(config))));
  EXPECT_THAT(Run({"study", "plan", StudyFile(), "--set", "notify=none"}).out, Not(HasSubstr("notify")));
}

TEST_F(StudyCommands, AMistakeInTheNotificationsOfTheConfigurationIsLocated) {
  Start();
  std::filesystem::create_directories(dir_ + "/.config/scalelab");
  const std::string config = WriteFile(".config/scalelab/config", "notify: {mail: nobody}\n");
  for (const char* command : {"submit", "plan"}) {
    const Outcome wrong = Run({"study", command, StudyFile()});
    EXPECT_THAT(wrong, Exits(ExitCode::kUsage));
    EXPECT_THAT(wrong.err, StartsWith(config + ":1: notify: mail ")) << command;
  }
  EXPECT_THAT(server_.created, IsEmpty());
  EXPECT_THAT(Run({"study", "list"}), Exits(ExitCode::kOk)) << "other commands do not use it";
}

TEST_F(StudyCommands, SubmitSendsTheTextOfTheFileUnlessItDoesNotGiveTheSpecification) {
  Start();
  const std::string text =
      "# for the paper\nstudy: small  # twice\nfixed: {model: resnet20, dataset: synthetic}\n"
      "matrix: {ranks: [1, 2]}\n";
  const std::string file = WriteFile("commented.yaml", text);
  EXPECT_THAT(Run({"study", "submit", file}), Exits(ExitCode::kOk));
  EXPECT_THAT(Run({"study", "submit", file, "--set", "repeats=2"}), Exits(ExitCode::kOk));
  const std::string longest = text + std::string((256 << 10) - text.size(), '#');
  EXPECT_THAT(Run({"study", "submit", WriteFile("longest.yaml", longest)}), Exits(ExitCode::kOk));
  EXPECT_THAT(Run({"study", "submit", WriteFile("longer.yaml", longest + "#")}), Exits(ExitCode::kOk));
  ASSERT_THAT(server_.created, SizeIs(4));
  EXPECT_EQ(server_.created[0].study_file(), text);
  EXPECT_EQ(server_.created[1].study_file(), "");
  EXPECT_TRUE(server_.created[2].study_file() == longest);
  EXPECT_EQ(server_.created[3].study_file().size(), 0u);
  EXPECT_EQ(server_.created[3].spec().study(), "small");
}

TEST_F(StudyCommands, TheServerChoosesTheOwner) {
  Start();
  EXPECT_THAT(Run({"study", "submit", StudyFile()}), Exits(ExitCode::kOk));
  ASSERT_THAT(server_.created, SizeIs(1));
  EXPECT_EQ(server_.created[0].owner(), "");
}

TEST_F(StudyCommands, QuietSubmitSaysNothing) {
  Start();
  EXPECT_THAT(Run({"study", "submit", StudyFile(), "--quiet"}).err, IsEmpty());
}

TEST_F(StudyCommands, ALostAnswerIsAskedForAgainWithTheSameRequestId) {
  Start();
  server_.lost_answers = 2;
  const Outcome submit = Run({"study", "submit", StudyFile()});
  EXPECT_THAT(submit, Exits(ExitCode::kOk));
  ASSERT_THAT(server_.created, SizeIs(3));
  EXPECT_EQ(server_.created[0].request_id(), server_.created[1].request_id());
  EXPECT_EQ(server_.created[0].request_id(), server_.created[2].request_id());
}

TEST_F(StudyCommands, TwoSubmitsAreTwoRequestsUnlessTheUserNamesOne) {
  Start();
  Run({"study", "submit", StudyFile()});
  Run({"study", "submit", StudyFile()});
  Run({"study", "submit", StudyFile(), "--request-id", "mine"});
  ASSERT_THAT(server_.created, SizeIs(3));
  EXPECT_NE(server_.created[0].request_id(), server_.created[1].request_id());
  EXPECT_EQ(server_.created[2].request_id(), "mine");
}

TEST_F(StudyCommands, WhatTheServerRefusesOfAFileIsAnInvalidFileWithItsPlace) {
  Start();
  server_.error = InvalidFields({{"resources.partition", "there is no partition 'gpu'"}});
  const std::string path =
      WriteFile("p.yaml",
                "study: s\nfixed: {model: resnet20, dataset: synthetic}\nmatrix:\n  ranks: [1]\n"
                "resources:\n  partition: gpu\n");
  const Outcome submit = Run({"study", "submit", path});
  EXPECT_THAT(submit, Exits(ExitCode::kUsage));
  EXPECT_THAT(submit.err, StartsWith(path + ":6:3: there is no partition 'gpu'"));

  server_.error = MakeError(absl::StatusCode::kFailedPrecondition, "TOO_MANY_RANKS", "8 ranks, but 4 slots");
  EXPECT_THAT(Run({"study", "submit", path}), Exits(ExitCode::kUsage));
  server_.error = MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", "200000 runs");
  EXPECT_THAT(Run({"study", "plan", path}), Exits(ExitCode::kUsage));
}

TEST_F(StudyCommands, AServerThatIsTooBusyDoesNotMakeAFileInvalid) {
  Start();
  server_.error = MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_CALLS", "try again in 5 seconds");
  const Outcome submit = Run({"study", "submit", StudyFile()});
  EXPECT_THAT(submit, Exits(ExitCode::kFailure));
  EXPECT_THAT(submit.err, HasSubstr("try again in 5 seconds"));
  EXPECT_THAT(Run({"study", "plan", StudyFile()}), Exits(ExitCode::kFailure));
}

TEST_F(StudyCommands, ARequestOfMoreThanFourMebibytesIsNotSent) {
  Start();
  const std::string path =
      WriteFile("large.yaml", "study: s\nfixed: {model: resnet20, dataset: synthetic, data_dir: /" +
                                  std::string(5 << 20, 'x') + "}\nmatrix: {ranks: [1]}\n");
  const Outcome submit = Run({"study", "submit", path});
  EXPECT_THAT(submit, Exits(ExitCode::kUsage));
  EXPECT_THAT(submit.err, HasSubstr("4 MiB"));
  EXPECT_THAT(server_.created, IsEmpty());
}

TEST_F(StudyCommands, PlanShowsCellsAllocationsAndTotals) {
  Start();
  for (const int ranks : {1, 2}) {
    auto* cell = server_.plan.add_cells();
    (*cell->mutable_key()->mutable_fields())["engine"].set_string_value("native/ddp");
    (*cell->mutable_key()->mutable_fields())["ranks"].set_number_value(ranks);
    cell->set_ranks(ranks);
    cell->set_global_batch(64);
    cell->set_batch_per_rank(64 / ranks);
    cell->set_learning_rate(0.1);
  }
  for (int i = 0; i < 3; ++i) {
    auto* allocation = server_.plan.add_allocations();
    allocation->set_nodes(1);
    allocation->set_ranks_per_node(2);
    allocation->set_cpus_per_node(2);
    allocation->set_time_seconds(1800);
    allocation->set_runs(2);
    allocation->set_script("#!/bin/sh\nexec scalelab-worker\n");
  }
  server_.plan.set_runs(6);
  server_.plan.set_node_hours_largest(8.25);
  server_.plan.set_node_hours_own(4.5);
  const Outcome plan = Run({"study", "plan", StudyFile()});
  EXPECT_THAT(plan, Exits(ExitCode::kOk));
  ExpectGolden("plan.txt", plan.out);
  EXPECT_THAT(plan.out, Not(HasSubstr("own sizes need")));
  server_.plan.set_own_sizes(3);
  EXPECT_THAT(Run({"study", "plan", StudyFile()}).out,
              ContainsRegex("own sizes need: +limits.concurrent_allocations: 3\n"));
  server_.plan.set_node_hours_own(8.5);  // not cheaper
  EXPECT_THAT(Run({"study", "plan", StudyFile()}).out, Not(HasSubstr("own sizes need")));
  server_.plan.set_baseline_runs(6);
  server_.plan.add_unusable("backend nccl needs GPUs, and the local scheduler has none");
  EXPECT_THAT(Run({"study", "plan", StudyFile()}).out,
              AllOf(HasSubstr("6 + 6 baseline runs"), ContainsRegex("left out: +backend nccl needs GPUs")));
  EXPECT_THAT(Run({"study", "plan", StudyFile(), "--scripts"}).out, HasSubstr("\nexec scalelab-worker\n"));
  EXPECT_EQ(Run({"study", "plan", StudyFile(), "-o", "csv"}).out,
            "engine,ranks,global_batch,batch_per_rank,learning_rate,steps\n"
            "native/ddp,1,64,64,0.1,\nnative/ddp,2,64,32,0.1,\n");
  server_.plan.mutable_cells(0)->set_steps(782);
  EXPECT_THAT(Run({"study", "plan", StudyFile()}).out, AllOf(HasSubstr("STEPS"), HasSubstr("782")));
}

TEST_F(StudyCommands, AnAxisThatPlanShowsAnywayHasOneColumn) {
  Start();
  auto* cell = server_.plan.add_cells();
  for (const char* axis : {"ranks", "batch_per_rank", "learning_rate"})
    (*cell->mutable_key()->mutable_fields())[axis].set_number_value(2);
  cell->set_ranks(2);
  cell->set_global_batch(4);
  cell->set_batch_per_rank(2);
  cell->set_learning_rate(0.5);
  EXPECT_EQ(Run({"study", "plan", StudyFile(), "-o", "csv"}).out,
            "ranks,global_batch,batch_per_rank,learning_rate,steps\n2,4,2,0.5,\n");
}

TEST_F(StudyCommands, ListGathersAllPages) {
  Start();
  for (int i = 5; i >= 1; --i)
    server_.studies.push_back(MakeStudy(i, "s" + std::to_string(i), Study::SUCCEEDED, 0, 0, 6));
  const Outcome table = Run({"study", "list"});
  EXPECT_THAT(table, Exits(ExitCode::kOk));
  ExpectGolden("study_list.txt", table.out);
  const auto json = nlohmann::json::parse(Run({"study", "list", "-o", "json"}).out);
  ASSERT_EQ(json["studies"].size(), 5U);
  EXPECT_EQ(json["studies"][0]["name"], "studies/5");
  EXPECT_EQ(json["studies"][0]["counts"]["failed"], 0);  // fields with value zero are included
  EXPECT_EQ(json["studies"][0]["state"], "SUCCEEDED");
  const std::string csv = Run({"study", "list", "-o", "csv"}).out;
  EXPECT_THAT(
      csv, StartsWith("name,display_name,owner,state,queued,running,succeeded,failed,cancelled,create_time,"
                      "start_time,finish_time,skipped\nstudies/5,s5,ada,succeeded,0,0,6,0,0,2026-11-18T"));
}

TEST_F(StudyCommands, ListShowsTheSelectedStudies) {
  Start();
  for (int i = 5; i >= 1; --i)
    server_.studies.push_back(
        MakeStudy(i, "s" + std::to_string(i), i % 2 == 0 ? Study::RUNNING : Study::SUCCEEDED, 0, 0, 6, i));
  const auto names = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"study", "list", "-o", "json"});
    std::string all;
    const auto json = nlohmann::json::parse(Run(more).out);
    for (const auto& study : json["studies"]) all += study["display_name"].get<std::string>() + " ";
    return all;
  };
  EXPECT_EQ(names({"--limit", "3"}), "s5 s4 s3 ");
  EXPECT_EQ(names({"--where", "state=succeeded", "--limit", "2"}), "s5 s3 ");
  EXPECT_EQ(names({"--where", "name=s? and failed<3", "--where", "number!=1"}), "s2 ");
  EXPECT_EQ(names({"--sort", "number"}), "s1 s2 s3 s4 s5 ");
  EXPECT_EQ(names({"--sort", "-state", "--limit", "4"}), "s5 s3 s1 s4 ");  // equal ones: newest first
  EXPECT_EQ(names({"--sort", "failed", "--where", "state=running", "--limit", "1"}), "s2 ");
  for (auto& study : server_.studies) {
    if (study.display_name() == "s3") study.mutable_counts()->set_skipped(4);
  }
  EXPECT_EQ(names({"--where", "skipped>0"}), "s3 ");
  EXPECT_EQ(names({"--sort", "-skipped", "--limit", "1"}), "s3 ");
  EXPECT_THAT(Run({"study", "list", "--sort", "colour"}).err,
              HasSubstr("--sort: 'colour' is no field of a study; known: number"));
  EXPECT_EQ(Run({"study", "list", "--where", "owner=eve"}).out, "no such studies\n");
  EXPECT_THAT(
      Run({"study", "list", "--where", "colour=red"}).err,
      HasSubstr("'colour' is no field of a study; known: number, name, owner, state, queued, running, "
                "succeeded, failed, cancelled, skipped"));
}

TEST_F(StudyCommands, ListTakesRangesAndNames) {
  Start();
  for (int i = 5; i >= 1; --i)
    server_.studies.push_back(MakeStudy(i, "s" + std::to_string(i), Study::RUNNING, 1, 1, 0));
  const auto json = nlohmann::json::parse(Run({"study", "list", "1-2,s4,last,5", "-o", "json"}).out);
  std::vector<std::string> names;
  for (const auto& study : json["studies"]) names.push_back(study["name"]);
  EXPECT_THAT(names, ElementsAre("studies/1", "studies/2", "studies/4", "studies/5"));
  EXPECT_THAT(Run({"study", "list", "9"}), Exits(ExitCode::kFailure));
  EXPECT_THAT(Run({"study", "list", "3-1"}), Exits(ExitCode::kUsage));
}

TEST_F(StudyCommands, AnEmptyListIsAnAnswerInEveryFormat) {
  Start();
  EXPECT_THAT(Run({"study", "list"}).out, HasSubstr("no studies yet"));
  EXPECT_EQ(nlohmann::json::parse(Run({"study", "list", "-o", "json"}).out)["studies"].size(), 0U);
  EXPECT_THAT(Run({"study", "list", "-o", "csv"}).out, StartsWith("name,"));
}

TEST_F(StudyCommands, ShowAcceptsEverySelector) {
  Start();
  server_.studies = {MakeStudy(7, "small", Study::FAILED, 0, 0, 5, 1)};
  for (const char* selector : {"7", "studies/7", "last", "small"}) {
    const Outcome show = Run({"study", "show", selector});
    EXPECT_THAT(show, Exits(ExitCode::kOk));
    EXPECT_THAT(show.out,
                AllOf(HasSubstr("studies/7"), HasSubstr("6: 0 queued, 0 running, 5 succeeded, 1 failed")));
  }
  EXPECT_EQ(nlohmann::json::parse(Run({"study", "show", "7", "-o", "json"}).out)["study"]["display_name"],
            "small");
  EXPECT_THAT(Run({"study", "show", "8"}), Exits(ExitCode::kFailure));
}

TEST_F(StudyCommands, CancelAllLeavesFinishedStudiesAlone) {
  Start();
  server_.studies = {MakeStudy(3, "c", Study::RUNNING, 1, 1, 0), MakeStudy(2, "b", Study::SUCCEEDED, 0, 0, 2),
                     MakeStudy(1, "a", Study::QUEUED, 2, 0, 0)};
  const Outcome cancel = Run({"study", "cancel", "all"});
  EXPECT_THAT(cancel, Exits(ExitCode::kOk));
  EXPECT_THAT(server_.cancelled, ElementsAre("studies/3", "studies/1"));
  EXPECT_THAT(cancel.out, HasSubstr("cancelled"));
}

TEST_F(StudyCommands, DeleteNamesTheStudyThatLastMeansAndPassesRefusalsOn) {
  Start();
  server_.studies = {MakeStudy(3, "c", Study::SUCCEEDED, 0, 0, 1), MakeStudy(2, "b", Study::RUNNING, 0, 1, 0),
                     MakeStudy(1, "a", Study::FAILED, 0, 0, 0, 1)};
  EXPECT_THAT(Run({"study", "delete", "last"}), Exits(ExitCode::kOk));
  EXPECT_THAT(server_.deleted, ElementsAre("studies/3"));
  const Outcome some = Run({"study", "delete", "1-2", "--yes"});
  EXPECT_THAT(some, Exits(ExitCode::kFailure));
  EXPECT_THAT(some.err, HasSubstr("studies/2 is not over"));
  EXPECT_THAT(server_.deleted, ElementsAre("studies/3", "studies/1"));
}

TEST_F(StudyCommands, DeleteNamesTheDirectoryThatStaysAndHowToRemoveIt) {
  Start();
  server_.studies = {MakeStudy(3, "c", Study::SUCCEEDED, 0, 0, 1),
                     MakeStudy(2, "b", Study::SUCCEEDED, 0, 0, 1),
                     MakeStudy(1, "a", Study::SUCCEEDED, 0, 0, 1)};
  const auto run_in = [&](const std::string& name, const std::string& directory) {
    scalelab::v1::Run never;  // it has no attempt
    never.set_name(name + "0");
    scalelab::v1::Run run;
    run.set_name(name);
    run.mutable_start_time()->set_seconds(1);
    if (!directory.empty()) run.add_attempts()->set_directory(directory);
    server_.runs = {never, run};
  };
  run_in("studies/3/runs/12", "/srv/my runs/3/12/x");
  EXPECT_EQ(
      Run({"study", "delete", "3"}).err,
      "deleted studies/3; its files stay in /srv/my runs/3 on the server: remove them with `rm -r '/srv/my "
      "runs/3'`, or with the retention rule attempt_directories\n");
  run_in("studies/2/runs/11", "/srv/else/7/x");  // not the directory of this study
  EXPECT_EQ(Run({"study", "delete", "2"}).err, "deleted studies/2\n");
  run_in("studies/1/runs/10", "");
  EXPECT_EQ(Run({"study", "delete", "1"}).err, "deleted studies/1\n");
}

TEST_F(StudyCommands, QuietHidesNoError) {
  Start();
  server_.studies = {MakeStudy(2, "b", Study::RUNNING, 0, 1, 0), MakeStudy(1, "a", Study::RUNNING, 0, 1, 0)};
  EXPECT_THAT(Run({"study", "delete", "1-2", "--yes", "--quiet"}).err,
              AllOf(HasSubstr("studies/1 is not over"), HasSubstr("studies/2 is not over")));
}

TEST_F(StudyCommands, SeveralStudiesAreDeletedOnlyWithAConfirmation) {
  Start();
  server_.studies = {MakeStudy(2, "b", Study::SUCCEEDED, 0, 0, 1),
                     MakeStudy(1, "a", Study::FAILED, 0, 0, 0, 1)};
  const Outcome asked = Run({"study", "delete", "all"});
  EXPECT_THAT(asked, Exits(ExitCode::kFailure));
  EXPECT_THAT(asked.err,
              HasSubstr("this would delete 2 studies with their runs and points; add --yes to do it"));
  EXPECT_TRUE(server_.deleted.empty());
  EXPECT_THAT(Run({"study", "delete", "all", "-y"}), Exits(ExitCode::kOk));
  EXPECT_THAT(server_.deleted, ElementsAre("studies/2", "studies/1"));
}

TEST_F(StudyCommands, OnATerminalTheDeletionOfOneStudyIsAskedFor) {
  Start();
  server_.studies = {MakeStudy(2, "b", Study::SUCCEEDED, 0, 0, 1),
                     MakeStudy(1, "a", Study::FAILED, 0, 0, 0, 1)};
  const Terminal terminal{true, false, true, 80, 24};
  in_.str("no\nyes\n");
  const Outcome refused = Run({"study", "delete", "2"}, terminal);
  EXPECT_THAT(refused, Exits(ExitCode::kFailure));
  EXPECT_THAT(refused.err, AllOf(HasSubstr("delete studies/2 b with its runs and points? yes or no: "),
                                 HasSubstr("nothing was deleted")));
  EXPECT_TRUE(server_.deleted.empty());
  EXPECT_THAT(Run({"study", "delete", "2"}, terminal), Exits(ExitCode::kOk));
  in_tty_ = false;  // as in a loop of a script that reads a file
  EXPECT_THAT(Run({"study", "delete", "1"}, terminal), Exits(ExitCode::kOk));
  EXPECT_THAT(Run({"study", "delete", "1-2"}, terminal), Exits(ExitCode::kFailure));
  EXPECT_THAT(server_.deleted, ElementsAre("studies/2", "studies/1"));
}

class Watching : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    server_.looks = {Look(MakeStudy(7, "small", Study::QUEUED, 3, 0, 0)),
                     Look(MakeStudy(7, "small", Study::RUNNING, 2, 1, 0)),
                     Look(MakeStudy(7, "small", Study::RUNNING, 2, 1, 0)),
                     Look(MakeStudy(7, "small", Study::RUNNING, 0, 1, 2))};
    server_.looks[0].set_waiting_reason("the scheduler has no free node");
  }
  void EndWith(Study::State state, int succeeded, int failed) {
    server_.looks.push_back(Look(MakeStudy(7, "small", state, 0, 0, succeeded, failed)));
  }
};

TEST_F(Watching, WithoutATerminalALineIsPrintedAtEachChangeOfTheCounts) {
  EndWith(Study::SUCCEEDED, 3, 0);
  const Outcome watch = Run({"study", "watch", "small"});
  EXPECT_THAT(watch, Exits(ExitCode::kOk));
  EXPECT_EQ(watch.out,
            "studies/7 queued: 0 of 3 runs done, 3 queued; waiting: the scheduler has no free node\n"
            "studies/7 running: 0 of 3 runs done, 1 running, 2 queued\n"
            "studies/7 running: 2 of 3 runs done, 1 running\n"
            "studies/7 succeeded: 3 of 3 runs done\n");
}

TEST_F(Watching, JsonAndCsvAreLinesToo) {
  EndWith(Study::SUCCEEDED, 3, 0);
  std::istringstream lines(Run({"study", "watch", "7", "-o", "json"}).out);
  std::string line;
  int count = 0;
  for (; std::getline(lines, line); ++count)
    EXPECT_EQ(nlohmann::json::parse(line)["study"]["name"], "studies/7");
  EXPECT_EQ(count, 4);
  EXPECT_THAT(
      Run({"study", "watch", "7", "-o", "csv"}).out,
      StartsWith(
          "name,state,queued,running,succeeded,failed,cancelled,skipped\nstudies/7,queued,3,0,0,0,0,0\n"));
}

TEST_F(Watching, OnATerminalTheDisplayIsRedrawnInPlace) {
  EndWith(Study::SUCCEEDED, 3, 0);
  const Outcome watch = Run({"study", "watch", "7"}, Terminal{true, false, true, 80, 24});
  EXPECT_THAT(watch, Exits(ExitCode::kOk));
  EXPECT_THAT(watch.out, HasSubstr("\033[3A\r\033[J"));  // the first display had three lines
  EXPECT_THAT(watch.out, HasSubstr("██████████████████████████████ 3/3 runs\n"));
}

TEST_F(Watching, ARunThatDidNotSucceedMakesItFive) {
  EndWith(Study::FAILED, 2, 1);
  EXPECT_THAT(Run({"study", "watch", "7"}), Exits(ExitCode::kRunsFailed));
  EXPECT_THAT(Run({"study", "wait", "7"}), Exits(ExitCode::kRunsFailed));
}

TEST_F(Watching, ACancelledStudyMakesItFiveToo) {
  EndWith(Study::CANCELLED, 3, 0);
  EXPECT_THAT(Run({"study", "wait", "7"}), Exits(ExitCode::kRunsFailed));
}

TEST_F(Watching, WaitPrintsNoDataAndEndsWithZero) {
  EndWith(Study::SUCCEEDED, 3, 0);
  const Outcome wait = Run({"study", "wait", "7"});
  EXPECT_THAT(wait, Exits(ExitCode::kOk));
  EXPECT_THAT(wait.out, IsEmpty());
}

TEST_F(Watching, ATimeoutIsEightAndSaysHowItStands) {
  server_.watch_stays_open = true;
  const Outcome wait = Run({"study", "wait", "7", "--timeout", "200ms"});
  EXPECT_THAT(wait, Exits(ExitCode::kTimeout));
  EXPECT_THAT(wait.err, AllOf(HasSubstr("2 of 3 runs done"), HasSubstr("the study continues")));
}

TEST_F(Watching, ABrokenStreamIsTakenUpAgainForTheSameStudy) {
  EndWith(Study::SUCCEEDED, 3, 0);
  server_.broken_watches = 2;
  const Outcome wait = Run({"study", "wait", "last"});
  EXPECT_THAT(wait, Exits(ExitCode::kOk));
  EXPECT_THAT(wait.err, HasSubstr("lost the connection to " + socket_));
  // When the client reconnects, "last" could mean another study, so it uses the study's number.
  EXPECT_THAT(server_.watched, ElementsAre("studies/last", "studies/7", "studies/7"));
}

TEST_F(Watching, AQuietStudyIsFollowedAgainAfterTheConnectionIsLost) {
  EndWith(Study::SUCCEEDED, 3, 0);
  server_.broken_watches = 1;
  GlobalOptions options;
  options.server = socket_;
  std::ostringstream out, err;
  const Io io{out, err, {}, {}};
  Session session(options, io);
  constexpr absl::Duration kPatience = absl::Milliseconds(100);
  bool first = true;
  const auto quiet = [&first](const auto&) {
    if (std::exchange(first, false)) absl::SleepFor(2 * kPatience);
  };
  const auto study = FollowStudy(session, "studies/7", quiet, nullptr, kPatience);
  EXPECT_TRUE(study.ok()) << study.status();
  EXPECT_EQ(server_.watched.size(), 2u);
}

TEST_F(Watching, AServerThatOnlyRepeatsItselfAndEndsTheStreamIsNotAskedForever) {
  scalelab::v1::WatchStudyResponse& look = server_.looks.back();
  look.mutable_study()->mutable_spec()->set_study("small");
  look.add_running()->set_train_loss(std::numeric_limits<double>::quiet_NaN());
  GlobalOptions options;
  options.server = socket_;
  options.timeout = absl::Minutes(1);  // ends the test if the client does not stop
  std::ostringstream out, err;
  const Io io{out, err, {}, {}};
  Session session(options, io);
  const auto study = FollowStudy(
      session, "studies/7", [](const auto&) {}, nullptr, absl::Milliseconds(100));
  EXPECT_EQ(study.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(study.status().message()),
              AllOf(HasSubstr(absl::StrCat("the server at ", socket_, " ended the stream ")),
                    HasSubstr("without anything new; read the server's log")));
  EXPECT_LE(server_.watched.size(), 4u) << "the pauses grow: 50 ms, 100 ms, 200 ms";
}

TEST_F(Watching, SubmitAndWatchKeepsStdoutForTheName) {
  EndWith(Study::FAILED, 2, 1);
  const Outcome submit = Run({"study", "submit", StudyFile(), "--watch"});
  EXPECT_THAT(submit, Exits(ExitCode::kRunsFailed));
  EXPECT_EQ(submit.out, "studies/7\n");
  EXPECT_THAT(submit.err, HasSubstr("2 of 3 runs done, 1 running\n"));
}

}  // namespace
}  // namespace scalelab::client
