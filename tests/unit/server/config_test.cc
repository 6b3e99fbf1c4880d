#include "server/config.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() {
    std::string directory = testing::TempDir() + "config-XXXXXX";
    root_ = mkdtemp(directory.data());
    file_ = root_ + "/scalelabd.yaml";
  }
  ~ConfigTest() override { std::filesystem::remove_all(root_); }

  void WriteFile(const std::string& text) { std::ofstream(file_) << text; }

  static absl::StatusOr<Command> Parse(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"scalelabd", "--worker-program", "/bin/true"});
    std::vector<const char*> argv;
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    return ParseCommand(static_cast<int>(argv.size()), argv.data(), "1.2.3");
  }
  static ServerConfig Config(const std::vector<std::string>& flags) {
    absl::StatusOr<Command> command = Parse(flags);
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? command->config : ServerConfig{};
  }
  static std::string Mistake(const std::vector<std::string>& flags) {
    const absl::Status status = Parse(flags).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  std::string MistakeInFile(const std::string& text) {
    WriteFile(text);
    return Mistake({"--data", "/d", "--config", file_});
  }

  std::string root_, file_;
};

TEST_F(ConfigTest, RequiresOnlyADataDirectory) {
  const ServerConfig config = Config({"--data", "/data/lab/"});
  EXPECT_EQ(config.data_dir, "/data/lab");
  EXPECT_EQ(config.runs_dir, "/data/lab/runs");
  EXPECT_THAT(config.listen, ElementsAre("unix:/data/lab/scalelab.sock"));
  EXPECT_EQ(config.scheduler, "local");
  EXPECT_GE(config.local_slots, 1);
  EXPECT_EQ(config.worker_timeout, absl::Minutes(15));
  EXPECT_EQ(config.log_format, "text");
  EXPECT_EQ(config.log_level, "info");
  EXPECT_FALSE(config.rollback_journal);
  EXPECT_FALSE(config.reflection);
}

TEST_F(ConfigTest, AMissingDataDirectoryIsReported) {
  EXPECT_THAT(Mistake({}), HasSubstr("--data DIR is missing"));
}

TEST_F(ConfigTest, EveryFlagIsApplied) {
  const ServerConfig config = Config({"--data",
                                      "rel",
                                      "--runs=/shared/runs",
                                      "--listen",
                                      "unix:/run/s",
                                      "--listen",
                                      "0.0.0.0:50051",
                                      "--scheduler",
                                      "local",
                                      "--local-slots",
                                      "12",
                                      "--worker-timeout",
                                      "2.5",
                                      "--rollback-journal",
                                      "true",
                                      "--reflection",
                                      "true",
                                      "--log-format",
                                      "json",
                                      "--log-level",
                                      "debug"});
  EXPECT_EQ(config.data_dir, std::filesystem::current_path().string() + "/rel");
  EXPECT_EQ(config.runs_dir, "/shared/runs");
  EXPECT_THAT(config.listen, ElementsAre("unix:/run/s", "0.0.0.0:50051"));
  EXPECT_EQ(config.local_slots, 12);
  EXPECT_EQ(config.worker_timeout, absl::Seconds(2.5));
  EXPECT_TRUE(config.rollback_journal);
  EXPECT_TRUE(config.reflection);
  EXPECT_EQ(config.log_format, "json");
  EXPECT_EQ(config.log_level, "debug");
}

TEST_F(ConfigTest, EveryFlagIsAKeyOfTheFile) {
  WriteFile(
      "data: /d\nruns: /r\nlisten: ['unix:/run/s', 'login1:50051']\nscheduler: local\nlocal_slots: "
      "3\nworker_program: /bin/false\n"
      "worker_server: login1:50051\nsbatch_option: [account=lab, 'comment=x y']\n"
      "worker_timeout: 60\nrollback_journal: true\nreflection: true\nlog_format: json\nlog-level: error\n");
  std::vector<const char*> argv = {"scalelabd", "--config", file_.c_str()};
  const absl::StatusOr<Command> command = ParseCommand(3, argv.data(), "");
  ASSERT_TRUE(command.ok()) << command.status();
  const ServerConfig& config = command->config;
  EXPECT_EQ(config.data_dir, "/d");
  EXPECT_EQ(config.runs_dir, "/r");
  EXPECT_THAT(config.listen, ElementsAre("unix:/run/s", "login1:50051"));
  EXPECT_EQ(config.local_slots, 3);
  EXPECT_EQ(config.worker_program, "/bin/false");
  EXPECT_EQ(config.worker_server, "login1:50051");
  EXPECT_EQ(config.sbatch_options.size(), 2u);
  EXPECT_EQ(config.worker_timeout, absl::Seconds(60));
  EXPECT_TRUE(config.rollback_journal);
  EXPECT_TRUE(config.reflection);
  EXPECT_EQ(config.log_format, "json");
  EXPECT_EQ(config.log_level, "error");
}

TEST_F(ConfigTest, FlagsTakePrecedenceOverTheFile) {
  WriteFile("data: /file\nlocal_slots: 3\nlisten: unix:/file.sock\n");
  const ServerConfig config =
      Config({"--config", file_, "--local-slots", "5", "--listen", "unix:/flag.sock"});
  EXPECT_EQ(config.data_dir, "/file");
  EXPECT_EQ(config.local_slots, 5);
  EXPECT_THAT(config.listen, ElementsAre("unix:/flag.sock"));
}

TEST_F(ConfigTest, AnEmptyFileSetsNothing) {
  WriteFile("");
  EXPECT_EQ(Config({"--data", "/d", "--config", file_}).data_dir, "/d");
  WriteFile("# only a comment\n");
  EXPECT_EQ(Config({"--data", "/d", "--config", file_}).data_dir, "/d");
}

TEST_F(ConfigTest, AnUnknownKeyIsReportedWithItsPlaceAndASimilarName) {
  EXPECT_EQ(MistakeInFile("runs: /r\nlocal_slot: 3\n"),
            file_ + ":2:1: unknown key 'local_slot'; did you mean local_slots?");
  EXPECT_EQ(MistakeInFile("zzzzzzzz: 3\n"), file_ + ":1:1: unknown key 'zzzzzzzz'");
}

TEST_F(ConfigTest, AWrongValueIsReportedWithItsPlace) {
  EXPECT_THAT(MistakeInFile("runs: /r\nlocal_slots: many\n"),
              AllOf(StartsWith(file_ + ":2:14: local_slots: 'many'"), HasSubstr("not a whole number")));
  EXPECT_THAT(MistakeInFile("log_format: xml\n"),
              AllOf(StartsWith(file_ + ":1:13: log_format: 'xml'"), HasSubstr("text, json")));
  EXPECT_THAT(MistakeInFile("data: [/a, /b]\n"),
              AllOf(StartsWith(file_ + ":1:7: data"), HasSubstr("one value")));
  EXPECT_THAT(MistakeInFile("worker_timeout: 0\n"), HasSubstr("seconds from 1"));
  EXPECT_THAT(MistakeInFile("rollback_journal: yes\n"), HasSubstr("not true or false"));
}

TEST_F(ConfigTest, AWrongValueIsReportedEvenWhenAFlagReplacesIt) {
  WriteFile("local_slots: many\n");
  EXPECT_THAT(Mistake({"--data", "/d", "--local-slots", "2", "--config", file_}),
              HasSubstr("local_slots: 'many'"));
}

TEST_F(ConfigTest, ADuplicateKeyIsAnError) {
  EXPECT_EQ(MistakeInFile("runs: /r\nruns: /s\n"),
            file_ + ":2:1: duplicate key \"runs\" (first on line 1); remove one");
}

TEST_F(ConfigTest, AFileThatIsNoMapIsAnError) {
  EXPECT_THAT(MistakeInFile("- a\n- b\n"), AllOf(StartsWith(file_ + ":1:1: "), HasSubstr("key: value")));
  EXPECT_THAT(MistakeInFile("runs: [a\n"), AllOf(StartsWith(file_ + ":"), HasSubstr("invalid YAML")));
}

TEST_F(ConfigTest, AMissingFileIsReported) {
  EXPECT_THAT(Mistake({"--data", "/d", "--config", root_ + "/none.yaml"}),
              HasSubstr(root_ + "/none.yaml cannot be read"));
  EXPECT_THAT(Mistake({"--data", "/d", "--config", root_}), HasSubstr("cannot be read"));
}

TEST_F(ConfigTest, AnUnknownFlagIsReportedWithASimilarName) {
  EXPECT_THAT(Mistake({"--data", "/d", "--lokal-slots", "2"}),
              AllOf(HasSubstr("--lokal-slots"), HasSubstr("did you mean --local-slots?")));
  EXPECT_THAT(Mistake({"--data", "/d", "serve"}), HasSubstr("unexpected argument 'serve'"));
  EXPECT_THAT(Mistake({"--data"}), HasSubstr("--data"));
  EXPECT_THAT(Mistake({"--data", "/a", "--data", "/b"}), HasSubstr("--data is set 2 times"));
  EXPECT_THAT(Mistake({"--data", "/d", "--local-slots", "0"}),
              StartsWith("--local-slots: '0' is not a whole number"));
}

TEST_F(ConfigTest, ASchedulerIsOneOfTwo) {
  EXPECT_THAT(Mistake({"--data", "/d", "--scheduler", "pbs"}), HasSubstr("'pbs' is not one of local, slurm"));
}

TEST_F(ConfigTest, WorkersOfSlurmDialTheFirstReachableAddress) {
  const auto worker_server = [](const std::vector<std::string>& listen) {
    std::vector<std::string> flags = {"--data", "/d", "--scheduler", "slurm"};
    for (const std::string& address : listen) flags.insert(flags.end(), {"--listen", address});
    return Config(flags).worker_server;
  };
  EXPECT_EQ(worker_server({"unix:/run/s", "127.0.0.1:1", "localhost:2", "0.0.0.0:3", "[::]:4", "login1:5"}),
            "login1:5");
  EXPECT_EQ(worker_server({"10.0.0.1:50051", "login1:5"}), "10.0.0.1:50051");
  EXPECT_EQ(Config({"--data", "/d"}).worker_server, "");  // local workers use the socket
}

TEST_F(ConfigTest, AnUnreachableAddressForWorkersOfSlurmIsAnError) {
  for (const char* listen : {"unix:/run/s", "127.0.0.1:50051", "0.0.0.0:50051", "[::1]:50051", "login1:0"}) {
    EXPECT_THAT(Mistake({"--data", "/d", "--scheduler", "slurm", "--listen", listen}),
                AllOf(HasSubstr("--listen HOST:PORT"), HasSubstr("--worker-server HOST:PORT")))
        << listen;
  }
  const ServerConfig config = Config({"--data", "/d", "--scheduler", "slurm", "--listen", "0.0.0.0:50051",
                                      "--worker-server", "login1.cluster:50051"});
  EXPECT_EQ(config.worker_server, "login1.cluster:50051");
  for (const char* wrong : {"unix:/run/s", "login1:0"}) {
    EXPECT_THAT(Mistake({"--data", "/d", "--worker-server", wrong}), StartsWith("--worker-server: '"));
  }
}

TEST_F(ConfigTest, SbatchOptionsOfTheSiteAreChecked) {
  const ServerConfig config = Config({"--data", "/d", "--sbatch-option", "account=lab", "--sbatch-option",
                                      "contiguous", "--sbatch-option", "comment=a=b c"});
  using Option = std::pair<std::string, std::string>;
  EXPECT_THAT(config.sbatch_options,
              ElementsAre(Option("account", "lab"), Option("contiguous", ""), Option("comment", "a=b c")));
  const auto mistake = [](const std::string& option) {
    return Mistake({"--data", "/d", "--sbatch-option", option});
  };
  EXPECT_EQ(mistake("job-name=x"),
            "--sbatch-option: sbatch option 'job-name' cannot be set here: the coordinator identifies its "
            "jobs by their names");
  EXPECT_THAT(mistake("dependency=afterok:1"), HasSubstr("the coordinator sets it"));
  EXPECT_THAT(mistake("job-n=x"), HasSubstr("could be read as 'job-name'"));
  EXPECT_THAT(mistake("-A=x"), HasSubstr("name of a long option"));
  EXPECT_THAT(mistake("comment=a\nb"), HasSubstr("control character"));
  EXPECT_THAT(Mistake({"--data", "/d", "--sbatch-option", "account=a", "--sbatch-option", "account=b"}),
              HasSubstr("'account' is repeated"));
}

TEST_F(ConfigTest, TheFrameworksDirectoryComesFromTheEnvironment) {
  for (const char* name : {"SCALELAB_FRAMEWORKS", "XDG_DATA_HOME"}) unsetenv(name);
  const auto with = [](const char* name, const char* value, const std::vector<std::string>& flags) {
    const char* before = getenv(name);
    const std::string kept = before == nullptr ? "" : before;
    setenv(name, value, 1);
    const std::string directory = Config(flags).frameworks_dir;
    before == nullptr ? unsetenv(name) : setenv(name, kept.c_str(), 1);
    return directory;
  };
  EXPECT_EQ(with("SCALELAB_FRAMEWORKS", "/lab/frameworks", {"--data", "/d"}), "/lab/frameworks");
  EXPECT_EQ(with("XDG_DATA_HOME", "/xdg", {"--data", "/d"}), "/xdg/scalelab/frameworks");
  EXPECT_EQ(with("HOME", "/home/ann", {"--data", "/d"}), "/home/ann/.local/share/scalelab/frameworks");
  EXPECT_EQ(with("SCALELAB_FRAMEWORKS", "/lab", {"--data", "/d", "--frameworks", "/mine"}), "/mine");
}

TEST_F(ConfigTest, EnvironmentsAreReadFromTheFile) {
  WriteFile(
      "environments:\n  pytorch/ddp: {venv: /opt/torch, modules: [gcc/12, cuda/12.4]}\n"
      "  \"tensorflow/*\": {container: /images/tf.sif}\n  mxnet/kvstore: {venv: '', modules: mxnet}\n");
  const auto& environments = Config({"--data", "/d", "--config", file_}).environments;
  ASSERT_EQ(environments.size(), 3u);
  EXPECT_EQ(environments[0].engine, "pytorch/ddp");
  EXPECT_EQ(environments[0].venv, "/opt/torch");
  EXPECT_THAT(environments[0].modules, ElementsAre("gcc/12", "cuda/12.4"));
  EXPECT_EQ(environments[1].engine, "tensorflow/*");
  EXPECT_EQ(environments[1].venv, std::nullopt);
  EXPECT_EQ(environments[1].container, "/images/tf.sif");
  EXPECT_EQ(environments[2].venv, "");
}

TEST_F(ConfigTest, AWrongEnvironmentIsReportedWithItsPlace) {
  const auto mistake = [&](const std::string& yaml) {
    return MistakeInFile("environments:\n  " + yaml + "\n");
  };
  EXPECT_EQ(mistake("pytorch/dpd: {venv: /v}"), file_ +
                                                    ":2:3: environments: 'pytorch/dpd' is not an engine of a "
                                                    "Python framework; did you mean pytorch/ddp?");
  EXPECT_THAT(mistake("native/ddp: {venv: /v}"), HasSubstr("'native/ddp' is not an engine"));
  EXPECT_EQ(mistake("pytorch/ddp: {vnv: /v}"),
            file_ + ":2:17: environments: unknown key 'vnv'; did you mean venv?");
  EXPECT_EQ(mistake("pytorch/ddp: {venv: v}"),
            file_ + ":2:23: environments: venv 'v' must be an absolute path that is visible on every node");
  EXPECT_EQ(
      mistake("pytorch/ddp: {modules: ['a; reboot']}"),
      file_ + ":2:27: environments: 'a; reboot' is not a module name; write the name as for `module load`");
  EXPECT_THAT(mistake("pytorch/ddp: {modules: []}"), HasSubstr("a name or a list of names"));
  EXPECT_THAT(mistake("pytorch/ddp: {container: '--writable'}"), HasSubstr("is not an image"));
  EXPECT_THAT(mistake("pytorch/ddp: /v"), HasSubstr("pytorch/ddp needs venv, modules or container"));
  EXPECT_THAT(mistake("pytorch/ddp: {venv: ''}"), HasSubstr("pytorch/ddp has no Python"));
  EXPECT_THAT(mistake("pytorch/ddp: {venv: /a, venv: /b}"), HasSubstr("duplicate key \"venv\""));
  EXPECT_THAT(mistake("pytorch/ddp: {venv: /a}\n  pytorch/ddp: {venv: /b}"), HasSubstr(":3:3: "));
  EXPECT_THAT(MistakeInFile("environments: [a]\n"), HasSubstr(":1:15: environments: expected engines"));
  EXPECT_THAT(MistakeInFile("environment: {}\n"), HasSubstr("did you mean environments?"));
}

TEST_F(ConfigTest, ADirectoryTooLongForASocketIsAnError) {
  EXPECT_THAT(Mistake({"--data", "/" + std::string(100, 'd')}),
              AllOf(HasSubstr("takes 107"), HasSubstr("--listen unix:PATH"), HasSubstr("--data")));
  EXPECT_EQ(Config({"--data", "/" + std::string(100, 'd'), "--listen", "unix:/run/s"}).listen.front(),
            "unix:/run/s");
}

TEST_F(ConfigTest, AMissingWorkerProgramIsAnError) {
  std::vector<const char*> argv = {"scalelabd", "--data", "/d", "--worker-program", "/no/worker"};
  EXPECT_THAT(ParseCommand(5, argv.data(), "").status().message(), HasSubstr("/no/worker does not exist"));
}

TEST_F(ConfigTest, ABackupNeedsAFileAndTheDirectoryOfAService) {
  const absl::StatusOr<Command> command = Parse({"backup", "/b/today.db", "--data", "/d"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->kind, Command::Kind::kBackup);
  EXPECT_EQ(command->config.data_dir, "/d");
  EXPECT_EQ(command->text, "/b/today.db");
  WriteFile("data: /from-file\n");
  EXPECT_EQ(Parse({"backup", "b.db", "--config", file_})->config.data_dir, "/from-file");
  EXPECT_EQ(Parse({"--data", "/d", "backup", "b.db"})->text,
            std::filesystem::current_path().string() + "/b.db");
  // The command needs neither the worker program nor the socket.
  EXPECT_TRUE(Parse({"backup", "b.db", "--data", "/" + std::string(100, 'd')}).ok());
  EXPECT_THAT(Mistake({"backup", "b.db"}), HasSubstr("--data DIR is missing"));
  EXPECT_THAT(Mistake({"backup", "--data", "/d"}), HasSubstr("FILE is required"));
  EXPECT_THAT(Mistake({"backup", "b.db", "c.db", "--data", "/d"}), HasSubstr("unexpected argument 'c.db'"));
  EXPECT_THAT(Mistake({"backup", "b.db", "--dta", "/d"}), HasSubstr("did you mean --data?"));
}

TEST_F(ConfigTest, HelpVersionAndCheckAreCommands) {
  EXPECT_EQ(Parse({"--version"})->kind, Command::Kind::kPrint);
  EXPECT_EQ(Parse({"--version"})->text, "scalelabd 1.2.3\n");
  EXPECT_THAT(Parse({"--help"})->text,
              AllOf(HasSubstr("--local-slots N"), HasSubstr("--config FILE"), HasSubstr("--check-config")));
  EXPECT_EQ(Parse({"--data", "/d", "--check-config"})->kind, Command::Kind::kCheckConfig);
  EXPECT_EQ(Parse({"--data", "/d"})->kind, Command::Kind::kServe);
}

}  // namespace
}  // namespace scalelab::server
