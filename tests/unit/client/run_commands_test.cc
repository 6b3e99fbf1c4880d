#include <limits>
#include <nlohmann/json.hpp>

#include "study/values.h"
#include "tests/unit/client/client_fixture.h"
#include "tests/unit/client/golden.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Attempt;
using scalelab::v1::ReadRunLogRequest;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using RunMessage = scalelab::v1::Run;  // the fixture has a function Run

class RunCommands : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    AddRun(11, 1, RunMessage::SUCCEEDED, "");
    AddRun(12, 2, RunMessage::FAILED, "rank 1: CUDA out of memory, \"tried\" 2 GiB");
    AddRun(13, 4, RunMessage::QUEUED, "waits for an allocation\033[31m");
    (*server_.runs[0].mutable_summary())["run/throughput"] = 812.4375;
    server_.runs[0].mutable_spec()->set_engine("native/ddp");
    server_.runs[1].set_cause(Attempt::OUT_OF_MEMORY);
    Attempt* attempt = server_.runs[1].add_attempts();
    attempt->set_number(1);
    attempt->set_state(Attempt::FAILED);
    attempt->set_cause(Attempt::OUT_OF_MEMORY);
    attempt->set_message("rank 1: CUDA out of memory");
    attempt->add_nodes("n1");
    attempt->set_exit_status(1);
    attempt->set_directory("/runs/7/12/x");
  }
  void AddRun(int number, int ranks, RunMessage::State state, const std::string& message) {
    RunMessage run;
    run.set_name("studies/7/runs/" + std::to_string(number));
    (*run.mutable_key()->mutable_fields())["engine"].set_string_value("native/ddp");
    (*run.mutable_key()->mutable_fields())["ranks"].set_number_value(ranks);
    run.set_repeat(0);
    run.set_position(number - 11);
    run.set_state(state);
    run.set_message(message);
    if (state != RunMessage::QUEUED) {
      run.mutable_start_time()->set_seconds(1'795'000'000);
      run.mutable_finish_time()->set_seconds(1'795'000'042);
    }
    server_.runs.push_back(run);
  }
};

TEST_F(RunCommands, ListShowsTheSelectedRunsInTheWantedOrder) {
  const auto numbers = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"run", "list", "7", "-o", "csv"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome list = Run(arguments);
    EXPECT_THAT(list, Exits(ExitCode::kOk));
    std::string found;
    std::istringstream lines(list.out);
    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);)
      found += line.substr(0, line.find(',')).substr(std::string("studies/7/runs/").size()) + " ";
    return found;
  };
  EXPECT_EQ(numbers({}), "11 12 13 ");
  EXPECT_EQ(numbers({"--where", "engine=native/* and ranks>=2"}), "12 13 ");
  EXPECT_EQ(numbers({"--where", "state!=succeeded and ranks<4"}), "12 ");
  EXPECT_EQ(numbers({"--where", "cause=out_of_memory"}), "12 ");
  EXPECT_EQ(numbers({"--where", "cause == out_of_memory"}), "12 ");
  EXPECT_EQ(numbers({"--where", "message=*CUDA*"}), "12 ");
  EXPECT_THAT(Run({"run", "list", "--where", "ranks>=2", "7"}), Exits(ExitCode::kOk));
  EXPECT_EQ(numbers({"--sort", "-ranks"}), "13 12 11 ");
  EXPECT_EQ(numbers({"--sort", "-ranks", "--limit", "1"}), "13 ");
  EXPECT_EQ(numbers({"--sort", "throughput"}), "11 12 13 ");  // runs without a throughput come last
  EXPECT_EQ(numbers({"--sort", "-state"}), "11 13 12 ");
  const double throughputs[] = {3, std::numeric_limits<double>::quiet_NaN(), 1};
  for (size_t i = 0; i < server_.runs.size(); ++i)
    (*server_.runs[i].mutable_summary())["run/throughput"] = throughputs[i];
  EXPECT_EQ(numbers({"--sort", "throughput"}), "13 11 12 ");
  EXPECT_EQ(numbers({"--sort", "-throughput", "--limit", "2"}), "11 13 ");
}

TEST_F(RunCommands, ANumberInAConditionMayBeWrittenInAnyForm) {
  const auto count = [&](const std::string& condition) {
    return nlohmann::json::parse(Run({"run", "list", "7", "-o", "json", "--where", condition}).out)["runs"]
        .size();
  };
  (*server_.runs[0].mutable_key()->mutable_fields())["learning_rate"].set_number_value(1e-5);
  EXPECT_EQ(count("learning_rate=1e-05"), 1u);
  EXPECT_EQ(count("learning_rate=1e-5"), 1u);
  EXPECT_EQ(count("learning_rate=0.00001"), 1u);
  EXPECT_EQ(count("learning_rate=1e-6"), 0u);
  EXPECT_EQ(count("ranks=2.0"), 1u);
  EXPECT_EQ(count("ranks!=2.0"), 2u);
  EXPECT_EQ(count("ranks=?"), 3u);
}

TEST_F(RunCommands, ListShowsARunOnceIfTwoSelectorsMeanItsStudy) {
  const auto list = nlohmann::json::parse(Run({"run", "list", "7,last", "-o", "json"}).out);
  EXPECT_EQ(server_.runs_asked.front().parent(), "studies/7");
  EXPECT_EQ(server_.runs_asked.back().parent(), "studies/last");
  EXPECT_EQ(list["runs"].size(), 3u);
}

TEST_F(RunCommands, AWrongConditionNamesTheFields) {
  const Outcome field = Run({"run", "list", "7", "--where", "colour=red"});
  EXPECT_THAT(field, Exits(ExitCode::kUsage));
  EXPECT_THAT(field.err,
              AllOf(HasSubstr("'colour' is no field"), HasSubstr("engine"), HasSubstr("throughput")));
  EXPECT_THAT(Run({"run", "list", "7", "--where", "ranks>many"}).err,
              HasSubstr("'many' in 'ranks>many' is no number"));
  EXPECT_THAT(Run({"run", "list", "7", "--where", "ranks"}).err, HasSubstr("'ranks' is no condition"));
  const Outcome mixed = Run({"run", "list", "7", "--where", "ranks=<4"});
  EXPECT_THAT(mixed, Exits(ExitCode::kUsage));
  EXPECT_THAT(mixed.err, HasSubstr("the value '<4' in 'ranks=<4' begins with an operator"));
  EXPECT_THAT(Run({"run", "list", "7", "--sort", "colour"}).err, HasSubstr("'colour' is no field"));
}

TEST_F(RunCommands, LogsShowTheLastLines) {
  scalelab::v1::ReadRunLogResponse piece;
  for (const char* data : {"one\ntw", "o\nthree\n", "four"}) {
    piece.set_data(data);
    server_.log.push_back(piece);
  }
  EXPECT_EQ(Run({"run", "logs", "12"}).out, "one\ntwo\nthree\nfour");
  EXPECT_EQ(Run({"run", "logs", "12", "--tail", "2"}).out, "three\nfour");
  EXPECT_EQ(Run({"run", "logs", "12", "--tail", "9"}).out, "one\ntwo\nthree\nfour");
  server_.log.back().set_data("four\n");
  EXPECT_EQ(Run({"run", "logs", "12", "--tail", "2"}).out, "three\nfour\n");
  const auto tail = [this](const std::string& text, const std::string& lines) {
    server_.log.resize(1);
    server_.log[0].set_data(text);
    return Run({"run", "logs", "12", "--tail", lines}).out;
  };
  EXPECT_EQ(tail("\nfoo", "1"), "foo");
  EXPECT_EQ(tail("\nfoo", "2"), "\nfoo");
  EXPECT_EQ(tail("\n\nfoo\n", "1"), "foo\n");
  EXPECT_EQ(tail("\n\n", "1"), "\n");
}

TEST_F(RunCommands, ListShowsAxesStatesAndReasons) {
  const Outcome list = Run({"run", "list", "7"});
  EXPECT_THAT(list, Exits(ExitCode::kOk));
  ExpectGolden("run_list.txt", list.out);
  EXPECT_THAT(list.out, Not(HasSubstr("\033")));  // text from the server must not control the terminal
  EXPECT_EQ(server_.runs_asked.front().parent(), "studies/7");
}

TEST_F(RunCommands, ShowNamesTheCodeOfAProgram) {
  auto& code = *server_.runs[1].mutable_attempts(0)->mutable_code();
  auto& file = *code.add_files();
  file.set_path("/home/ada/train.py");
  file.set_sha256("1111");
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              AllOf(HasSubstr("/home/ada/train.py, SHA-256 1111"), Not(HasSubstr("commit:"))));
  code.set_git_root("/home/ada");
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              AllOf(ContainsRegex("commit: +none"), ContainsRegex("changes since then: +unknown")));
  code.set_git_commit("c0ffee");
  code.set_git_dirty(false);
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              AllOf(ContainsRegex("commit: +c0ffee"), ContainsRegex("changes since then: +none")));
  code.set_git_dirty(true);
  code.set_diff_sha256("2222");
  code.set_diff_path("/runs/7/12/x/code.diff");
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              AllOf(HasSubstr("Code"), HasSubstr("yes, SHA-256 2222, in /runs/7/12/x/code.diff")));
  const auto json = nlohmann::json::parse(Run({"run", "show", "12", "-o", "json"}).out);
  EXPECT_EQ(json["run"]["attempts"][0]["code"]["git_commit"], "c0ffee");
  EXPECT_EQ(json["run"]["attempts"][0]["code"]["git_dirty"], true);
}

TEST_F(RunCommands, ListGathersAllPagesAsJson) {
  const auto json = nlohmann::json::parse(Run({"run", "list", "7", "-o", "json"}).out);
  ASSERT_EQ(json["runs"].size(), 3U);
  EXPECT_EQ(json["runs"][2]["name"], "studies/7/runs/13");
  EXPECT_EQ(json["runs"][0]["repeat"], 0);
  EXPECT_EQ(json["runs"][0]["summary"]["run/throughput"], 812.4375);
}

TEST_F(RunCommands, CsvQuotesWhatNeedsIt) {
  const std::string csv = Run({"run", "list", "7", "-o", "csv"}).out;
  EXPECT_THAT(
      csv,
      StartsWith("name,position,engine,ranks,repeat,state,cause,start_time,finish_time,throughput,message\n"
                 "studies/7/runs/11,0,native/ddp,1,0,succeeded,,2026-11-18T"));
  EXPECT_THAT(csv, HasSubstr(",812.4375,\n"));
  EXPECT_THAT(csv, HasSubstr(",\"rank 1: CUDA out of memory, \"\"tried\"\" 2 GiB\"\n"));
}

TEST_F(RunCommands, ListCanAskForOneState) {
  const Outcome list = Run({"run", "list", "last", "--state", "failed", "-o", "csv"});
  EXPECT_THAT(list.out, AllOf(HasSubstr("runs/12"), Not(HasSubstr("runs/11"))));
  EXPECT_THAT(Run({"run", "list", "7", "--state", "broken"}), Exits(ExitCode::kUsage));
}

TEST_F(RunCommands, ShowTellsOfAttempts) {
  for (const char* selector : {"12", "runs/12", "studies/7/runs/12"}) {
    const Outcome show = Run({"run", "show", selector});
    EXPECT_THAT(show, Exits(ExitCode::kOk));
    EXPECT_THAT(show.out, AllOf(HasSubstr("engine=native/ddp ranks=2"), HasSubstr("Attempts\n"),
                                HasSubstr("/runs/7/12/x")));
  }
  const auto json = nlohmann::json::parse(Run({"run", "show", "12", "-o", "json"}).out);
  EXPECT_EQ(json["run"]["attempts"][0]["exit_status"], 1);
  EXPECT_THAT(Run({"run", "show", "99"}), Exits(ExitCode::kFailure));
  EXPECT_THAT(Run({"run", "show", "seven"}), Exits(ExitCode::kUsage));
}

TEST_F(RunCommands, ShowHasTheThroughputOfARepeatedNoisyAttempt) {
  RunMessage& run = server_.runs[0];
  for (const double throughput : {812.4375, 850.0}) {
    Attempt* attempt = run.add_attempts();
    attempt->set_number(run.attempts_size());
    attempt->set_state(Attempt::SUCCEEDED);
    attempt->set_throughput(throughput);
  }
  EXPECT_THAT(Run({"run", "show", "11"}).out, Not(HasSubstr("Results of attempts")));
  run.mutable_attempts(0)->set_state(Attempt::FAILED);
  run.mutable_attempts(0)->set_cause(Attempt::NOISY);
  run.mutable_attempts(0)->set_epoch_seconds(8.5);
  EXPECT_THAT(Run({"run", "show", "11"}).out,
              ContainsRegex("Results of attempts\n"
                            " *attempt 1 .noisy, not counted.: +812.4 samples/s, 8.500 s an epoch\n"
                            " *attempt 2 .counted.: +850.0 samples/s\n"));
  run.mutable_attempts(1)->set_cause(Attempt::NOISY);
  EXPECT_THAT(Run({"run", "show", "11"}).out, HasSubstr("attempt 2 (noisy, counted):"));
  const auto json = nlohmann::json::parse(Run({"run", "show", "11", "-o", "json"}).out);
  EXPECT_EQ(json["run"]["attempts"][0]["throughput"], 812.4375);
  EXPECT_EQ(json["run"]["attempts"][0]["epoch_seconds"], 8.5);
  EXPECT_FALSE(json["run"]["attempts"][1].contains("epoch_seconds"));
}

TEST_F(RunCommands, ShowNamesTheParametersThatAreNotAtTheirDefaults) {
  auto& spec = *server_.runs[1].mutable_spec();
  SetDefaults(&spec);
  spec.set_engine("native/horovod");
  spec.set_ranks(2);
  spec.set_dataset("synthetic");
  spec.set_epochs(3);
  spec.set_augment(false);
  (*spec.mutable_params()->mutable_fields())["dropout"].set_number_value(0.1);
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              ContainsRegex("parameters: +dataset=synthetic augment=false epochs=3 params.dropout=0.1\n"));
  SetDefaults(&spec);
  spec.clear_params();
  EXPECT_THAT(Run({"run", "show", "12"}).out, Not(HasSubstr("parameters:")));
}

TEST_F(RunCommands, ShowDescribesTheNodesOfTheLastAttempt) {
  EXPECT_THAT(Run({"run", "show", "12"}).out, Not(HasSubstr("Hardware and software")));
  auto* attempt = server_.runs[1].mutable_attempts(0);
  for (const char* model : {"Xeon", "EPYC", "Xeon"}) {
    auto& node = *attempt->add_node_infos();
    node.set_cpu_model(model);
    (*node.mutable_software())["libtorch"] = "1.13.1";
  }
  attempt->clear_nodes();
  for (const char* name : {"n1", "n2", "n3"}) attempt->add_nodes(name);
  EXPECT_THAT(
      Run({"run", "show", "12"}).out,
      ContainsRegex("Hardware and software\n *nodes: +n1, n3\n *CPU: +Xeon\n *software: +libtorch 1.13.1\n"
                    " *nodes: +n2\n *CPU: +EPYC\n"));
}

TEST_F(RunCommands, ShowNamesTheFirstMalformedLine) {
  EXPECT_THAT(Run({"run", "show", "12"}).out, Not(HasSubstr("malformed lines")));
  auto* attempt = server_.runs[1].mutable_attempts(0);
  attempt->set_malformed_lines(3);
  attempt->set_first_malformed_line("rank 1, line 10: is not JSON");
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              ContainsRegex("malformed lines: +3 in attempt [0-9]+; first: rank 1, line 10: is not JSON"));
}

TEST_F(RunCommands, AnExitStatusThatIsNotThereIsNotInventedInJson) {
  server_.runs[1].mutable_attempts(0)->clear_exit_status();
  const auto json = nlohmann::json::parse(Run({"run", "show", "12", "-o", "json"}).out);
  EXPECT_FALSE(json["run"]["attempts"][0].contains("exit_status"));
  EXPECT_EQ(json["run"]["attempts"][0]["malformed_lines"], "0");
}

TEST_F(RunCommands, LogsOfARankThatIsNotThereAreAnError) {
  server_.runs[1].mutable_spec()->set_ranks(2);
  EXPECT_THAT(Run({"run", "logs", "12", "--rank", "1"}), Exits(ExitCode::kOk));
  for (const auto& more : std::vector<std::vector<std::string>>{{}, {"--follow"}}) {
    std::vector<std::string> arguments = {"run", "logs", "12", "--rank", "7"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome logs = Run(arguments);
    EXPECT_THAT(logs, Exits(ExitCode::kUsage));
    EXPECT_THAT(logs.err, HasSubstr("has no rank 7; it has ranks 0 to 1"));
  }
}

TEST_F(RunCommands, ALogWithoutABytePrintsWhoHasWrittenNothing) {
  const Outcome logs = Run({"run", "logs", "12", "--stdout"});
  EXPECT_THAT(logs, Exits(ExitCode::kOk));
  EXPECT_THAT(logs.out, IsEmpty());
  EXPECT_THAT(logs.err, HasSubstr("runs/12 has written nothing to its standard output"));
  EXPECT_THAT(Run({"run", "logs", "12", "--quiet"}).err, IsEmpty());
}

// A reason must not be truncated to "...".
TEST_F(RunCommands, MessagesOfAttemptsAreWrappedAndNotCut) {
  server_.runs[1].mutable_attempts(0)->set_message(
      "before the attempt, other processes used the CPUs 84% of the time (up to 25% is normal); during the "
      "attempt, "
      "other processes used 82% of the CPUs' time (up to 25% is normal)");
  const Outcome shown = Run({"run", "show", "12"}, Terminal{true, false, true, 80, 24});
  EXPECT_THAT(shown, Exits(ExitCode::kOk));
  EXPECT_THAT(shown.out,
              HasSubstr("attempt 1:  before the attempt, other processes used the CPUs 84% of the time\n"
                        "            (up to 25% is normal); during the attempt, other processes used 82%\n"
                        "            of the CPUs' time (up to 25% is normal)\n"));
  EXPECT_THAT(Run({"run", "show", "12"}).out,
              HasSubstr("84% of the time (up to 25% is normal); during the attempt, "))
      << "a file or pipe gets one line";
}

TEST_F(RunCommands, LogsAreTheRanksOwnBytes) {
  for (const std::string& data : {std::string("line 1\n\0raw", 11), std::string("\xff tail")}) {
    server_.log.emplace_back().set_data(data);
  }
  const Outcome logs = Run({"run", "logs", "12", "--rank", "1", "--attempt", "2", "--stderr"});
  EXPECT_THAT(logs, Exits(ExitCode::kOk));
  EXPECT_EQ(logs.out, std::string("line 1\n\0raw\xff tail", 17));
  ASSERT_THAT(server_.logs_asked, SizeIs(1));
  EXPECT_EQ(server_.logs_asked[0].rank(), 1);
  EXPECT_EQ(server_.logs_asked[0].attempt(), 2);
  EXPECT_EQ(server_.logs_asked[0].stream(), ReadRunLogRequest::STDERR);
  EXPECT_THAT(Run({"run", "logs", "12", "--stdout", "--stderr"}), Exits(ExitCode::kUsage));
}

class Metrics : public RunCommands {
 protected:
  void SetUp() override {
    RunCommands::SetUp();
    for (const int rank : {0, 1}) {
      auto& part = server_.points.emplace_back();
      part.set_key("train/loss");
      part.set_rank(rank);
      for (const int step : {0, 1, 2}) {
        part.add_step(step);
        part.add_time(1795000000.25 + step);
        part.add_value(step == 2 ? std::numeric_limits<double>::quiet_NaN() : 1.5 - 0.1 * step);
      }
    }
  }
};

TEST_F(Metrics, CsvHasExactlyTheDocumentedColumnsAndExactNumbers) {
  const Outcome csv =
      Run({"run", "metrics", "12", "--key", "train/loss", "--max-points", "100", "-o", "csv"});
  EXPECT_THAT(csv, Exits(ExitCode::kOk));
  EXPECT_EQ(
      csv.out,
      "rank,step,time,key,value\n"
      "0,0,1795000000.25,train/loss,1.5\n0,1,1795000001.25,train/loss,1.4\n0,2,1795000002.25,train/loss,nan\n"
      "1,0,1795000000.25,train/loss,1.5\n1,1,1795000001.25,train/loss,1.4\n1,2,1795000002.25,train/"
      "loss,nan\n");
  ASSERT_THAT(server_.points_asked, SizeIs(1));
  EXPECT_EQ(server_.points_asked[0].run(), "runs/12");
  EXPECT_EQ(server_.points_asked[0].max_points(), 100);
  EXPECT_FALSE(server_.points_asked[0].has_rank());
}

TEST_F(Metrics, AnErrorIsNotAnEmptyAnswer) {
  server_.error = MakeError(absl::StatusCode::kNotFound, "RUN_NOT_FOUND", "there is no run 99");
  for (const char* format : {"table", "csv", "json"}) {
    const Outcome metrics = Run({"run", "metrics", "99", "-o", format});
    EXPECT_THAT(metrics, Exits(ExitCode::kFailure));
    EXPECT_EQ(metrics.out, "");
  }
  server_.error = absl::OkStatus();
  server_.points.clear();
  EXPECT_EQ(Run({"run", "metrics", "12", "-o", "csv"}).out, "rank,step,time,key,value\n");
  EXPECT_EQ(Run({"run", "metrics", "12", "-o", "json"}).out, "{\"points\":[]}\n");
}

TEST_F(Metrics, RankZeroIsNotAnyRank) {
  Run({"run", "metrics", "12", "--rank", "0"});
  ASSERT_TRUE(server_.points_asked.at(0).has_rank());
  EXPECT_EQ(server_.points_asked[0].rank(), 0);
}

TEST_F(Metrics, TablesSumUpEachSeries) {
  const Outcome table = Run({"run", "metrics", "12"});
  EXPECT_THAT(table.out, HasSubstr("train/loss     0       3          2  1.500   nan  1.400  1.500\n"));
}

TEST_F(Metrics, JsonIsOneDocument) {
  const auto json = nlohmann::json::parse(Run({"run", "metrics", "12", "-o", "json"}).out);
  ASSERT_EQ(json["points"].size(), 2U);
  EXPECT_EQ(json["points"][1]["rank"], 1);
  EXPECT_EQ(json["points"][0]["value"][2], "NaN");
}

TEST_F(RunCommands, CancelTakesRangesAndGoesOnAfterAnError) {
  const Outcome cancel = Run({"run", "cancel", "12-14,11"});
  EXPECT_THAT(cancel, Exits(ExitCode::kFailure));  // there is no run 14
  EXPECT_THAT(server_.cancelled, ElementsAre("runs/12", "runs/13", "runs/11"));
  EXPECT_THAT(cancel.err, HasSubstr("runs/14"));
}

TEST_F(RunCommands, ClusterShowsAllocationsAndWorkers) {
  server_.cluster.set_version("0.1.0");
  server_.cluster.set_scheduler("local");
  server_.cluster.set_slots(2);
  auto* allocation = server_.cluster.add_allocations();
  allocation->set_name("allocations/abc");
  allocation->set_state(scalelab::v1::Allocation::RUNNING);
  allocation->set_study("studies/7");
  server_.cluster.add_workers()->set_node("n1");
  const Outcome cluster = Run({"cluster"});
  EXPECT_THAT(cluster.out,
              AllOf(HasSubstr("scheduler:"), HasSubstr("abc"), HasSubstr("running"), HasSubstr("n1")));
  EXPECT_EQ(nlohmann::json::parse(Run({"cluster", "-o", "json"}).out)["slots"], 2);
  EXPECT_THAT(Run({"version"}).out, AllOf(HasSubstr("scalelab 0"), HasSubstr("scalelabd 0.1.0")));
}

TEST_F(RunCommands, ClusterFrameworksShowsWhatRunsAndWhatTheOthersLack) {
  auto& torch = *server_.frameworks.add_frameworks();
  torch.set_engine("pytorch/ddp");
  torch.set_usable(true);
  torch.set_version("torch 1.13.1");
  auto& jax = *server_.frameworks.add_frameworks();
  jax.set_engine("keras/jax");
  jax.set_reason("cannot import jax");
  jax.set_fix("deploy/frameworks keras-jax");
  const Outcome table = Run({"cluster", "frameworks"});
  EXPECT_THAT(table, Exits(ExitCode::kOk));
  EXPECT_THAT(table.out, ::testing::ContainsRegex("pytorch/ddp +yes +torch 1.13.1"));
  EXPECT_THAT(table.out,
              ::testing::ContainsRegex("keras/jax +no +cannot import jax +deploy/frameworks keras-jax"));
  const auto json = nlohmann::json::parse(Run({"cluster", "frameworks", "-o", "json"}).out);
  EXPECT_EQ(json["frameworks"][1]["usable"], false);
  EXPECT_EQ(json["frameworks"][1]["engine"], "keras/jax");
  EXPECT_THAT(Run({"cluster", "framework"}), Exits(ExitCode::kUsage));
}

TEST_F(RunCommands, ClusterFrameworksWaitsUntilSlowFrameworksHaveStarted) {
  EXPECT_THAT(Run({"cluster", "frameworks"}), Exits(ExitCode::kOk));
  EXPECT_GT(server_.frameworks_limit, std::chrono::minutes(4));
  EXPECT_THAT(Run({"cluster", "frameworks", "--timeout", "90s"}), Exits(ExitCode::kOk));
  EXPECT_LT(server_.frameworks_limit, std::chrono::minutes(2));
}

}  // namespace
}  // namespace scalelab::client
