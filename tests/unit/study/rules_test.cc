#include "study/rules.h"

#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/status.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using testing::ElementsAre;

ExpandedStudy Expand(const v1::StudySpec& spec) {
  absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec);
  EXPECT_TRUE(study.ok()) << study.status() << spec.ShortDebugString();
  return study.ok() ? *std::move(study) : ExpandedStudy{};
}

std::vector<int> Ranks(const ExpandedStudy& study) {
  std::vector<int> ranks;
  for (const Cell& cell : study.cells) ranks.push_back(cell.spec.ranks());
  return ranks;
}

TEST(ExpandStudy, WithoutAMatrixIsOneCell) {
  ExpandedStudy study = Expand(Small());
  ASSERT_EQ(study.cells.size(), 1u);
  EXPECT_TRUE(study.cells[0].key.fields().empty());
  ASSERT_EQ(study.runs.size(), 1u);
  EXPECT_TRUE(study.excluded.empty());
}

TEST(ExpandStudy, EndsSoonAfterItIsStopped) {
  std::string steps;
  for (int i = 1; i <= 10'000; ++i) absl::StrAppend(&steps, steps.empty() ? "" : ", ", i);
  const v1::StudySpec spec =
      Small(absl::StrCat(R"("matrix": [{"key": "max_steps", "values": [)", steps, "]}]"));
  for (const int stop_at : {1, 3, 1'000'000}) {
    int asked = 0;
    const absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec, {}, [&] { return ++asked >= stop_at; });
    if (stop_at > 3) {
      EXPECT_TRUE(study.ok()) << study.status();
      EXPECT_GE(asked, 30) << "at least every 300 cells";
    } else {
      EXPECT_TRUE(absl::IsCancelled(study.status())) << study.status();
      EXPECT_EQ(asked, stop_at);
    }
  }
}

TEST(ExpandStudy, StepsAloneLimitARunWithoutEpochs) {
  const auto epochs = [](const std::string& fixed) {
    return Expand(Small("", "\"ranks\": 1, " + fixed)).cells[0].spec.epochs();
  };
  EXPECT_EQ(epochs(R"("max_steps": 20)"), 1'000'000);
  EXPECT_EQ(epochs(R"("max_steps": 20, "epochs": 1)"), 1);
  EXPECT_EQ(epochs(R"("max_steps": 20, "lr_schedule": "cosine")"), 1) << "the decay refers to epochs";
  EXPECT_EQ(epochs(R"("momentum": 0.8)"), 1);
  const ExpandedStudy study = Expand(Small(R"("matrix": [{"key": "max_steps", "values": [0, 20]}])"));
  EXPECT_EQ(study.cells[0].spec.epochs(), 1);
  EXPECT_EQ(study.cells[1].spec.epochs(), 1'000'000);
}

TEST(ExpandStudy, ARankWithAGpuHasFourCoresUnlessTheStudySetsThem) {
  const auto cores = [](const std::string& more) {
    return Expand(Small(more)).cells.back().spec.cpus_per_rank();
  };
  EXPECT_EQ(cores(R"("resources": {})"), 1);
  EXPECT_EQ(cores(R"("resources": {"gpusPerRank": 1})"), 4);
  EXPECT_EQ(cores(R"("resources": {"gpusPerRank": 1, "cpusPerRank": 2})"), 2);
  EXPECT_EQ(cores(R"("matrix": [{"key": "gpus_per_rank", "values": [0, 1]}])"), 4);
  const ExpandedStudy mixed = Expand(Small(R"("matrix": [{"key": "gpus_per_rank", "values": [1, 0]}])"));
  EXPECT_EQ(mixed.cells[1].spec.cpus_per_rank(), 1);
  EXPECT_EQ(mixed.shape.cpus_per_rank, 4);
}

TEST(ExpandStudy, TheStepThatRecordsAGraphIsNotMeasured) {
  const auto warmup = [](const std::string& fixed) {
    return Expand(Small("", "\"ranks\": 1, " + fixed)).cells[0].spec.warmup_steps();
  };
  EXPECT_EQ(warmup("\"max_steps\": 12"), 3);
  EXPECT_EQ(warmup("\"max_steps\": 12, \"cuda_graph\": true"), 5) << "it is the fifth";
  EXPECT_EQ(warmup("\"max_steps\": 3, \"cuda_graph\": true"), 2) << "something is measured";
}

TEST(ExpandStudy, FillsInEveryDefaultOfARun) {
  v1::RunSpec run = Expand(Small()).cells[0].spec;
  v1::RunSpec expected;
  expected.set_engine("native/ddp");
  expected.set_model("resnet20");
  expected.set_dataset("synthetic");
  expected.set_precision("fp32");
  expected.set_backend("auto");
  expected.set_device("auto");
  expected.set_ranks(1);
  expected.set_epochs(1);
  expected.set_global_batch(128);
  expected.set_batch_per_rank(128);
  expected.set_learning_rate(0.1);
  expected.set_warmup_start_rate(0.1);
  expected.set_lr_schedule("constant");
  expected.set_lr_milestones("");
  expected.set_momentum(0.9);
  expected.set_weight_decay(1e-4);
  expected.set_decay_norm(true);
  expected.set_augment(false);
  expected.set_batch_norm("train");
  expected.set_zero_gamma(false);
  expected.set_warmup_steps(5);
  expected.set_evaluate(true);
  expected.set_checkpoint_every_steps(0);
  expected.set_checkpoint_every_minutes(0);
  expected.set_checkpoint_keep(2);
  expected.set_sequence_length(0);
  expected.set_vocabulary(0);
  expected.set_cpus_per_rank(1);
  expected.set_memory_format("auto");
  expected.set_bucket_cap_mib(25);
  expected.set_accumulation_steps(1);
  expected.set_first_bucket_cap_mib(1);
  expected.set_fusion_threshold_mib(128);
  expected.set_cycle_time_ms(1);
  expected.set_cache_capacity(1024);
  expected.set_gradient_compression("none");
  expected.set_stall_warning_s(60);
  expected.set_last_batch("drop");
  expected.set_all_reduce("library");
  expected.set_comm_timeout_s(600);
  expected.set_powersgd_rank(4);
  expected.set_compression_start_step(0);
  expected.set_top_k_ratio(0.01);
  expected.set_local_steps(8);
  expected.set_local_start_step(0);
  expected.set_slow_momentum(0);
  expected.set_pipeline_stages(0);
  expected.set_pipeline_schedule("1f1b");
  expected.set_tensor_ranks(0);
  expected.set_server_ranks(1);
  expected.set_consistency("sync");
  expected.set_staleness(4);
  expected.set_replicas(2);
  expected.set_compile(false);
  expected.set_launcher("plain");
  expected.set_success("finish");
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(run, expected)) << run.DebugString();
}

TEST(ExpandStudy, TakesEveryKeyIntoTheRun) {
  v1::RunSpec run = Expand(Spec(R"({"study": "s", "fixed": {
      "engine": "custom", "command": ["python3", "train.py"], "model": "vit", "dataset": "mine", "data_dir": "/d",
      "precision": "amp-bf16", "backend": "gloo", "device": "cpu", "ranks": 4, "epochs": 3, "max_steps": 200,
      "global_batch": 64, "learning_rate": 0.2, "lr_schedule": "cosine", "lr_milestones": "1,2.5", "momentum": 0.8, "weight_decay": 0.001,
      "decay_norm": false, "augment": true, "batch_norm": "sync", "zero_gamma": true, "memory_format": "channels_last",
      "bucket_cap_mib": 10, "first_bucket_cap_mib": 2, "accumulation_steps": 4, "find_unused_parameters": true,
      "static_graph": true, "fusion_threshold_mib": 64, "cycle_time_ms": 2.5, "cache_capacity": 10,
      "gradient_compression": "fp16", "autotune": true, "stall_warning_s": 5, "timeline": true,
      "all_reduce": "ring", "cuda_graph": true, "image_size": 64, "classes": 100, "last_batch": "keep",
      "powersgd_rank": 2, "compression_start_step": 10, "top_k_ratio": 0.05, "local_steps": 4,
      "local_start_step": 20, "slow_momentum": 0.5, "save_parameters": true, "train_samples": 1000, "cpus_per_rank": 2, "gpus_per_rank": 1}, "seed": 7,
      "measure": {"warmup_steps": 9, "evaluate": false, "target_accuracy": 0.5}})"))
                        .cells[0]
                        .spec;
  EXPECT_THAT(run.command(), ElementsAre("python3", "train.py"));
  EXPECT_EQ(run.engine(), "custom");
  EXPECT_EQ(run.model(), "vit") << "a program of the user's own has models of its own";
  EXPECT_EQ(run.dataset(), "mine");
  EXPECT_EQ(run.data_dir(), "/d");
  EXPECT_EQ(run.precision(), "amp-bf16");
  EXPECT_EQ(run.backend(), "gloo");
  EXPECT_EQ(run.device(), "cpu");
  EXPECT_EQ(run.ranks(), 4);
  EXPECT_EQ(run.epochs(), 3);
  EXPECT_EQ(run.max_steps(), 200);
  EXPECT_EQ(run.global_batch(), 64);
  EXPECT_EQ(run.batch_per_rank(), 16);
  EXPECT_DOUBLE_EQ(run.learning_rate(), 0.1);
  EXPECT_EQ(run.lr_schedule(), "cosine");
  EXPECT_EQ(run.lr_milestones(), "1,2.5") << "a program of the user's own interprets it";
  EXPECT_DOUBLE_EQ(run.momentum(), 0.8);
  EXPECT_DOUBLE_EQ(run.weight_decay(), 0.001);
  EXPECT_FALSE(run.decay_norm());
  EXPECT_TRUE(run.augment());
  EXPECT_EQ(run.batch_norm(), "sync");
  EXPECT_TRUE(run.zero_gamma());
  EXPECT_EQ(run.memory_format(), "channels_last");
  EXPECT_EQ(run.bucket_cap_mib(), 10);
  EXPECT_EQ(run.first_bucket_cap_mib(), 2);
  EXPECT_EQ(run.accumulation_steps(), 4);
  EXPECT_TRUE(run.find_unused_parameters());
  EXPECT_TRUE(run.static_graph());
  EXPECT_EQ(run.fusion_threshold_mib(), 64);
  EXPECT_DOUBLE_EQ(run.cycle_time_ms(), 2.5);
  EXPECT_EQ(run.cache_capacity(), 10);
  EXPECT_EQ(run.gradient_compression(), "fp16");
  EXPECT_EQ(run.powersgd_rank(), 2);
  EXPECT_EQ(run.compression_start_step(), 10);
  EXPECT_DOUBLE_EQ(run.top_k_ratio(), 0.05);
  EXPECT_EQ(run.local_steps(), 4);
  EXPECT_EQ(run.local_start_step(), 20);
  EXPECT_DOUBLE_EQ(run.slow_momentum(), 0.5);
  EXPECT_TRUE(run.autotune());
  EXPECT_DOUBLE_EQ(run.stall_warning_s(), 5);
  EXPECT_TRUE(run.timeline());
  EXPECT_EQ(run.all_reduce(), "ring");
  EXPECT_TRUE(run.cuda_graph());
  EXPECT_EQ(run.image_size(), 64);
  EXPECT_EQ(run.classes(), 100);
  EXPECT_EQ(run.last_batch(), "keep");
  EXPECT_TRUE(run.save_parameters());
  EXPECT_EQ(run.train_samples(), 1000);
  EXPECT_EQ(run.cpus_per_rank(), 2);
  EXPECT_EQ(run.gpus_per_rank(), 1);
  EXPECT_EQ(run.seed(), 7);
  EXPECT_EQ(run.warmup_steps(), 9);
  EXPECT_FALSE(run.evaluate());
  EXPECT_DOUBLE_EQ(run.target_accuracy(), 0.5);
}

TEST(ExpandStudy, FillsInTheDefaultsOfTheSpecification) {
  v1::StudySpec spec = Expand(Small()).spec;
  EXPECT_EQ(spec.scaling().mode(), v1::Scaling::STRONG);
  EXPECT_EQ(spec.scaling().global_batch(), 128);
  EXPECT_EQ(spec.lr().base(), 0.1);
  EXPECT_EQ(spec.lr().reference_batch(), 128);
  EXPECT_EQ(spec.lr().rule(), v1::LearningRate::LINEAR);
  EXPECT_EQ(spec.repeats(), 1);
  EXPECT_EQ(spec.measure().warmup_steps(), 5);
  EXPECT_TRUE(spec.measure().evaluate());
  EXPECT_EQ(spec.order(), v1::StudySpec::RANDOMIZED);
  EXPECT_EQ(spec.resources().cpus_per_rank(), 1);
  EXPECT_EQ(spec.resources().time_seconds(), 3600);
  EXPECT_EQ(spec.retry().max(), 2);
  EXPECT_THAT(spec.retry().on(),
              ElementsAre("node_fail", "preempted", "worker_lost", "rank_killed", "boot_fail"));
  EXPECT_EQ(spec.allocation(), v1::StudySpec::GROUP);
}

TEST(ExpandStudy, KeepsZeroRetriesApartFromTheDefault) {
  EXPECT_EQ(Expand(Small(R"("retry": {"max": 0})")).spec.retry().max(), 0);
  EXPECT_EQ(Expand(Small(R"("measure": {"warmup_steps": 0})")).cells[0].spec.warmup_steps(), 0);
}

TEST(ExpandStudy, AugmentsCifar10ByDefault) {
  v1::StudySpec spec =
      Spec(R"({"study": "s", "fixed": {"model": "resnet20", "data_dir": "/d", "ranks": 1}})");
  EXPECT_EQ(Expand(spec).cells[0].spec.dataset(), "cifar10");
  EXPECT_TRUE(Expand(spec).cells[0].spec.augment());
}

TEST(ExpandStudy, CrossesAxesWithTheFirstVaryingSlowest) {
  ExpandedStudy study = Expand(Spec(R"({"study": "s", "fixed": {"dataset": "synthetic"}, "matrix": [
      {"key": "model", "values": ["resnet20", "resnet32"]}, {"key": "ranks", "values": [1, 2, 4]}]})"));
  ASSERT_EQ(study.cells.size(), 6u);
  EXPECT_THAT(Ranks(study), ElementsAre(1, 2, 4, 1, 2, 4));
  EXPECT_EQ(study.cells[2].spec.model(), "resnet20");
  EXPECT_EQ(study.cells[3].spec.model(), "resnet32");
  EXPECT_EQ(study.cells[3].key.fields().size(), 2u);
  EXPECT_EQ(study.cells[3].key.fields().at("model").string_value(), "resnet32");
  EXPECT_EQ(study.cells[3].key.fields().at("ranks").number_value(), 1);
}

TEST(ExpandStudy, MovesZippedAxesTogether) {
  ExpandedStudy study = Expand(Spec(R"({"study": "s", "fixed": {"dataset": "synthetic", "model": "resnet20"},
      "matrix": [{"key": "momentum", "values": [0.5, 0.9]}],
      "zip": [{"axes": [{"key": "ranks", "values": [1, 2, 4]}, {"key": "global_batch", "values": [64, 64, 128]}]}]})"));
  ASSERT_EQ(study.cells.size(), 6u);
  EXPECT_THAT(Ranks(study), ElementsAre(1, 2, 4, 1, 2, 4));
  EXPECT_EQ(study.cells[1].spec.global_batch(), 64);
  EXPECT_EQ(study.cells[1].spec.batch_per_rank(), 32);
  EXPECT_EQ(study.cells[2].spec.global_batch(), 128);
  EXPECT_EQ(study.cells[3].spec.momentum(), 0.9);
  EXPECT_EQ(study.cells[5].key.fields().size(), 3u);
}

TEST(ExpandStudy, LeavesOutExcludedCellsAndKeepsThemForTheCurve) {
  ExpandedStudy study = Expand(Spec(R"({"study": "s", "fixed": {"dataset": "synthetic", "model": "resnet20"},
      "matrix": [{"key": "precision", "values": ["fp32", "amp-bf16"]}, {"key": "ranks", "values": [1, 2, 3]}],
      "scaling": {"global_batch": 128},
      "exclude": [{"ranks": 3}, {"precision": "amp-bf16", "ranks": 1}]})"));
  EXPECT_THAT(Ranks(study), ElementsAre(1, 2, 2)) << "3 does not divide 128, but is excluded";
  ASSERT_EQ(study.excluded.size(), 3u);
  EXPECT_EQ(study.excluded[1].spec.precision(), "amp-bf16");
  EXPECT_EQ(study.excluded[1].spec.ranks(), 1);
}

TEST(ExpandStudy, ExcludesByFixedAndDefaultValuesToo) {
  ExpandedStudy study = Expand(Small(R"("matrix": [{"key": "ranks", "values": [1, 2]}],
      "exclude": [{"precision": "fp32", "model": "resnet20", "epochs": 1, "decay_norm": true, "ranks": 2}])",
                                     R"("momentum": 0.5)"));
  EXPECT_THAT(Ranks(study), ElementsAre(1));
}

TEST(ExpandStudy, StrongScalingKeepsTheGlobalBatch) {
  ExpandedStudy study = Expand(Small(R"("matrix": [{"key": "ranks", "values": [1, 4]}],
      "scaling": {"mode": "STRONG", "global_batch": 256}, "lr": {"base": 0.1, "reference_batch": 128})",
                                     R"("epochs": 1)"));
  for (const Cell& cell : study.cells) {
    EXPECT_EQ(cell.spec.global_batch(), 256);
    EXPECT_EQ(cell.spec.batch_per_rank(), 256 / cell.spec.ranks());
    EXPECT_NEAR(cell.spec.learning_rate(), 0.2, 1e-12);
  }
}

TEST(ExpandStudy, WeakScalingKeepsTheBatchOfARank) {
  ExpandedStudy study = Expand(Small(R"("matrix": [{"key": "ranks", "values": [1, 3, 8]}],
      "scaling": {"mode": "WEAK", "batch_per_rank": 64}, "lr": {"base": 0.1, "reference_batch": 64})",
                                     R"("epochs": 1)"));
  EXPECT_EQ(study.cells[1].spec.global_batch(), 192);
  EXPECT_EQ(study.cells[1].spec.batch_per_rank(), 64);
  EXPECT_NEAR(study.cells[1].spec.learning_rate(), 0.3, 1e-12);
  EXPECT_NEAR(study.cells[2].spec.learning_rate(), 0.8, 1e-12);
  EXPECT_EQ(Expand(Small(R"("scaling": {"mode": "WEAK"})")).cells[0].spec.batch_per_rank(), 128);
}

TEST(ExpandStudy, TheRateFollowsItsRule) {
  auto rate = [](const std::string& rule) {
    return Expand(
               Small(
                   R"("scaling": {"global_batch": 512}, "lr": {"base": 0.1, "reference_batch": 128, "rule": ")" +
                   rule + "\"}"))
        .cells[0]
        .spec.learning_rate();
  };
  EXPECT_NEAR(rate("LINEAR"), 0.4, 1e-12);
  EXPECT_NEAR(rate("SQRT"), 0.2, 1e-12);
  EXPECT_NEAR(rate("CONSTANT"), 0.1, 1e-12);
}

TEST(ExpandStudy, WarmUpStartsAtATenthOfTheBaseOrAtTheTarget) {
  v1::RunSpec run = Expand(Small(R"("scaling": {"global_batch": 256},
      "lr": {"base": 0.1, "reference_batch": 128, "warmup_epochs": 1.5})"))
                        .cells[0]
                        .spec;
  EXPECT_DOUBLE_EQ(run.warmup_start_rate(), 0.01);
  EXPECT_DOUBLE_EQ(run.warmup_epochs(), 1.5);
  run =
      Expand(
          Small(
              R"("scaling": {"global_batch": 2}, "lr": {"base": 1, "reference_batch": 100, "warmup_epochs": 1})"))
          .cells[0]
          .spec;
  EXPECT_DOUBLE_EQ(run.learning_rate(), 0.02);
  EXPECT_DOUBLE_EQ(run.warmup_start_rate(), 0.02);
}

TEST(ExpandStudy, LearningRateCanBeAnAxis) {
  ExpandedStudy study = Expand(Small(R"("matrix": [{"key": "learning_rate", "values": [0.1, 0.2]}],
      "scaling": {"global_batch": 256})"));
  EXPECT_NEAR(study.cells[1].spec.learning_rate(), 0.4, 1e-12);
  EXPECT_EQ(study.cells[1].key.fields().at("learning_rate").number_value(), 0.2);
}

TEST(ExpandStudy, ShortRunsWarmUpForAQuarterAtMost) {
  EXPECT_EQ(Expand(Small("", R"("ranks": 1, "max_steps": 8)")).cells[0].spec.warmup_steps(), 2);
  EXPECT_EQ(Expand(Small("", R"("ranks": 1, "max_steps": 3)")).cells[0].spec.warmup_steps(), 0);
  EXPECT_EQ(Expand(Small("", R"("ranks": 1, "max_steps": 1000)")).cells[0].spec.warmup_steps(), 5);
  EXPECT_EQ(
      Expand(Small("", R"("ranks": 1, "train_samples": 1024, "epochs": 2)")).cells[0].spec.warmup_steps(), 4)
      << "16 steps of 128 samples";
  EXPECT_EQ(Expand(Small(R"("measure": {"warmup_steps": 6})", R"("ranks": 1, "max_steps": 8)"))
                .cells[0]
                .spec.warmup_steps(),
            6)
      << "what is written counts";
}

TEST(ExpandStudy, EveryBlockHoldsEveryCellOnce) {
  ExpandedStudy study = Expand(Spec(R"({"study": "s", "fixed": {"dataset": "synthetic"}, "matrix": [
      {"key": "ranks", "values": [1, 2, 4, 8]}, {"key": "model", "values": ["resnet20", "resnet32", "resnet44"]}],
      "repeats": 5, "seed": 42})"));
  ASSERT_EQ(study.runs.size(), 60u);
  std::set<std::vector<int>> orders;
  for (int block = 0; block < 5; ++block) {
    std::vector<int> order;
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(study.runs[block * 12 + i].repeat, block);
      order.push_back(study.runs[block * 12 + i].cell);
    }
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 12u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 5u) << "each block has an order of its own";
}

v1::StudySpec TenCells(int seed) {
  v1::StudySpec spec =
      Small(R"("matrix": [{"key": "momentum", "values": [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}])");
  spec.set_seed(seed);
  return spec;
}

std::vector<int> CellsInOrder(const ExpandedStudy& study) {
  std::vector<int> cells;
  for (const PlannedRun& run : study.runs) cells.push_back(run.cell);
  return cells;
}

TEST(ExpandStudy, TheSeedAloneDecidesTheOrder) {
  // Literal values, because the order must be the same on every machine and in every version.
  EXPECT_THAT(CellsInOrder(Expand(TenCells(42))), ElementsAre(4, 6, 7, 0, 9, 5, 1, 2, 3, 8));
  EXPECT_NE(CellsInOrder(Expand(TenCells(42))), CellsInOrder(Expand(TenCells(43))));
}

TEST(ExpandStudy, EachSecondBlockOfTwoCellsHasTheReverseOrder) {
  std::set<std::vector<int>> firsts;
  for (int seed = 0; seed < 20; ++seed) {
    v1::StudySpec spec = Small(R"("matrix": [{"key": "momentum", "values": [0, 0.1]}], "repeats": 5)");
    spec.set_seed(seed);
    const std::vector<int> cells = CellsInOrder(Expand(spec));
    ASSERT_EQ(cells.size(), 10u);
    for (size_t run = 0; run < cells.size(); run += 2) EXPECT_NE(cells[run], cells[run + 1]);
    EXPECT_NE(cells[0], cells[2]) << "seed " << seed;
    EXPECT_NE(cells[4], cells[6]) << "seed " << seed;
    firsts.insert({cells[0], cells[4], cells[8]});
  }
  EXPECT_GT(firsts.size(), 4u) << "the first block of each pair is random";
}

TEST(ExpandStudy, ListedKeepsTheOrderOfTheFile) {
  v1::StudySpec spec = TenCells(42);
  spec.set_order(v1::StudySpec::LISTED);
  EXPECT_THAT(CellsInOrder(Expand(spec)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(ExpandStudy, AllocationFitsTheLargestCell) {
  AllocationShape shape = Expand(Small(R"("matrix": [{"key": "ranks", "values": [1, 2, 4, 8]}],
      "resources": {"ranks_per_node": 4, "cpus_per_rank": 6, "gpus_per_rank": 1})",
                                       R"("epochs": 1)"))
                              .shape;
  EXPECT_EQ(shape.nodes, 2);
  EXPECT_EQ(shape.ranks_per_node, 4);
  EXPECT_EQ(shape.cpus_per_rank, 6);
  EXPECT_EQ(shape.gpus_per_rank, 1);
}

TEST(ExpandStudy, WithoutRanksPerNodeEverythingFitsOneNode) {
  AllocationShape shape = Expand(Small("", R"("ranks": 8)")).shape;
  EXPECT_EQ(shape.nodes, 1);
  EXPECT_EQ(shape.ranks_per_node, 8);
  EXPECT_EQ(shape.cpus_per_rank, 1);
  EXPECT_EQ(shape.gpus_per_rank, 0);
}

TEST(ShapeOf, AsksForNoMoreThanTheRunNeeds) {
  v1::Resources resources;
  resources.set_ranks_per_node(4);
  const CellList::Needs two{2, 0, 0}, nine{9, 3, 0};
  EXPECT_EQ(ShapeOf(two, resources).nodes, 1);
  EXPECT_EQ(ShapeOf(two, resources).ranks_per_node, 2);
  EXPECT_EQ(ShapeOf(nine, resources).nodes, 3);
  EXPECT_EQ(ShapeOf(nine, resources).cpus_per_rank, 3);
}

TEST(ExpandStudy, ExpandsAHundredThousandRuns) {
  v1::StudySpec spec = Small(R"("repeats": 1000, "order": "LISTED")");
  auto* axis = spec.add_matrix();
  axis->set_key("max_steps");
  for (int i = 1; i <= 100; ++i) axis->add_values()->set_number_value(i * 100);
  ExpandedStudy study = Expand(spec);
  EXPECT_EQ(study.cells.size(), 100u);
  EXPECT_EQ(study.runs.size(), 100'000u);
  EXPECT_EQ(study.runs.back().cell, 99);
  EXPECT_EQ(study.runs.back().repeat, 999);
}

TEST(ExpandStudy, MayMixEnginesWhereEachHasWhatItNeeds) {
  ExpandedStudy study = Expand(Small(R"("matrix": [{"key": "engine", "values": ["native/ddp", "custom"]}])",
                                     R"("ranks": 1, "command": ["./train"])"));
  EXPECT_EQ(study.cells.size(), 2u);
  ExpandedStudy custom =
      Expand(Spec(R"({"study": "s", "fixed": {"engine": "custom", "command": ["true"], "ranks": 2}})"));
  EXPECT_EQ(custom.cells[0].spec.dataset(), "") << "no data set is made up for a program of the user's own";
}

}  // namespace
}  // namespace scalelab
