// Tests the program as the worker starts it, with a specification as input and events and an exit
// status as output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/fakes/image_folder.h"
#include "tests/unit/trainer/trainer_program.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

class Parity : public Trainer, public testing::WithParamInterface<std::string> {};

// Training with the same global batches on 1, 2 and 4 ranks differs only in the order of additions.
TEST_P(Parity, LossesDoNotDependOnTheNumberOfRanks) {
  // Differences are relative to the loss. Each step amplifies the rounding of the steps before it, so the
  // first steps are the most significant. A run on one rank with another memory format, which changes the
  // order of additions, shows the effect of rounding alone. The difference between numbers of ranks may be a
  // few times as large.
  constexpr double kTolerance = 2e-3, kTimesRounding = 2, kFloor = 5e-6;
  const json more = {{"batch_norm", GetParam()}, {"learning_rate", GetParam() == "eval" ? 0.001 : 0.005}};
  const Result one = Run({Spec(1, more)});
  ASSERT_EQ(one.status, 0);
  const std::vector<double> expected = one.Losses();
  ASSERT_EQ(expected.size(), 20u);
  EXPECT_LT(expected.back(), expected.front()) << "it should learn, or the comparison says little";
  json other_format = more;  // "auto" is channels_last on the CPU
  other_format["memory_format"] = "contiguous";
  other_format["max_steps"] = "5";
  const std::vector<double> reordered = Run({Spec(1, other_format)}).Losses();
  ASSERT_EQ(reordered.size(), 5u);
  double rounding = kFloor;
  for (int i = 0; i < 5; ++i) rounding = std::max(rounding, std::abs(reordered[i] / expected[i] - 1));
  for (int ranks : {2, 4}) {
    const Result many = Run({Spec(ranks, more)}, ranks);
    ASSERT_EQ(many.status, 0);
    const std::vector<double> losses = many.Losses();
    ASSERT_EQ(losses.size(), 20u);
    double deviation = 0, early = 0;
    for (int i = 0; i < 20; ++i) {
      deviation = std::max(deviation, std::abs(losses[i] / expected[i] - 1));
      if (i == 4) early = deviation;
    }
    std::printf(
        "batch_norm %s, %d ranks: loss %.4f -> %.4f, largest relative deviation %.2e (first five steps "
        "%.2e, another order of additions on one rank %.2e)\n",
        GetParam().c_str(), ranks, expected.front(), expected.back(), deviation, early, rounding);
    EXPECT_LT(deviation, kTolerance);
    EXPECT_LT(early, kTimesRounding * rounding);
    for (int r = 1; r < ranks; ++r) EXPECT_EQ(many.hash(r), many.hash(0));
    EXPECT_EQ(many.Of(0, "epoch").at(0)["metrics"]["epoch/train_loss"],
              many.Of(1, "epoch").at(0)["metrics"]["epoch/train_loss"]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Parity, testing::Values("eval", "sync"),
                         [](const auto& info) { return info.param; });

TEST_F(Trainer, RepeatsARunBitForBit) {
  const json spec = Spec(1, {{"augment", true}, {"max_steps", "5"}});
  const Result first = Run({spec}), second = Run({spec});
  EXPECT_EQ(first.status, 0);
  EXPECT_EQ(first.Losses(), second.Losses());
  EXPECT_EQ(first.hash(0), second.hash(0));
  EXPECT_NE(first.hash(0), Run({Spec(1, {{"augment", true}, {"max_steps", "5"}, {"seed", "4"}})}).hash(0));
}

TEST_F(Trainer, SavesTheParametersThatItsRanksEndWith) {
  const std::string path = dir_ + "/parameters.safetensors";
  const Result plain = Run({Spec(1, {{"max_steps", "2"}})});
  EXPECT_FALSE(std::filesystem::exists(path)) << "nobody asked";
  const Result run = Run({Spec(2, {{"max_steps", "2"}, {"save_parameters", true}})}, 2);
  ASSERT_EQ(run.status, 0);
  const std::string bytes = ReadAll(path);
  ASSERT_GT(bytes.size(), 269'722u * 4);
  EXPECT_THAT(bytes.substr(8, 200), HasSubstr(R"("conv.weight":{"dtype":"F32","shape":[16,3,3,3])"));
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  ASSERT_EQ(Run({Spec(2, {{"max_steps", "2"}, {"save_parameters", true}})}, 2).status, 0);
  EXPECT_EQ(ReadAll(path), bytes) << "with the same seed";
}

TEST_F(Trainer, PrintsTheParametersItStartsFrom) {
  // Training with a learning rate of 0 and frozen statistics ends with the initial parameters.
  const json spec =
      Spec(1, {{"max_steps", "1"}, {"learning_rate", 0}, {"batch_norm", "eval"}, {"save_parameters", true}});
  ASSERT_EQ(Run({spec}).status, 0);
  const std::string command = "env SCALELAB_SPEC=" + SpecPath(0) + " " TRAINER " --print-initial-parameters";
  ASSERT_EQ(std::system((command + " >" + dir_ + "/initial").c_str()), 0);
  EXPECT_EQ(ReadAll(dir_ + "/initial"), ReadAll(dir_ + "/parameters.safetensors"));
  ASSERT_EQ(
      std::system((TRAINER " --print-initial-parameters " + SpecPath(0) + " >" + dir_ + "/again").c_str()),
      0);
  EXPECT_EQ(ReadAll(dir_ + "/again"), ReadAll(dir_ + "/initial"));
  EXPECT_NE(std::system((command + " >/dev/full 2>" + dir_ + "/err").c_str()), 0);
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("cannot write the parameters"));
}

TEST_F(Trainer, ReportsEveryMetricOfTheProtocol) {
  WriteCifar(60, 37);
  const Result run = Run({Spec(2, {{"dataset", "cifar10"},
                                   {"data_dir", dir_},
                                   {"evaluate", true},
                                   {"train_samples", "0"},
                                   {"epochs", 3},
                                   {"warmup_steps", 1},
                                   {"global_batch", 20},
                                   {"target_accuracy", 0.01},
                                   {"max_steps", "8"}})},
                         2);
  ASSERT_EQ(run.status, 0);
  double of_rank = 0, of_mean = 0;
  for (int r = 0; r < 2; ++r) {
    const auto start = run.Of(r, "start");
    ASSERT_EQ(start.size(), 1u);
    EXPECT_EQ(start[0]["rank"], r);
    EXPECT_EQ(start[0]["world_size"], 2);
    EXPECT_EQ(start[0]["total_steps"], 8);
    EXPECT_NE(start[0].value("device", ""), "") << "runs on different devices are not compared";
    const auto steps = run.Of(r, "step");
    ASSERT_EQ(steps.size(), 8u);
    for (const json& step : steps) {
      const json& m = step["metrics"];
      for (const char* key : {"step/total_s", "step/data_s", "step/forward_s", "step/backward_s",
                              "step/optimizer_s", "step/comm_exposed_s", "comm/bytes", "train/loss"}) {
        EXPECT_TRUE(m.contains(key)) << key;
      }
      EXPECT_EQ(m.contains("train/learning_rate"), r == 0);
      EXPECT_GE(m["comm/bytes"], 269'722 * 4);
      const double parts = m["step/data_s"].get<double>() + m["step/forward_s"].get<double>() +
                           m["step/backward_s"].get<double>() + m["step/comm_exposed_s"].get<double>() +
                           m["step/optimizer_s"].get<double>();
      EXPECT_LE(parts, m["step/total_s"].get<double>());
    }
    const auto epochs = run.Of(r, "epoch");
    ASSERT_EQ(epochs.size(), 3u) << "the last one is cut short by max_steps";
    for (const json& epoch : epochs) {
      for (const char* key : {"epoch/seconds", "epoch/throughput", "epoch/train_loss", "epoch/train_accuracy",
                              "eval/loss", "eval/accuracy", "eval/seconds"}) {
        EXPECT_TRUE(epoch["metrics"].contains(key)) << key;
      }
      EXPECT_EQ(epoch["metrics"]["eval/samples"], 37)
          << "every test sample once, though 37 divides by nothing";
    }
    const auto finish = run.Of(r, "finish");
    ASSERT_EQ(finish.size(), 1u);
    for (const char* key : {"run/throughput",
                            "run/throughput_mean",
                            "run/step_seconds",
                            "run/epoch_seconds",
                            "run/comm_share",
                            "run/peak_memory_bytes",
                            "run/cpu_utilisation",
                            "run/accuracy",
                            "run/train_loss",
                            "run/time_to_accuracy_s",
                            "run/samples_to_accuracy",
                            "run/straggler_skew",
                            "run/steps",
                            "run/seconds",
                            "run/mean_step_s",
                            "run/data_s",
                            "run/comm_exposed_s",
                            "run/comm_total_s",
                            "run/rank_gradient_norm2",
                            "run/mean_gradient_norm2"}) {
      EXPECT_TRUE(finish[0]["metrics"].contains(key)) << key;
    }
    for (const char* key : {"bucket/backward_s", "bucket/0/bytes", "bucket/0/ready_s", "bucket/0/reduce_s"})
      EXPECT_EQ(finish[0]["metrics"].contains(key), r == 0) << key;
    EXPECT_LE(finish[0]["metrics"]["run/comm_total_s"].get<double>(),
              finish[0]["metrics"]["run/mean_step_s"].get<double>());
    of_mean += finish[0]["metrics"]["run/mean_gradient_norm2"].get<double>() / 2;
    of_rank += finish[0]["metrics"]["run/rank_gradient_norm2"].get<double>() / 2;
    EXPECT_EQ(finish[0]["metrics"]["run/steps"], 8);
  }
  EXPECT_GT(of_mean, 0);
  EXPECT_GT(of_rank, of_mean) << "averaging removes noise";
  EXPECT_EQ(run.hash(0), run.hash(1))
      << "with batch_norm \"train\" parameters agree though statistics differ";
  EXPECT_EQ(run.Of(0, "epoch")[2]["metrics"]["eval/loss"], run.Of(1, "epoch")[2]["metrics"]["eval/loss"]);
}

TEST_F(Trainer, EvaluatesTheSameWithAnyNumberOfRanks) {
  WriteCifar(40, 301);  // more than one evaluation batch on one rank
  const json more = {{"dataset", "cifar10"}, {"data_dir", dir_},       {"evaluate", true},
                     {"batch_norm", "eval"}, {"max_steps", "1"},       {"global_batch", 6},
                     {"train_samples", "0"}, {"learning_rate", 0.0001}};
  const Result alone = Run({Spec(1, more)}), together = Run({Spec(3, more)}, 3);
  EXPECT_EQ(alone.status, 0);
  EXPECT_EQ(together.status, 0);
  const json one = alone.Of(0, "epoch").at(0)["metrics"], three = together.Of(2, "epoch").at(0)["metrics"];
  EXPECT_EQ(one["eval/samples"], 301);
  EXPECT_EQ(three["eval/samples"], 301);
  EXPECT_NEAR(three["eval/loss"].get<double>() / one["eval/loss"].get<double>(), 1, 1e-4);
  EXPECT_NEAR(three["eval/accuracy"].get<double>(), one["eval/accuracy"].get<double>(), 2.5 / 301);
}

TEST_F(Trainer, TrainsOnAFolderOfImagesTheSameWayWithAnyNumberOfRanks) {
  MakeImageFolder(dir_ + "/images", 16, 5);
  const json more = {{"dataset", "imagefolder"},
                     {"data_dir", dir_ + "/images"},
                     {"image_size", 40},
                     {"augment", true},
                     {"evaluate", true},
                     {"train_samples", "0"},
                     {"batch_norm", "eval"},
                     {"learning_rate", 0.00001},
                     {"global_batch", 16},
                     {"max_steps", "4"},
                     {"epochs", 2},
                     {"cpus_per_rank", 2}};
  const Result alone = Run({Spec(1, more)}), together = Run({Spec(2, more)}, 2);
  ASSERT_EQ(alone.status, 0);
  ASSERT_EQ(together.status, 0);
  const std::vector<double> one = alone.Losses(), two = together.Losses();
  ASSERT_EQ(one.size(), 4u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two.at(i), one[i], 1e-4 * one[i]) << i;
  EXPECT_EQ(alone.Of(0, "epoch").at(0)["metrics"]["eval/samples"], 15);
}

TEST_F(Trainer, NamesAnImageThatCannotBeDecoded) {
  MakeImageFolder(dir_ + "/images", 4, 1);
  const std::string path = dir_ + "/images/train/ant/2000.png";
  WriteBytes(path, "no image");
  const Result run = Run({Spec(1, {{"dataset", "imagefolder"},
                                   {"data_dir", dir_ + "/images"},
                                   {"image_size", 32},
                                   {"train_samples", "0"},
                                   {"global_batch", 13},
                                   {"max_steps", "2"}})});
  EXPECT_EQ(run.status, 1);
  ASSERT_FALSE(run.events[0].empty());
  const json error = run.events[0].back();
  EXPECT_EQ(error["kind"], "data");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(path + ": this is neither JPEG nor PNG"));
}

TEST_F(Trainer, RefusesImagesThatAreTooSmallForTheModel) {
  const Result run = Run({Spec(1, {{"model", "alexnet"}})});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.Of(0, "error").at(0)["message"].get<std::string>(),
              HasSubstr("model \"alexnet\" needs images of at least 63 x 63 pixels, not 32 x 32"));
}

TEST_F(Trainer, RepeatsDropoutBitForBit) {
  const json more = {
      {"model", "mobilenet_v2"}, {"max_steps", "2"}, {"global_batch", 8}, {"batch_norm", "eval"}};
  const Result first = Run({Spec(2, more)}, 2);
  ASSERT_EQ(first.status, 0);
  EXPECT_EQ(first.hash(0), first.hash(1));
  EXPECT_EQ(first.hash(0), Run({Spec(2, more)}, 2).hash(0));
}

TEST_F(Trainer, SaysWhichDataFileIsShort) {
  WriteCifar(60, 10, 1);
  const Result run = Run({Spec(1, {{"dataset", "cifar10"}, {"data_dir", dir_}})});
  EXPECT_EQ(run.status, 1);
  ASSERT_FALSE(run.events[0].empty());
  const json error = run.events[0].back();
  EXPECT_EQ(error["event"], "error");
  EXPECT_EQ(error["kind"], "data");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("data_batch_1.bin"));
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("data_batch_1.bin"));
}

TEST_F(Trainer, EndsAllRanksWhenOneFails) {
  WriteCifar(60, 10);
  const json good =
      Spec(2, {{"dataset", "cifar10"}, {"data_dir", dir_}, {"epochs", 1000}, {"max_steps", "0"}});
  json bad = good;
  bad["data_dir"] = dir_ + "/nothing-here";
  const Result run = Run({good, bad}, 2);
  EXPECT_NE(run.status, 0);
  EXPECT_EQ(run.Of(1, "error").at(0)["kind"], "data");
  EXPECT_TRUE(run.Of(0, "finish").empty());
}

TEST_F(Trainer, NamesAWrongLauncherAsTheCause) {
  json spec = Spec(2);
  const Result alone = Run({spec});  // WORLD_SIZE=1
  EXPECT_EQ(alone.status, 1);
  EXPECT_EQ(alone.events[0].back()["kind"], "communication");
  EXPECT_THAT(alone.events[0].back()["message"].get<std::string>(), HasSubstr("WORLD_SIZE"));
  // A launcher that sets the environment but starts unconnected processes.
  const std::string command = "env -u OMPI_COMM_WORLD_RANK RANK=0 WORLD_SIZE=2 SCALELAB_SPEC=" + SpecPath(0) +
                              " SCALELAB_EVENTS=" + EventsPath(0) + " " TRAINER " >/dev/null 2>&1";
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_THAT(ReadAll(EventsPath(0)), HasSubstr("each process started alone"));
}

// A run that was meant for a GPU must not be compared with others as if it had used one.
TEST_F(Trainer, ARunWithGpusNeverTrainsOnACpu) {
  const Result run = Run({Spec(1, {{"gpus_per_rank", 1}})});
  if (run.status == 0) GTEST_SKIP() << "a GPU is here";
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.events[0].back()["message"].get<std::string>(), HasSubstr("gpus_per_rank 1 needs a GPU"));
  EXPECT_EQ(Run({Spec(1, {{"gpus_per_rank", 1}, {"device", "cpu"}, {"max_steps", "1"}})}).status, 0);
}

TEST_F(Trainer, RefusesWhatACpuCannotDo) {
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, std::string>>{{"precision", "amp-fp16"},
                                                        {"precision", "tf32"},
                                                        {"device", "cuda"},
                                                        {"backend", "nccl"},
                                                        {"engine", "native/gossip"},
                                                        {"model", "vgg"},
                                                        {"dataset", "mnist"}}) {
    const Result run = Run({Spec(1, {{field, value}})});
    EXPECT_EQ(run.status, 1) << value;
    ASSERT_FALSE(run.events[0].empty()) << value;
    EXPECT_EQ(run.events[0].back()["event"], "error");
    EXPECT_THAT(run.events[0].back()["message"].get<std::string>(), HasSubstr(value));
  }
}

TEST_F(Trainer, TrainsInMixedPrecision) {
  // The long form has images of the usual size.
  json spec = Spec(1, {{"image_size", std::getenv("SCALELAB_LONG_TESTS") != nullptr ? 32 : 16},
                       {"max_steps", "12"},
                       {"learning_rate", 0.02}});
  const std::vector<double> full = Run({spec}).Losses();
  ASSERT_EQ(full.size(), 12u);
  spec["precision"] = "amp-bf16";
  const Result run = Run({spec});
  ASSERT_EQ(run.status, 0);
  const std::vector<double> mixed = run.Losses();
  EXPECT_NE(mixed[0], full[0]);
  EXPECT_NEAR(mixed[0] / full[0], 1, 0.05);
  EXPECT_LT(mixed.back(), mixed.front());
}

TEST_F(Trainer, WritesEventsToStandardOutputForAPersonWithAFile) {
  std::ofstream(SpecPath(0)) << Spec(1, {{"max_steps", "2"}}).dump();
  const std::string out = dir_ + "/out";
  ASSERT_EQ(std::system(("env -u SCALELAB_EVENTS -u RANK " TRAINER " " + SpecPath(0) + " >" + out).c_str()),
            0);
  std::ifstream file(out);
  std::vector<std::string> events;
  for (std::string line; std::getline(file, line);) events.push_back(json::parse(line)["event"]);
  EXPECT_THAT(events, testing::ElementsAre("start", "step", "step", "epoch", "finish"));
}

TEST_F(Trainer, TellsItsVersionsInOneJsonLine) {
  const std::string out = dir_ + "/out";
  ASSERT_EQ(std::system((TRAINER " --version >" + out).c_str()), 0);
  const json version = json::parse(ReadAll(out));
  EXPECT_EQ(version["name"], "scalelab-trainer");
  EXPECT_THAT(version["mpi"].get<std::string>(), HasSubstr("MPI"));
  EXPECT_TRUE(version.contains("libtorch"));
}

TEST_F(Trainer, LinksNeitherGrpcNorProtobuf) {
  const std::string out = dir_ + "/out";
  ASSERT_EQ(std::system(("readelf -d " TRAINER " >" + out).c_str()), 0);
  const std::string needed = ReadAll(out);
  EXPECT_THAT(needed, HasSubstr("libtorch_cpu"));
  EXPECT_THAT(needed, testing::Not(HasSubstr("libgrpc")));
  EXPECT_THAT(needed, testing::Not(HasSubstr("libprotobuf")));
}

// Returns the processes whose environment contains the event files of this test.
int RanksAlive(const std::string& dir) {
  int alive = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string environment = ReadAll(entry.path().string() + "/environ");
    const std::string program = ReadAll(entry.path().string() + "/comm");
    if (environment.find("SCALELAB_EVENTS=" + dir) != std::string::npos &&
        program.starts_with("scalelab-train")) {
      ++alive;
    }
  }
  return alive;
}

TEST_F(Trainer, DoesNotOutliveAKilledLauncher) {
  const std::string command = "exec " + Command({Spec(2, {{"max_steps", "0"}, {"epochs", 100'000}})}, 2);
  const pid_t launcher = fork();
  if (launcher == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto wait_for = [&](auto condition) {
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return condition();
  };
  const bool started = wait_for([&] {
    return ReadAll(EventsPath(0)).find("step/total_s") != std::string::npos &&
           ReadAll(EventsPath(1)).find("step/total_s") != std::string::npos;
  });
  EXPECT_TRUE(started);
  EXPECT_EQ(RanksAlive(dir_), 2);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_TRUE(wait_for([&] { return RanksAlive(dir_) == 0; }));
}

}  // namespace
}  // namespace scalelab::trainer
