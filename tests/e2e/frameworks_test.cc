// Engines with adapters, custom engines, and all their failures: real processes, an environment with this
// machine's Python, and adapters that the tests write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "catalog/engines.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The beginning of every adapter in these tests.
constexpr char kAdapter[] = R"(
import json, os, signal, sys, time
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
directory = os.environ["SCALELAB_ATTEMPT_DIR"]
def tell(event, to=None, **more):
    path = os.environ["SCALELAB_EVENTS"] if to is None else f"{directory}/events-{to}.jsonl"
    with open(path, "a") as events:
        events.write(json.dumps({"time": time.time(), "event": event, **more}) + "\n")
def start(to=None):
    tell("start", to, framework="pytorch", version="1.13.1", world_size=ranks, rank=rank)
def finish(to=None, loss=2.0):
    for step in range(3):
        tell("step", to, epoch=0, step=step, metrics={"train/loss": loss})
    tell("finish", to, metrics={"run/throughput": 100.0}, parameter_hash="ab")
)";

constexpr char kProbe[] = R"(
import json, sys
print(json.dumps({"engine": sys.argv[1], "usable": True, "version": "torch 1.13.1",
                  "versions": {"torch": "1.13.1"}, "reason": "", "fix": ""}))
)";

class FrameworksTest : public testing::Test {
 protected:
  FrameworksTest() {
    std::string pattern = "/tmp/scalelab-e2e-XXXXXX";
    root_ = mkdtemp(pattern.data());
    for (const char* directory : {"bin", "share/scalelab/adapters", "frameworks"})
      std::filesystem::create_directories(absl::StrCat(root_, "/", directory));
    // A real worker with the adapters of this test.
    Script("bin/scalelab-worker", absl::StrCat("exec ", Program("scalelab-worker"), " --adapters ", root_,
                                               "/share/scalelab/adapters --output-limit 1 \"$@\""));
    WriteFile(root_ + "/share/scalelab/adapters/probe.py", kProbe);
    for (const char* environment : {"pytorch", "tensorflow"}) Environment(environment);
    service_ = std::make_unique<Service>(std::vector<std::string>{"--local-slots", "2", "--frameworks",
                                                                  root_ + "/frameworks", "--worker-program",
                                                                  root_ + "/bin/scalelab-worker"});
  }
  ~FrameworksTest() override {
    service_.reset();
    std::filesystem::remove_all(root_);
  }
  void SetUp() override { ASSERT_EQ(service_->Start(), ""); }

  void Script(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(root_, "/", name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    WriteFile(path, absl::StrCat("#!/bin/sh\n", text, "\n"));
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  void Environment(const std::string& name) {
    Script(absl::StrCat("frameworks/", name, "/bin/python"), "exec /usr/bin/python3 \"$@\"");
  }
  void Adapter(const std::string& text, const std::string& script = "pytorch_ddp.py") {
    WriteFile(absl::StrCat(root_, "/share/scalelab/adapters/", script), absl::StrCat(kAdapter, text));
  }
  static std::string Study(const std::string& engine, const std::string& more = "") {
    return absl::StrCat(
        "study: s\nfixed: {model: resnet8, dataset: synthetic, max_steps: 3}\nmatrix:\n  engine: [", engine,
        "]\n  ranks: [2]\nretry: {max: 0}\n", more);
  }
  // Returns the finished run of a study of pytorch/ddp with this adapter.
  nlohmann::json Run(const std::string& adapter) {
    Adapter(adapter);
    const std::string study = service_->Submit(Study("pytorch/ddp"));
    service_->WaitFor(study, 60);
    const auto runs = service_->Runs(study);
    EXPECT_EQ(runs.size(), 1u);
    return runs[0];
  }
  // Expects that the run fails with this cause and that its message contains `words`.
  void Fails(const std::string& adapter, const std::string& cause, const std::vector<std::string>& words) {
    const nlohmann::json run = Run(adapter);
    EXPECT_EQ(run["state"], "FAILED");
    EXPECT_EQ(run["cause"], cause);
    for (const std::string& word : words) EXPECT_THAT(run["message"].get<std::string>(), HasSubstr(word));
    EXPECT_TRUE(Eventually([&] { return service_->Ranks().empty(); }));
  }
  std::string Directory(const nlohmann::json& run) {
    return service_->Attempts(run["name"])[0]["directory"].get<std::string>();
  }

  std::string root_;
  std::unique_ptr<Service> service_;
};

TEST_F(FrameworksTest, TrainsAndTellsWhatItTrainedWith) {
  const nlohmann::json run = Run(
      "assert os.environ['SCALELAB_TRAINER'].endswith('scalelab-trainer'), os.environ\nstart()\nfinish()\n");
  EXPECT_EQ(run["state"], "SUCCEEDED") << run;
  // The file also contains the trainer's version, which may be detected only after such a short
  // run has finished.
  const std::string file = Directory(run) + "/provenance.json";
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(file); }));
  const auto provenance = nlohmann::json::parse(ReadFile(file));
  EXPECT_EQ(provenance["framework"]["versions"]["torch"], "1.13.1");
  EXPECT_EQ(provenance["framework"]["venv"], root_ + "/frameworks/pytorch");
  const Output stored =
      RunProgram({"sqlite3", service_->data() + "/scalelab.db", "select json from provenance"});
  EXPECT_THAT(stored.out,
              AllOf(HasSubstr("\"framework\":\"pytorch 1.13.1\""), HasSubstr("\"environment\":\"pytorch\"")));
}

TEST_F(FrameworksTest, AnEngineThatIsNotInstalledIsRefusedWithTheCommandThatInstallsIt) {
  const std::string file = service_->File("jax.yaml", Study("pytorch/ddp, keras/jax"));
  const std::string reason =
      absl::StrCat("engine keras/jax cannot run here: '", root_,
                   "/frameworks/keras-jax/bin/python' does not exist or is not executable; try "
                   "deploy/frameworks keras-jax");
  for (const char* command : {"submit", "plan"}) {
    const Output output = service_->Run({"study", command, file});
    EXPECT_EQ(output.code, 2) << command;
    EXPECT_THAT(output.err, AllOf(HasSubstr("jax.yaml:4:25"), HasSubstr(reason))) << command;
  }
  const std::string left =
      service_->File("left.yaml", Study("pytorch/ddp, keras/jax", "on_unusable: exclude\n"));
  const auto plan = service_->Json({"study", "plan", left});
  EXPECT_EQ(plan["runs"], 1);
  EXPECT_EQ(plan["unusable"][0], reason);
}

TEST_F(FrameworksTest, EveryEngineIsListedWithWhatItLacks) {
  std::map<std::string, nlohmann::json> engines;
  const nlohmann::json listed = service_->Json({"cluster", "frameworks"});
  for (const auto& framework : listed["frameworks"]) engines[framework["engine"]] = framework;
  EXPECT_EQ(engines.size(), Engines().size());
  EXPECT_EQ(engines["pytorch/ddp"]["usable"], true);
  EXPECT_EQ(engines["pytorch/ddp"]["version"], "torch 1.13.1");
  EXPECT_EQ(engines["custom"]["usable"], true);
  EXPECT_EQ(engines["keras/jax"]["usable"], false);
  EXPECT_EQ(engines["keras/jax"]["fix"], "deploy/frameworks keras-jax");
  EXPECT_EQ(engines["native/ddp"]["usable"], false) << "there is no trainer in the worker's folder";
  const Output table = service_->Run({"cluster", "frameworks"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("pytorch/ddp"), HasSubstr("torch 1.13.1"),
                               HasSubstr("deploy/frameworks mxnet")));
}

TEST_F(FrameworksTest, AnAdapterThatIsMissingOnTheNodeIsToldByTheWorker) {
  const std::string study = service_->Submit(Study("horovod/pytorch"));
  EXPECT_EQ(service_->WaitFor(study, 60), 5);
  const auto run = service_->Runs(study)[0];
  EXPECT_EQ(run["cause"], "LAUNCH_ERROR");
  EXPECT_THAT(run["message"].get<std::string>(), AllOf(HasSubstr("Engine horovod/pytorch cannot run here"),
                                                       HasSubstr("horovod_pytorch.py' does not exist")));
}

TEST_F(FrameworksTest, HorovodsRanksAreStartedByMpirun) {
  Adapter("start()\nassert 'OMPI_COMM_WORLD_RANK' in os.environ\nfinish()\n", "horovod_pytorch.py");
  const std::string study = service_->Submit(Study("horovod/pytorch"));
  EXPECT_EQ(service_->WaitFor(study, 60), 0) << service_->Run({"run", "list", study}).out;
}

TEST_F(FrameworksTest, ParametersAndVariablesOfAStudyReachTheAdapter) {
  constexpr char kChecks[] = R"(
spec = json.load(open(os.environ["SCALELAB_SPEC"]))
assert spec["params"] == {"width": 8, "note": "a b"}, spec
assert spec["env"] == {"TOY_LEVEL": "x=y z"}, spec
assert [os.environ.get(name) for name in ("SCALELAB_PARAM_WIDTH", "SCALELAB_PARAM_NOTE", "TOY_LEVEL")] == ["8", "a b", "x=y z"]
start()
finish()
)";
  Adapter(kChecks);
  Adapter(kChecks, "horovod_pytorch.py");  // its ranks are started by mpirun
  const std::string study = service_->Submit(R"(study: s
fixed: {model: resnet8, dataset: synthetic, max_steps: 3, params: {width: 8, note: a b}, env: {TOY_LEVEL: x=y z}}
matrix: {engine: [pytorch/ddp, horovod/pytorch], ranks: [2]}
retry: {max: 0}
)");
  EXPECT_EQ(service_->WaitFor(study, 60), 0) << service_->Run({"run", "list", study, "-o", "wide"}).out;
  EXPECT_EQ(service_->Runs(study).size(), 2u);
}

TEST_F(FrameworksTest, OneProcessTellsOfEveryReplica) {
  Adapter(
      "assert ranks == int(os.environ['SCALELAB_REPLICAS']) == 2 and os.environ['OMP_NUM_THREADS'] == '2'\n"
      "for replica in range(ranks): start(replica); finish(replica)\n",
      "tensorflow_mirrored.py");
  const std::string study = service_->Submit(Study("tensorflow/mirrored"));
  EXPECT_EQ(service_->WaitFor(study, 60), 0) << service_->Run({"run", "list", study}).out;
}

TEST_F(FrameworksTest, AReplicaThatIsNotToldOfHasNotFinished) {
  Adapter("start()\nfinish()\n", "tensorflow_mirrored.py");
  const std::string study = service_->Submit(Study("tensorflow/mirrored"));
  EXPECT_EQ(service_->WaitFor(study, 60), 5);
  EXPECT_EQ(service_->Runs(study)[0]["cause"], "NO_FINISH");
}

TEST_F(FrameworksTest, AnImportThatFailsIsQuoted) {
  Fails("import no_such_framework\n", "TRAINER_ERROR", {"status 1", "No module named 'no_such_framework'"});
}

TEST_F(FrameworksTest, ARankThatCrashesEndsTheOthers) {
  Fails("start()\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(1000)\n", "RANK_KILLED",
        {"signal 11"});
}

TEST_F(FrameworksTest, ARankThatGivesUpEndsTheOthers) {
  Fails("start()\nif rank == 1: sys.exit('no more')\ntime.sleep(1000)\n", "TRAINER_ERROR",
        {"Rank 1 ended with status 1", "no more"});
}

// The adapter's own timeout ends the first rank. The worker then ends the rank that never joins.
TEST_F(FrameworksTest, ARankThatNeverComesEndsTheAttempt) {
  Fails(
      "start()\nif rank == 1: time.sleep(1000)\n"
      "tell('error', message='rank 1 did not come within 1 s', kind='rendezvous')\nsys.exit(1)\n",
      "TRAINER_ERROR", {"rank 0: rank 1 did not come within 1 s"});
}

TEST_F(FrameworksTest, ALineThatIsNoEventIsCountedAndNothingElse) {
  const nlohmann::json run =
      Run("start()\nopen(os.environ['SCALELAB_EVENTS'], 'a').write('{\"event\":\"step\",\\n')\nfinish()\n");
  EXPECT_EQ(run["state"], "SUCCEEDED") << run;
  EXPECT_EQ(service_->Attempts(run["name"])[0]["malformed_lines"], "2") << "one on each rank";
}

TEST_F(FrameworksTest, SayingNothingIsNoSuccess) { Fails("", "NO_FINISH", {"no finish event of rank 0, 1"}); }

TEST_F(FrameworksTest, ARankWithoutAFinishIsNamed) {
  Fails("start()\nif rank == 0: finish()\n", "NO_FINISH", {"no finish event of rank 1"});
}

TEST_F(FrameworksTest, RanksThatEndWithDifferentParametersHaveFailed) {
  Fails("start()\ntell('finish', metrics={'run/throughput': 1.0}, parameter_hash=str(rank))\n",
        "PARAMETERS_DIFFER", {"did not stay synchronised"});
}

TEST_F(FrameworksTest, ADataSetThatCannotBeReadIsTold) {
  Fails("start()\ntell('error', message='data_batch_1.bin: cut off', kind='data')\nsys.exit(1)\n",
        "TRAINER_ERROR", {"data_batch_1.bin: cut off"});
}

TEST_F(FrameworksTest, MemoryThatRunsOutIsACauseOfItsOwn) {
  Fails(
      "start()\nif rank == 1: tell('error', message='DefaultCPUAllocator: cannot allocate', "
      "kind='out_of_memory')\n"
      "else: time.sleep(1000)\nsys.exit(1)\n",
      "OUT_OF_MEMORY", {"rank 1: DefaultCPUAllocator"});
}

// The limit is 1 MiB here; the default is 64 MiB.
TEST_F(FrameworksTest, OutputPastTheLimitIsCut) {
  const nlohmann::json run =
      Run("start()\nprint('first words')\nfor _ in range(60):\n  os.write(1, b'x' * 999_999 + b'\\n')\n"
          "print('last words')\nfinish()\n");
  EXPECT_EQ(run["state"], "SUCCEEDED") << run;
  for (const int rank : {0, 1}) {
    const std::string file = absl::StrCat(Directory(run), "/rank-", rank, ".out");
    EXPECT_LE(std::filesystem::file_size(file), (1u << 20) + 100) << file;
    EXPECT_THAT(ReadFile(file), HasSubstr("scalelab-worker cut this file here, as it had more than 1 MiB"));
  }
}

TEST_F(FrameworksTest, EnginesOfOneRecipeThatTrainDifferentlyAreMarkedInTheCurve) {
  Adapter("start()\nfinish(loss=2.0)\n", "pytorch_ddp.py");
  Adapter("start()\nfinish(loss=2.0002)\n", "horovod_pytorch.py");
  Adapter("for r in range(ranks): start(r); finish(r, loss=3.0)\n", "tensorflow_mirrored.py");
  const std::string study = service_->Submit(Study("pytorch/ddp, horovod/pytorch, tensorflow/mirrored"));
  ASSERT_EQ(service_->WaitFor(study, 60), 0) << service_->Run({"run", "list", study}).out;
  const std::string svg = service_->dir() + "/curve.svg";
  const auto series = service_->Json({"curve", study, "--svg", svg})["series"];
  ASSERT_EQ(series.size(), 3u);
  EXPECT_FALSE(series[0]["points"][0].contains("training_difference")) << series[0];
  EXPECT_FALSE(series[1]["points"][0].contains("training_difference")) << series[1];
  const std::string sentence =
      "trains differently on 2 ranks: loss at step 0 is 3 where the median of the engines has 2 (band 0.03%)";
  EXPECT_EQ(series[2]["points"][0]["training_difference"]["message"], sentence);
  EXPECT_THAT(service_->Run({"curve", study}).out, AllOf(HasSubstr("differs"), HasSubstr(sentence)));
  EXPECT_THAT(ReadFile(svg), HasSubstr("tensorflow/mirrored (trains differently)"));
}

TEST(CustomExamples, TrainInAShellAndInPlainPython) {
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string examples = SourceFile("deploy/studies/custom/");
  const Output submitted = service.Run({"study", "submit", examples + "custom.yaml"});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  ASSERT_EQ(service.WaitFor("last", 120), 0) << service.Run({"run", "list", "last"}).out;
  const auto runs = service.Runs("last");
  EXPECT_EQ(runs.size(), 8u);
  for (const auto& run : runs) {
    const std::vector<double> losses = Losses(service, run);
    ASSERT_EQ(losses.size(), 40u) << run["name"];
    EXPECT_LT(losses.back(), losses.front() / 2) << "it does not learn";
    EXPECT_EQ(service.Attempts(run["name"])[0].value("malformed_lines", "0"), "0");
  }
  const nlohmann::json curve = service.Json({"curve", "last"});
  EXPECT_EQ(curve["series"].size(), 2u)
      << "one for each command, whatever versions of software the ranks report";
  for (const auto& series : curve["series"]) {
    for (const auto& point : series["points"]) EXPECT_EQ(point["state"], "OK");
  }
}

}  // namespace
}  // namespace scalelab::e2e
