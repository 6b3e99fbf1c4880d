// Tests programs of users with real processes: their parameters, their launchers, and metrics
// from their output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Debian's Python, which has the torch of package python3-torch.
constexpr char kPython[] = "/usr/bin/python3";

TEST(OwnPrograms, HaveParametersThatAreAxesAndFiguresFromTheirOutput) {
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(R"(study: own
fixed:
  engine: custom
  ranks: 1
  params: {layers: 4}
  env: {GREETING: hello world}
  command: [sh, -c, 'echo "$0 $GREETING $SCALELAB_PARAM_LAYERS"; for i in 1 2; do echo "loss=0.$i"; done; echo "speed ${1#0.}" >&2',
            "lr={learning_rate}", "{params.dropout}"]
matrix:
  params: {dropout: [0.1, 0.5]}
baseline: {ranks: 1}
measure:
  extract:
    - {metric: train/loss, regex: 'loss=([0-9.]+)', per: step}
    - {metric: run/throughput, regex: 'speed ([0-9]+)'}
  success: exit_status
)");
  ASSERT_NE(study, "");
  ASSERT_EQ(service.WaitFor(study, 60), 0) << service.Run({"run", "list", study}).out;
  const auto runs = service.Runs(study);
  ASSERT_EQ(runs.size(), 2u);
  for (const auto& run : runs) {
    const double dropout = run["key"]["params.dropout"];
    EXPECT_EQ(run["spec"]["params"]["dropout"], dropout);
    EXPECT_EQ(run["spec"]["params"]["layers"], 4);
    EXPECT_NEAR(run["summary"]["run/throughput"].get<double>(), dropout * 10, 1e-9);
    EXPECT_EQ(service.Run({"run", "logs", run["name"], "--stdout"}).out,
              "lr=0.1 hello world 4\nloss=0.1\nloss=0.2\n");
    EXPECT_THAT(service.Points(run["name"]), testing::Contains(HasSubstr("train/loss")));
    const std::string directory = service.Attempts(run["name"])[0]["directory"];
    EXPECT_EQ(nlohmann::json::parse(ReadFile(directory + "/spec.json"))["params"]["dropout"], dropout);
  }
  EXPECT_EQ(service.Json({"run", "list", study, "--where", "params.dropout=0.5"})["runs"].size(), 1u);
  EXPECT_EQ(
      service.Json({"run", "list", study, "--where", "params.layers=4", "--where", "ranks=1"})["runs"].size(),
      2u);
  EXPECT_THAT(service.Run({"run", "list", study, "--where", "dropout=0.5"}).err,
              HasSubstr("write params.dropout"));
  const auto curve = service.Json({"curve", study});
  ASSERT_EQ(curve["series"].size(), 2u) << "each value of the parameter is a series";
  EXPECT_EQ(curve["series"][0]["key"]["params.dropout"], 0.1);
  EXPECT_THAT(service.Run({"run", "list", study, "-o", "csv"}).out, HasSubstr("params.dropout"));
  EXPECT_THAT(service.Run({"curve", study, "-o", "csv"}).out, HasSubstr("params.dropout"));
}

TEST(OwnPrograms, NativeEnginesRunWithParametersAndVariablesOfAStudy) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(R"(study: native
fixed: {model: resnet8, dataset: synthetic, train_samples: 64, ranks: 1, max_steps: 3, params: {note: a b}, env: {OMP_WAIT_POLICY: passive}}
scaling: {mode: strong, global_batch: 16}
measure: {evaluate: false}
)");
  ASSERT_EQ(service.WaitFor(study, 100), 0) << service.Run({"run", "list", study}).out;
  const auto run = service.Runs(study)[0];
  EXPECT_EQ(run["spec"]["epochs"], 1000000) << "max_steps is the only limit";
  const std::string directory = service.Attempts(run["name"])[0]["directory"];
  const auto launch = nlohmann::json::parse(ReadFile(directory + "/launch.json"));
  const auto& environment = launch["commands"][0]["environment"];
  EXPECT_EQ(environment["OMP_WAIT_POLICY"], "passive");
  EXPECT_EQ(environment["SCALELAB_PARAM_NOTE"], "a b");
  const auto steps = service.Points(run["name"]);
  EXPECT_THAT(steps, testing::Contains(HasSubstr("0,2,"))) << "the third step";
}

TEST(OwnPrograms, AFigureThatIsNotInTheOutputFailsTheRunByName) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(
      "study: none\nfixed: {engine: custom, ranks: 1, command: [echo, nothing]}\n"
      "measure: {extract: [{metric: net/mbps, regex: '([0-9]+) Mbps'}]}\n");
  EXPECT_EQ(service.WaitFor(study, 60), 5);
  const auto runs = service.Runs(study);
  EXPECT_EQ(runs[0]["cause"], "NO_FINISH");
  EXPECT_THAT(runs[0]["message"].get<std::string>(), HasSubstr("metric net/mbps"));
}

TEST(OwnPrograms, ATemplateWithAnUnknownNameIsRefusedWithItsPlace) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string file = service.File(
      "s.yaml", "study: s\nfixed:\n  engine: custom\n  ranks: 1\n  command: [echo, '{learning_rat}']\n");
  const Output refused = service.Run({"study", "submit", file});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("s.yaml:5:"), HasSubstr("did you mean 'learning_rate'?")));
}

// A plain script as in PyTorch's tutorials: it finds its peers through the variables that torchrun sets.
constexpr char kScript[] = R"(import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE",
             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"):
    int(os.environ[name])
assert os.environ["TORCHELASTIC_RUN_ID"]
print("sum", total.item(), flush=True)
dist.destroy_process_group()
)";

// Runs the script with two ranks for each launcher of the list, and checks that they have found each other.
void ExpectRanksMeet(const std::string& python, const std::string& launchers) {
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  service.File("train.py", kScript);
  const std::string study =
      service.Submit(absl::StrCat("study: torch\nfixed: {engine: custom, ranks: 2, command: [", python,
                                  ", ./train.py]}\nmatrix: {launcher: ", launchers,
                                  "}\nretry: {max: 0}\nmeasure: {success: exit_status, extract: [{metric: "
                                  "sum, regex: 'sum ([0-9.]+)'}]}\n"));
  ASSERT_EQ(service.WaitFor(study, 200), 0) << service.Run({"run", "list", study, "-o", "wide"}).out;
  for (const auto& run : service.Runs(study)) {
    EXPECT_THAT(service.Run({"run", "logs", run["name"], "--rank", "1", "--stdout"}).out,
                HasSubstr("sum 3.0"))
        << run["key"];
    const std::string directory = service.Attempts(run["name"])[0]["directory"];
    const auto code = nlohmann::json::parse(ReadFile(directory + "/provenance.json"))["code"];
    EXPECT_EQ(code["files"].back()["path"], service.dir() + "/train.py") << "provenance names the script";
    EXPECT_EQ(code["files"].back()["sha256"].get<std::string>().size(), 64u);
  }
}

TEST(OwnPrograms, PlainPyTorchScriptsFindEachOther) {
  if (RunProgram({kPython, "-c", "import torch.distributed"}).code != 0)
    GTEST_SKIP() << kPython << " has no torch; deploy/setup --frameworks installs it";
  ExpectRanksMeet(kPython, "[plain, mpirun]");
}

TEST(OwnPrograms, TorchrunStartsTheRanksOfAPyTorchScript) {
  // torchrun of Debian 12's PyTorch 1.13 does not work with its Python 3.11.
  const Output found = RunProgram(
      {"sh", "-c", "ls -d ~/.local/share/scalelab/frameworks/pytorch2-*/bin/python 2>/dev/null | head -n 1"});
  const std::string python = found.out.substr(0, found.out.find('\n'));
  if (python.empty()) GTEST_SKIP() << "there is no PyTorch 2; deploy/frameworks pytorch2 installs it";
  ExpectRanksMeet(python, "[torchrun]");
}

TEST(OwnPrograms, TheCodeOfAProgramIsShownWithItsResults) {
  if (RunProgram({"git", "--version"}).code != 0) GTEST_SKIP() << "git is not installed";
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const auto git = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"git", "-C", service.dir(), "-c", "user.name=a", "-c", "user.email=a@b"});
    const Output output = RunProgram(words);
    EXPECT_EQ(output.code, 0) << output.err;
    return output.out.substr(0, output.out.find('\n'));
  };
  service.File("train.sh", "echo speed 1\n");
  git({"init", "-q"});
  git({"add", "train.sh"});
  git({"commit", "-qm", "first"});
  const std::string commit = git({"rev-parse", "HEAD"});
  service.File("train.sh", "echo speed 2\n");
  // The first repeat writes the version that the second one executes. Each waits until git has read its version.
  const std::string study = service.Submit(R"(study: code
fixed:
  engine: custom
  ranks: 1
  command: [sh, -c, 'until [ -s code.diff ]; do sleep 0.01; done; sh "$0" && echo echo speed 3 > "$0"', ./train.sh]
repeats: 2
measure: {success: exit_status, extract: [{metric: run/throughput, regex: 'speed ([0-9]+)'}]}
)");
  ASSERT_EQ(service.WaitFor(study, 60), 0) << service.Run({"run", "list", study, "-o", "wide"}).out;
  const auto runs = service.Runs(study);
  ASSERT_EQ(runs.size(), 2u);
  const std::string script = service.dir() + "/train.sh";
  for (const auto& run : runs) {
    const auto code = service.Attempts(run["name"])[0]["code"];
    ASSERT_TRUE(code.is_object()) << run["name"];
    EXPECT_EQ(code["files"][0]["path"], script);
    EXPECT_EQ(code["files"][0]["sha256"].get<std::string>().size(), 64u);
    EXPECT_EQ(code["git_commit"], commit);
    EXPECT_EQ(code["git_dirty"], true);
    const std::string diff = code["diff_sha256"];
    EXPECT_THAT(RunProgram({"sha256sum", code["diff_path"]}).out, HasSubstr(diff));
    EXPECT_THAT(service.Run({"run", "show", run["name"]}).out,
                AllOf(HasSubstr(commit), HasSubstr(script), HasSubstr(diff)));
  }
  EXPECT_NE(service.Attempts(runs[0]["name"])[0]["code"]["diff_sha256"],
            service.Attempts(runs[1]["name"])[0]["code"]["diff_sha256"]);
  const auto series = service.Json({"curve", study})["series"][0];
  EXPECT_EQ(series["code_versions"].size(), 2u);
  EXPECT_THAT(series["notes"], testing::Contains(HasSubstr("2 versions of the program")));
  EXPECT_THAT(service.Run({"study", "report", study, "-o", "-"}).out,
              AllOf(HasSubstr("<h3>Code</h3>"), HasSubstr(commit)));
  const std::string bundle = service.dir() + "/code.tar";
  ASSERT_EQ(service.Run({"study", "bundle", study, "-o", bundle}).code, 0);
  const Output files = RunProgram({"tar", "tf", bundle});
  EXPECT_THAT(files.out, AllOf(HasSubstr("plan.json"), HasSubstr("code-")));
  EXPECT_THAT(RunProgram({"tar", "xOf", bundle, "--wildcards", "code-*.diff"}).out,
              AllOf(HasSubstr("+echo speed 2"), HasSubstr("+echo speed 3")));
  EXPECT_EQ(service.Run({"verify", bundle}).code, 0);
}

TEST(OwnPrograms, TheShippedNetpipeStudyMeasuresAnMpiBenchmarkThatNobodyChanged) {
  if (RunProgram({"sh", "-c", "command -v NPopenmpi"}).code != 0)
    GTEST_SKIP() << "NPopenmpi is not installed; deploy/setup installs netpipe-openmpi";
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string shipped = ReadFile(SourceFile("deploy/studies/netpipe.yaml"));
  // Change the study: one repeat, without the large messages.
  std::string small = shipped;
  for (const auto& [from, to] : {std::pair("[1024, 1048576]", "[64, 256]"),
                                 {"repeats: 3", "repeats: 1"},
                                 {"ranks: 2", "ranks: 2\n  env: {OMPI_MCA_btl_base_verbose: '5'}"},
                                 {"NPopenmpi, -u", "NPopenmpi, -n, '20', -u"}}) {
    const size_t at = small.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    small.replace(at, strlen(from), to);
  }
  const std::string study = service.Submit(small);
  ASSERT_EQ(service.WaitFor(study, 200), 0) << service.Run({"run", "list", study, "-o", "wide"}).out;
  const auto runs = service.Runs(study);
  ASSERT_EQ(runs.size(), 4u);
  for (const auto& run : runs) {
    EXPECT_GT(run["summary"]["run/throughput"].get<double>(), 0);
    const auto summary = service.Json({"run", "show", run["name"]})["run"]["summary"];
    EXPECT_GT(summary["net/latency_usec"].get<double>(), 0);
    const bool tcp = run["key"]["env.OMPI_MCA_btl"] == "self,tcp";
    EXPECT_THAT(service.Run({"run", "logs", run["name"]}).out,
                HasSubstr(tcp ? "Using tcp btl" : "Using vader btl"))
        << "the variable of the study did not reach Open MPI";
    const auto points = service.Points(run["name"]);
    EXPECT_THAT(points, testing::Contains(AllOf(testing::StartsWith("0,64,"), HasSubstr(",net/mbps,"))))
        << "the step is the size of the message";
  }
}

TEST(TrainerProgram, HelpIsItsUsageAndNotAFailedRun) {
  const Output help = RunProgram({Program("scalelab-trainer"), "--help"});
  EXPECT_EQ(help.code, 0) << help.err;
  EXPECT_THAT(help.out, testing::StartsWith("Usage: scalelab-trainer"));
  EXPECT_EQ(help.err, "");
}

}  // namespace
}  // namespace scalelab::e2e
