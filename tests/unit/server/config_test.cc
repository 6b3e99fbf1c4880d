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

TEST_F(ConfigTest, TlsIsConfiguredByFilesOrSwitchedOff) {
  WriteFile(
      "data: /d\nworker_program: /bin/false\ntls_certificate: /c\ntls_key: /k\ntls_authority: /a\n"
      "munge_socket: /m\nproxies: [root]\n");
  const ServerConfig config = Config({"--config", file_});
  EXPECT_EQ(config.tls_certificate, "/c");
  EXPECT_EQ(config.tls_key, "/k");
  EXPECT_EQ(config.tls_authority, "/a");
  EXPECT_EQ(config.munge_socket, "/m");
  EXPECT_THAT(config.proxies, ElementsAre("root"));
  EXPECT_FALSE(config.insecure);
  EXPECT_TRUE(Config({"--data", "/d", "--insecure", "true"}).insecure);
  EXPECT_THAT(Mistake({"--data", "/d", "--tls-key", "/k"}), HasSubstr("belong together"));
  EXPECT_THAT(Mistake({"--data", "/d", "--insecure", "true", "--tls-key", "/k", "--tls-certificate", "/c"}),
              HasSubstr("remove one"));
  EXPECT_THAT(Mistake({"--data", "/d", "--proxies", "no-such-account"}), HasSubstr("no account"));
}

TEST_F(ConfigTest, FlagsTakePrecedenceOverTheFile) {
  WriteFile("data: /file\nlocal_slots: 3\nlisten: unix:/file.sock\n");
  const ServerConfig config =
      Config({"--config", file_, "--local-slots", "5", "--listen", "unix:/flag.sock"});
  EXPECT_EQ(config.data_dir, "/file");
  EXPECT_EQ(config.local_slots, 5);
  EXPECT_THAT(config.listen, ElementsAre("unix:/flag.sock"));
}

TEST_F(ConfigTest, LimitsAndFairShareAreRead) {
  WriteFile(
      "data: /d\nfair_share: {half_life: 12h, weight: gpu}\nlimits:\n  pending_allocations: 2\n  runs: none\n"
      "  partition_pending_allocations: 1\n  overrides:\n    - {user: ann, pending_allocations: 9}\n"
      "    - {partition: gpu, gpu_hours_per_week: 1.5}\n");
  const Policy policy = Config({"--config", file_}).policy;
  EXPECT_EQ(policy.fair_share.half_life, absl::Hours(12));
  EXPECT_EQ(policy.fair_share.weight, FairShare::Weight::kGpus);
  EXPECT_EQ(policy.limits.partition_pending_allocations, 1);
  EXPECT_EQ(policy.limits.For("bob", "").pending_allocations, 2);
  EXPECT_EQ(policy.limits.For("ann", "gpu").pending_allocations, 9);
  EXPECT_EQ(policy.limits.For("ann", "gpu").gpu_hours_per_week, 1.5);
  EXPECT_EQ(policy.limits.For("ann", "").gpu_hours_per_week, LimitSet::kNone);
  WriteFile("data: /d\nfair_share: {half_life: 30d}\n");
  EXPECT_EQ(Config({"--config", file_}).policy.fair_share.half_life, absl::Hours(30 * 24));
}

TEST_F(ConfigTest, MistakesInLimitsAndFairShareNameThePlaceAndTheRemedy) {
  const auto mistake = [&](const std::string& text) { return MistakeInFile("data: /d\n" + text); };
  EXPECT_EQ(mistake("limits: {pending_allocation: 4}\n"),
            file_ + ":2:10: limits: unknown key 'pending_allocation'; did you mean pending_allocations?");
  EXPECT_THAT(
      mistake("limits: {pending_allocations: 0}\n"),
      HasSubstr(
          ":2:31: limits.pending_allocations: '0' is not a whole number from 1 to 1000000000, or none"));
  EXPECT_THAT(mistake("limits: {runs: 1.5}\n"), HasSubstr("limits.runs: '1.5' is not a whole number from 0"));
  EXPECT_THAT(mistake("limits: {gpu_hours_per_week: -1}\n"), HasSubstr("'-1' is not a number from 0"));
  EXPECT_THAT(mistake("limits: {runs: 1, runs: 2}\n"),
              HasSubstr("limits: duplicate key \"runs\"; remove one"));
  EXPECT_THAT(mistake("limits: {overrides: {user: ann}}\n"), HasSubstr("limits.overrides: expected a list"));
  EXPECT_THAT(mistake("limits: {overrides: [{runs: 3}]}\n"),
              HasSubstr("an entry needs user, partition or both"));
  EXPECT_THAT(mistake("limits: {overrides: [{user: [], runs: 3}]}\n"), HasSubstr("user needs a name"));
  EXPECT_THAT(mistake("limits: 4\n"), HasSubstr("limits: expected some of the keys pending_allocations"));
  EXPECT_THAT(mistake("fair_share: {half_life: 5s}\n"),
              HasSubstr("fair_share.half_life: '5s' is not a time from 1m to 3650d, such as 12h or 7d"));
  EXPECT_THAT(mistake("fair_share: {weight: core}\n"),
              HasSubstr("fair_share.weight: 'core' is not one of node, gpu"));
  EXPECT_THAT(mistake("limit: {}\n"), HasSubstr("unknown key 'limit'; did you mean limits?"));
}

TEST_F(ConfigTest, TheOlderNameOfTheLimitOfPendingAllocationsStillWorks) {
  EXPECT_EQ(Config({"--data", "/d"}).policy.limits.For("ann", "").pending_allocations, 4);
  EXPECT_EQ(Config({"--data", "/d", "--pending-jobs-per-user", "7"})
                .policy.limits.For("ann", "")
                .pending_allocations,
            7);
  WriteFile(
      "data: /d\npending_jobs_per_user: 5\nlimits: {runs: 3, overrides: [{user: bob, pending_allocations: "
      "1}]}\n");
  const Limits limits = Config({"--config", file_}).policy.limits;
  EXPECT_EQ(limits.For("ann", "").pending_allocations, 5);
  EXPECT_EQ(limits.For("bob", "").pending_allocations, 1);
  EXPECT_EQ(limits.For("ann", "").runs, 3);
  EXPECT_THAT(MistakeInFile("data: /d\npending_jobs_per_user: 5\nlimits: {pending_allocations: 3}\n"),
              HasSubstr("both are set; remove pending_jobs_per_user"));
}

TEST_F(ConfigTest, KeysThatNeedARestartAreFound) {
  const auto with = [&](const std::string& text) {
    WriteFile("data: /d\n" + text);
    return Config({"--config", file_, "--log-level", "debug"});
  };
  const ServerConfig before = with("runs: /r\nworker_timeout: 60\nlog_level: info\nreflection: true\n");
  EXPECT_THAT(KeysThatNeedRestart(before, before), ElementsAre());
  EXPECT_THAT(
      KeysThatNeedRestart(before, with("runs: /other\nworker_timeout: 90\nlog_level: error\n"
                                       "limits: {runs: 3}\nfair_share: {half_life: 1h}\npoll_interval: 3\n"
                                       "environments: {pytorch/ddp: {venv: /opt/torch}}\n")),
      ElementsAre("environments", "reflection", "runs"));
}

TEST_F(ConfigTest, RolesAndRetentionChangeWithoutARestart) {
  const auto with = [&](const std::string& text) {
    WriteFile("data: /d\n" + text);
    return Config({"--config", file_});
  };
  EXPECT_THAT(KeysThatNeedRestart(with("admins: [ann]\nproxies: [root]\n"),
                                  with("admins: [bob]\nusers: [eve]\nviewers: ['*']\n"
                                       "retention: {points: {older_than: 30d}}\n")),
              ElementsAre("proxies"));
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

TEST_F(ConfigTest, JobsRunAsTheServiceOrAsTheirUsers) {
  EXPECT_EQ(Config({"--data", "/d"}).jobs_run_as, "service");
  const std::vector<std::string> slurm = {"--data", "/d", "--scheduler", "slurm", "--listen", "login1:50051"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), slurm.begin(), slurm.end());
    return more;
  };
  EXPECT_EQ(Config(with({"--jobs-run-as", "user", "--runs", "/shared/runs"})).jobs_run_as, "user");
  EXPECT_THAT(Mistake(with({"--jobs-run-as", "root"})), HasSubstr("'root' is not one of service, user"));
  EXPECT_THAT(Mistake({"--data", "/d", "--jobs-run-as", "user"}), HasSubstr("needs scheduler: slurm"));
  // Users can reach nothing in the data directory.
  const std::vector<std::vector<std::string>> places = {{}, {"--runs", "/d/runs"}};
  for (const std::vector<std::string>& runs : places) {
    std::vector<std::string> flags = with({"--jobs-run-as", "user"});
    flags.insert(flags.end(), runs.begin(), runs.end());
    EXPECT_THAT(Mistake(flags), HasSubstr("outside of /d"));
  }
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
  // The command `backup` needs neither the worker program nor the socket, whose path would be too long here.
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

TEST_F(ConfigTest, ByDefaultOnlyTheOwnAccountConnectsAndEverybodyWhoConnectsIsAUser) {
  const ServerConfig config = Config({"--data", "/d"});
  EXPECT_EQ(config.socket_mode, 0600u);
  EXPECT_THAT(config.admins, testing::IsEmpty());
  EXPECT_THAT(config.users, ElementsAre("*"));
  EXPECT_THAT(config.viewers, testing::IsEmpty());
}

TEST_F(ConfigTest, ReadsRolesAndTheModeOfTheSocket) {
  WriteFile(
      "socket_mode: 0666\nadmins: [ada, \"@labadmins\"]\nusers: \"@lab\"\nviewers: [\"*\"]\nproxies: "
      "www-data\n");
  const ServerConfig config = Config({"--data", "/d", "--config", file_});
  EXPECT_EQ(config.socket_mode, 0666u);
  EXPECT_THAT(config.admins, ElementsAre("ada", "@labadmins"));
  EXPECT_THAT(config.users, ElementsAre("@lab"));
  EXPECT_THAT(config.viewers, ElementsAre("*"));
  EXPECT_THAT(config.proxies, ElementsAre("www-data"));
  EXPECT_THAT(Config({"--data", "/d", "--viewers", "bob"}).users, testing::IsEmpty());
}

TEST_F(ConfigTest, RefusesWrongRolesAndModes) {
  EXPECT_THAT(MistakeInFile("socket_mode: 0777\n"),
              AllOf(HasSubstr(file_ + ":1:14: socket_mode"), HasSubstr("'0777' is not 0600")));
  EXPECT_THAT(MistakeInFile("admins: [ada, \"b c\"]\n"),
              AllOf(HasSubstr(file_ + ":1:15: admins"), HasSubstr("'b c'")));
}

TEST_F(ConfigTest, DoctorGetsAnInvalidConfigurationWithItsMistake) {
  WriteFile("data: /d\nscheduler: slurm\n");
  const absl::StatusOr<Command> command = Parse({"doctor", "--config", file_, "-o", "json", "--job"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->kind, Command::Kind::kDoctor);
  EXPECT_TRUE(command->json);
  EXPECT_TRUE(command->test_job);
  EXPECT_THAT(command->text, HasSubstr("scheduler slurm needs an address"));
  const absl::StatusOr<Command> valid = Parse({"doctor", "--data", "/d"});
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->text, "");
  EXPECT_FALSE(valid->json || valid->test_job);
  EXPECT_THAT(Mistake({"doctor", "--data", "/d", "-o", "xml"}), HasSubstr("'xml' is not one of text, json"));
  EXPECT_THAT(Mistake({"doctor", "--data", "/d", "--as", "ada"}), HasSubstr("needs jobs_run_as: user"));
  const absl::StatusOr<Command> as = Parse({"doctor", "--config", file_, "--as", "ada"});
  ASSERT_TRUE(as.ok()) << as.status();
  EXPECT_EQ(as->job_user, "ada");
}

TEST_F(ConfigTest, EveryKeyOfTheManualIsAccepted) {
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_NE(key.help, "") << key.name;
    EXPECT_NE(key.value, "") << key.name;
    // A map is wrong for every key, so the message shows whether the key is known.
    WriteFile(key.name + ": {a: {b: c}}\n");
    EXPECT_THAT(Mistake({"--data", "/d", "--config", file_}), testing::Not(HasSubstr("unknown key")))
        << key.name;
  }
}

TEST_F(ConfigTest, TheSectionsOfTheFileAreRead) {
  WriteFile(
      "retention: {points: {older_than: 30d}, database: {max_size: 2GiB}}\n"
      "notify: {from: a@b.c}\n"
      "notify_commands: {chat: [/bin/post, x]}\n"
      "metrics: 127.0.0.1:9464\n");
  const ServerConfig config = Config({"--data", "/d", "--config", file_});
  EXPECT_EQ(config.retention.points, absl::Hours(24 * 30));
  EXPECT_EQ(config.retention.database_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.notify.from, "a@b.c");
  EXPECT_THAT(config.notify.commands.at("chat"), ElementsAre("/bin/post", "x"));
  EXPECT_EQ(config.metrics, "127.0.0.1:9464");
}

TEST_F(ConfigTest, TheAddressesOfTheDashboardAreRead) {
  WriteFile("web: 127.0.0.1:8080\nweb_url: https://lab.example.org/scalelab/\n");
  const ServerConfig config = Config({"--data", "/d", "--config", file_});
  EXPECT_EQ(config.web, "127.0.0.1:8080");
  EXPECT_EQ(config.web_url, "https://lab.example.org/scalelab/");
  EXPECT_THAT(MistakeInFile("web: 0.0.0.0:8080\n"),
              HasSubstr("web: '0.0.0.0:8080' is not a loopback address"));
  EXPECT_THAT(MistakeInFile("web_url: lab.example.org\n"), HasSubstr("is not the address of a dashboard"));
}

TEST_F(ConfigTest, MistakesInSectionsNameTheirPlace) {
  EXPECT_THAT(MistakeInFile("retention: {points: {older_than: soon}}\n"),
              HasSubstr(":1:34: retention: 'soon' is not an age"));
  EXPECT_THAT(MistakeInFile("retentoin: {}\n"), HasSubstr("did you mean retention?"));
  EXPECT_THAT(MistakeInFile("metrics: 0.0.0.0:9464\n"),
              HasSubstr("metrics: '0.0.0.0:9464' is not a loopback address"));
}

}  // namespace
}  // namespace scalelab::server
