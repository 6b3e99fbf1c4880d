// Tests messages and exit codes when the client cannot reach the server or the server refuses a call, and the
// parsing of the command line.
#include <sys/stat.h>

#include <chrono>

#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ConnectionTest : public ClientTest {};

TEST_F(ConnectionTest, AMissingServerIsSixAndSaysWhatToDo) {
  for (const std::string& server : {socket_, std::string("127.0.0.1:1")}) {
    const Outcome list = Run({"study", "list", "--server", server});
    EXPECT_THAT(list, Exits(ExitCode::kUnreachable));
    EXPECT_EQ(list.err,
              "scalelab: no scalelab server answers at " + server +
                  ": start one with `scalelabd --data DIR` or point --server/SCALELAB_SERVER at it\n");
    EXPECT_THAT(list.out, IsEmpty());
  }
}

TEST_F(ConnectionTest, EveryCommandThatNeedsAServerSaysSoInTheSameWay) {
  const std::vector<std::vector<std::string>> commands = {{"study", "plan", StudyFile()},
                                                          {"study", "submit", StudyFile()},
                                                          {"study", "show", "1"},
                                                          {"study", "watch"},
                                                          {"study", "wait", "--timeout", "1h"},
                                                          {"study", "cancel", "1"},
                                                          {"study", "delete", "1"},
                                                          {"run", "list", "1"},
                                                          {"run", "show", "1"},
                                                          {"run", "logs", "1"},
                                                          {"run", "metrics", "1"},
                                                          {"run", "cancel", "1"},
                                                          {"curve", "1"},
                                                          {"cluster"}};
  for (const auto& command : commands) {
    EXPECT_THAT(Run(command), Exits(ExitCode::kUnreachable)) << command.front() << " " << command.back();
  }
}

TEST_F(ConnectionTest, ASocketFileThatNobodyListensAtIsSixToo) {
  Start();
  server_.Stop();
  EXPECT_THAT(Run({"cluster"}), Exits(ExitCode::kUnreachable));
}

TEST_F(ConnectionTest, OverTcpTheTokenIsPresented) {
  server_.token = "secret";
  server_.Start("127.0.0.1:0");
  const std::string server = "insecure:127.0.0.1:" + std::to_string(server_.port());
  const std::string token_file = WriteFile("token", "secret\n");
  EXPECT_THAT(Run({"cluster", "--server", server, "--token-file", token_file}), Exits(ExitCode::kOk));
  setenv("SCALELAB_TOKEN_FILE", token_file.c_str(), 1);
  EXPECT_THAT(Run({"cluster", "--server", server}), Exits(ExitCode::kOk));
  setenv("SCALELAB_TOKEN_FILE", WriteFile("wrong", "guess").c_str(), 1);
  const Outcome refused = Run({"cluster", "--server", server});
  EXPECT_THAT(refused, Exits(ExitCode::kNotAllowed));
  EXPECT_THAT(refused.err, HasSubstr("rejects the credentials"));
  EXPECT_THAT(Run({"cluster", "--server", server, "--token-file", dir_ + "/none"}), Exits(ExitCode::kUsage));
  unsetenv("SCALELAB_TOKEN_FILE");
}

TEST_F(ConnectionTest, TheServersRefusalsKeepTheirWords) {
  Start();
  server_.error =
      MakeError(absl::StatusCode::kPermissionDenied, "NOT_OWNER", "only ada may cancel studies/7");
  const Outcome denied = Run({"study", "show", "7"});
  EXPECT_THAT(denied, Exits(ExitCode::kNotAllowed));
  EXPECT_EQ(denied.err, "scalelab: only ada may cancel studies/7\n");
  server_.error = MakeError(absl::StatusCode::kFailedPrecondition, "BUSY", "database: two\nlines");
  EXPECT_EQ(Run({"study", "show", "7"}).err, "scalelab: database: two\nlines\n");
  server_.error = MakeError(absl::StatusCode::kNotFound, "NOT_FOUND", "there is no studies/7");
  EXPECT_THAT(Run({"curve", "7"}), Exits(ExitCode::kFailure));
  server_.error = MakeError(absl::StatusCode::kUnavailable, "DRAINING", "the coordinator is about to stop");
  const Outcome draining = Run({"study", "show", "7"});
  EXPECT_THAT(draining, Exits(ExitCode::kUnreachable));
  EXPECT_THAT(draining.err, HasSubstr("about to stop"));
}

TEST_F(ConnectionTest, ARequestThatTheServerFindsTooLargeIsTheFilesFault) {
  Start();
  server_.error = absl::ResourceExhaustedError("Received message larger than max (5000000 vs. 4194304)");
  const Outcome submit = Run({"study", "submit", StudyFile()});
  EXPECT_THAT(submit, Exits(ExitCode::kUsage));
  EXPECT_THAT(submit.err, HasSubstr("split the study"));
}

TEST_F(ConnectionTest, ACallThatTakesTooLongIsEight) {
  Start();
  server_.watch_stays_open = true;
  EXPECT_THAT(Run({"study", "watch", "7", "--timeout", "0.2"}), Exits(ExitCode::kTimeout));
}

TEST_F(ConnectionTest, TheServerIsFoundByFlagThenEnvironmentThenFileThenHome) {
  Start();
  const std::string nowhere = "unix:" + dir_ + "/nowhere";
  std::filesystem::create_directories(dir_ + "/.config/scalelab");
  const std::string config = WriteFile(".config/scalelab/config", "# ours\nserver: " + socket_ + "\n");
  EXPECT_THAT(RunAsIs({"cluster"}), Exits(ExitCode::kOk));
  setenv("SCALELAB_SERVER", nowhere.c_str(), 1);
  EXPECT_THAT(RunAsIs({"cluster"}), Exits(ExitCode::kUnreachable));
  EXPECT_THAT(RunAsIs({"cluster", "--server", socket_}), Exits(ExitCode::kOk));
  unsetenv("SCALELAB_SERVER");
  WriteFile(".config/scalelab/config", "server = " + nowhere + "\n");
  EXPECT_THAT(RunAsIs({"cluster"}).err, HasSubstr(nowhere));
  WriteFile(".config/scalelab/config", "severs: x\n");
  const Outcome wrong = RunAsIs({"cluster"});
  EXPECT_THAT(wrong, Exits(ExitCode::kUsage));
  EXPECT_THAT(wrong.err, HasSubstr(config + ":1: "));
  std::filesystem::remove(config);
  EXPECT_THAT(RunAsIs({"cluster"}).err, HasSubstr("unix:" + dir_ + "/.local/share/scalelab/scalelab.sock"));
}

TEST_F(ConnectionTest, SettingsOfTheMachineApplyWhereTheUserHasNone) {
  Start();
  std::filesystem::create_directories(dir_ + "/.config/scalelab");
  std::filesystem::create_directories(dir_ + "/etc/scalelab");
  setenv("XDG_CONFIG_DIRS", (dir_ + "/none:" + dir_ + "/etc").c_str(), 1);
  WriteFile("etc/scalelab/config", "server: " + socket_ + "\ntoken_file: /nowhere\n");
  EXPECT_THAT(RunAsIs({"cluster"}), Exits(ExitCode::kOk));
  WriteFile(".config/scalelab/config", "token_file: " + dir_ + "/token\n");
  EXPECT_THAT(RunAsIs({"cluster"}), Exits(ExitCode::kOk)) << "the user's file sets only the token";
  WriteFile(".config/scalelab/config", "server: unix:" + dir_ + "/nowhere\n");
  EXPECT_THAT(RunAsIs({"cluster"}).err, HasSubstr(dir_ + "/nowhere"));
}

TEST(ServerAddress, IsASocketOrHostAndPort) {
  EXPECT_EQ(ParseServerAddress("unix:/a/b").value().socket_path, "/a/b");
  EXPECT_EQ(ParseServerAddress("unix:///a/b").value().target, "unix:/a/b");
  EXPECT_EQ(ParseServerAddress("login.cluster:7070").value().target, "dns:///login.cluster:7070");
  EXPECT_EQ(ParseServerAddress("[::1]:7070").value().target, "dns:///[::1]:7070");
  EXPECT_EQ(ParseServerAddress("insecure:login:7070").value().target, "dns:///login:7070");
  EXPECT_TRUE(ParseServerAddress("login:7070").value().encrypted);
  EXPECT_FALSE(ParseServerAddress("insecure:login:7070").value().encrypted);
  EXPECT_FALSE(ParseServerAddress("unix:/a/b").value().encrypted);
  for (const std::string bad :
       {"", "unix:", "host", "host:", "host:x", "host:0", "host:70000", ":80", "http://h:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseServerAddress(bad).status())) << bad;
  }
  EXPECT_THAT(std::string(ParseServerAddress("unix:/" + std::string(200, 'x')).status().message()),
              HasSubstr("107"));
}

class CommandLine : public ClientTest {};

TEST_F(CommandLine, HelpIsDataAndMistakesAreWords) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"}, {"study", "--help"}, {"run", "logs", "--help"}}) {
    const Outcome help = RunAsIs(arguments);
    EXPECT_THAT(help, Exits(ExitCode::kOk));
    EXPECT_THAT(help.out, HasSubstr("Usage:"));
    EXPECT_THAT(help.err, IsEmpty());
  }
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"study"},
                                             {"curve"},
                                             {"advise", "1", "2"},
                                             {"-o", "xml", "cluster"},
                                             {"cluster", "--timeout", "soon"},
                                             {"cluster", "--timeout", "-1s"},
                                             {"cluster", "--unknown"},
                                             {"study", "show", "a b"},
                                             {"run", "logs", "1", "--rank", "-1"}}) {
    const Outcome wrong = RunAsIs(arguments);
    EXPECT_THAT(wrong, Exits(ExitCode::kUsage));
    EXPECT_THAT(wrong.out, IsEmpty());
    EXPECT_FALSE(wrong.err.empty());
  }
}

TEST_F(CommandLine, AMistypedCommandIsGuessed) {
  EXPECT_THAT(RunAsIs({"export"}).err,
              testing::StrEq("scalelab: unknown command 'export'; did you mean 'study export'?\n"));
  EXPECT_THAT(RunAsIs({"--server", "unix:/none", "study", "zzz"}).err,
              testing::StartsWith("scalelab: unknown command 'zzz'; known: init, keys, "));
  EXPECT_EQ(RunAsIs({"list"}).err,
            "scalelab: unknown command 'list'; did you mean 'study list' or 'run list' or 'token list'?\n");
  EXPECT_THAT(RunAsIs({"-o", "table", "run"}).err,
              testing::StartsWith("scalelab: `scalelab run` needs a command: list, show, "));
  EXPECT_EQ(RunAsIs({"study", "show"}).err,
            "scalelab: STUDY is required; `scalelab study show --help` shows the usage\n");
  EXPECT_EQ(RunAsIs({"stduy", "list"}).err, "scalelab: unknown command 'stduy'; did you mean 'study'?\n");
  EXPECT_THAT(RunAsIs({"study", "submti", "x.yaml"}).err, HasSubstr("did you mean 'submit'?"));
}

TEST_F(CommandLine, GlobalOptionsStandBeforeOrAfterTheCommand) {
  Start();
  EXPECT_THAT(Run({"-o", "json", "cluster"}).out, StartsWith("{"));
  EXPECT_THAT(Run({"cluster", "-o", "json"}).out, StartsWith("{"));
}

TEST_F(CommandLine, CompletionKnowsEveryCommandAndOption) {
  const Outcome bash = RunAsIs({"completion", "bash"});
  EXPECT_THAT(bash.out, AllOf(HasSubstr("\"study submit\") choices="), HasSubstr("--request-id"),
                              HasSubstr("--server")));
  const std::string script = WriteFile("completion.bash", bash.out);
  const std::string check = "bash -c '. " + script +
                            "; COMP_WORDS=(scalelab -o json study su); COMP_CWORD=4; _scalelab; "
                            "[ \"${COMPREPLY[*]}\" = submit ]'";
  EXPECT_EQ(std::system(check.c_str()), 0);
  EXPECT_THAT(RunAsIs({"completion", "fish"}).out, HasSubstr("-a submit"));
  EXPECT_THAT(RunAsIs({"completion", "zsh"}).out, StartsWith("#compdef scalelab\n"));
  EXPECT_THAT(RunAsIs({"completion", "tcsh"}), Exits(ExitCode::kUsage));
}

TEST_F(CommandLine, AFullDiskIsAFailure) {
  Start();
  std::ofstream full("/dev/full");
  std::ostringstream err;
  EXPECT_EQ(RunProgram({"cluster", "--server", socket_}, Io{full, err, {}, {}}),
            static_cast<int>(ExitCode::kFailure));
  EXPECT_THAT(err.str(), HasSubstr("cannot write the output"));
}

TEST_F(CommandLine, AFullDiskEndsTheReadingOfLogsAndMetrics) {
  constexpr int kPieces = 200;
  Start();
  server_.runs.emplace_back().set_name("studies/7/runs/11");
  server_.runs.back().set_state(scalelab::v1::Run::SUCCEEDED);
  server_.runs.back().add_attempts()->set_number(1);
  for (int piece = 0; piece < kPieces; ++piece) {
    server_.log.emplace_back().set_data(std::string(1 << 16, 'x'));
    auto& points = server_.points.emplace_back();
    for (int step = 0; step < 5000; ++step) {
      points.add_step(step);
      points.add_time(step);
      points.add_value(0.5);
    }
  }
  for (std::vector<std::string> command : std::vector<std::vector<std::string>>{
           {"logs"}, {"logs", "--follow"}, {"metrics", "-o", "csv"}, {"metrics", "-o", "json"}}) {
    server_.pieces_sent = 0;
    command.insert(command.begin(), "run");
    command.insert(command.end(), {"11", "--server", socket_});
    std::ofstream full("/dev/full");
    std::ostringstream err;
    EXPECT_EQ(RunProgram(command, Io{full, err, {}, {}}), static_cast<int>(ExitCode::kFailure)) << command[1];
    EXPECT_THAT(err.str(), HasSubstr("cannot write the output")) << command[1];
    EXPECT_LT(server_.pieces_sent.load(), kPieces) << command[1];
  }
}

TEST_F(CommandLine, HelpThatCannotBeWrittenIsAFailure) {
  for (const char* option : {"--help", "--version"}) {
    std::ofstream full("/dev/full");
    std::ostringstream err;
    EXPECT_EQ(RunProgram({option}, Io{full, err, {}, {}}), static_cast<int>(ExitCode::kFailure)) << option;
    EXPECT_THAT(err.str(), HasSubstr("cannot write the output")) << option;
  }
}

}  // namespace
}  // namespace scalelab::client
