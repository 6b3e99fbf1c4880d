#include "study/file/study_file.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "proto/status.h"
#include "tests/unit/study/file/study_file_fixture.h"

namespace scalelab {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// All sections that a study file can have.
constexpr char kFull[] = R"(study: resnet20-strong
fixed:   {model: resnet20, dataset: cifar10, data_dir: /data/cifar-10, epochs: 2}   # max_steps: 200 ends earlier
matrix:
  engine:    [native/ddp]
  precision: [fp32, amp-bf16]
  ranks:     {pow2: [1, 8]}          # or [1, 2, 4, 8]
zip: []                              # axes that move together
exclude: [{engine: native/ddp, precision: amp-bf16, ranks: 8}]
scaling: {mode: strong, global_batch: 256}   # or {mode: weak, batch_per_rank: 128}
lr:      {base: 0.1, reference_batch: 128, rule: linear, warmup_epochs: 1}
repeats: 5
seed: 42                             # repeat r trains with seed + r
measure: {warmup_steps: 20, evaluate: false, target_accuracy: 0.6}
order: listed
baseline: {ranks: 1}
resources: {ranks_per_node: 4, cpus_per_rank: 8, gpus_per_rank: 1, partition: gpu, time: "00:30:00", exclusive: true,
            memory_mib: 64000}
slurm:   {sbatch_options: {constraint: a100, nice: 10}}
retry:   {max: 2, on: [node_fail, preempted]}
limits:  {concurrent_allocations: 4, gpu_hours: 500}
allocation: per-run
priority: -7
notify:  {on: [end, first_failure], mail: ada@uni.example, webhook: "https://chat.example/x", command: chat}
checkpoint: {every: 10m, keep: 3}
)";

class StudyFileTest : public StudyFiles {
 protected:
  StudyFile Read(const std::string& text) {
    absl::StatusOr<StudyFile> file = ReadStudyFile(Put(text));
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : StudyFile{};
  }
};

TEST_F(StudyFileTest, ReadsEverySection) {
  v1::StudySpec spec = Read(kFull).spec;
  EXPECT_EQ(spec.study(), "resnet20-strong");
  EXPECT_EQ(spec.fixed().fields().at("epochs").number_value(), 2);
  EXPECT_EQ(spec.fixed().fields().at("data_dir").string_value(), "/data/cifar-10");
  ASSERT_EQ(spec.matrix_size(), 3);
  EXPECT_EQ(spec.matrix(1).key(), "precision");
  EXPECT_EQ(spec.matrix(1).values(1).string_value(), "amp-bf16");
  ASSERT_EQ(spec.matrix(2).values_size(), 4);
  EXPECT_EQ(spec.matrix(2).values(3).number_value(), 8);
  EXPECT_EQ(spec.zip_size(), 0);
  ASSERT_EQ(spec.exclude_size(), 1);
  EXPECT_EQ(spec.exclude(0).fields().at("ranks").number_value(), 8);
  EXPECT_EQ(spec.scaling().mode(), v1::Scaling::STRONG);
  EXPECT_EQ(spec.scaling().global_batch(), 256);
  EXPECT_EQ(spec.lr().base(), 0.1);
  EXPECT_EQ(spec.lr().reference_batch(), 128);
  EXPECT_EQ(spec.lr().rule(), v1::LearningRate::LINEAR);
  EXPECT_EQ(spec.lr().warmup_epochs(), 1);
  EXPECT_EQ(spec.repeats(), 5);
  EXPECT_EQ(spec.seed(), 42);
  EXPECT_EQ(spec.measure().warmup_steps(), 20);
  EXPECT_TRUE(spec.measure().has_evaluate());
  EXPECT_FALSE(spec.measure().evaluate());
  EXPECT_EQ(spec.measure().target_accuracy(), 0.6);
  EXPECT_EQ(spec.order(), v1::StudySpec::LISTED);
  EXPECT_EQ(spec.baseline().fields().at("ranks").number_value(), 1);
  EXPECT_EQ(spec.resources().ranks_per_node(), 4);
  EXPECT_EQ(spec.resources().cpus_per_rank(), 8);
  EXPECT_EQ(spec.resources().gpus_per_rank(), 1);
  EXPECT_EQ(spec.resources().partition(), "gpu");
  EXPECT_EQ(spec.resources().time_seconds(), 1800);
  EXPECT_TRUE(spec.resources().exclusive());
  EXPECT_EQ(spec.resources().memory_mib(), 64000);
  EXPECT_EQ(spec.slurm().sbatch_options().at("constraint"), "a100");
  EXPECT_EQ(spec.slurm().sbatch_options().at("nice"), "10");
  EXPECT_THAT(spec.notify().on(), ElementsAre(v1::Notify::END, v1::Notify::FIRST_FAILURE));
  EXPECT_EQ(spec.notify().mail(), "ada@uni.example");
  EXPECT_EQ(spec.notify().webhook(), "https://chat.example/x");
  EXPECT_EQ(spec.notify().command(), "chat");
  EXPECT_EQ(spec.retry().max(), 2);
  EXPECT_THAT(spec.retry().on(), ElementsAre("node_fail", "preempted"));
  EXPECT_EQ(spec.limits().concurrent_allocations(), 4);
  EXPECT_EQ(spec.limits().gpu_hours(), 500);
  EXPECT_EQ(spec.allocation(), v1::StudySpec::PER_RUN);
  EXPECT_EQ(spec.priority(), -7);
  EXPECT_EQ(spec.fixed().fields().at("checkpoint_every_minutes").number_value(), 10);
}

TEST_F(StudyFileTest, AFullFileIsValid) {
  absl::StatusOr<CheckedStudyFile> checked = CheckStudyFile(Put(kFull));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->study.cells.size(), 7u);
  EXPECT_EQ(checked->study.excluded.size(), 1u);
  EXPECT_EQ(checked->study.runs.size(), 35u);
}

TEST_F(StudyFileTest, RepeatsMayBeARule) {
  const std::string head = "study: s\nfixed: {model: resnet20, dataset: synthetic, ranks: 2}\n";
  const v1::StudySpec spec = Read(head + "repeats: {min: 3, max: 7, until: {half_width: 2.5%}}\n").spec;
  EXPECT_EQ(spec.repeats(), 0);
  EXPECT_EQ(spec.adaptive_repeats().min(), 3);
  EXPECT_EQ(spec.adaptive_repeats().max(), 7);
  EXPECT_DOUBLE_EQ(spec.adaptive_repeats().half_width(), 0.025);
  EXPECT_EQ(Read(head + "repeats: {until: {half_width: 0.01}}\n").spec.adaptive_repeats().half_width(), 0.01);

  const auto checked = CheckStudyFile(Put(head + "repeats: {until: {half_width: 1%}}\n"));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->study.spec.adaptive_repeats().min(), 2);
  EXPECT_EQ(checked->study.spec.repeats(), 10);
  EXPECT_EQ(checked->study.runs.size(), 10u) << "all blocks are planned";
}

TEST_F(StudyFileTest, TheSectionCheckpointSetsKeysOfFixed) {
  using Numbers = std::map<std::string, double>;
  const auto numbers = [](const StudyFile& file) {
    Numbers out;
    for (const auto& [name, value] : file.spec.fixed().fields()) out[name] = value.number_value();
    return out;
  };
  // The order of the sections does not matter.
  const auto read = [&](const std::string& section) {
    return numbers(Read(absl::StrCat("study: s\ncheckpoint: ", section, "\nfixed: {ranks: 1}\n")));
  };
  EXPECT_EQ(read("{every: 10m, keep: 3}"),
            (Numbers{{"ranks", 1}, {"checkpoint_every_minutes", 10}, {"checkpoint_keep", 3}}));
  EXPECT_EQ(read("{every: 1h30m}"), (Numbers{{"ranks", 1}, {"checkpoint_every_minutes", 90}}));
  EXPECT_EQ(read("{every: \"00:01:30\"}"), (Numbers{{"ranks", 1}, {"checkpoint_every_minutes", 1.5}}));
  EXPECT_EQ(read("{every: 500}"), (Numbers{{"ranks", 1}, {"checkpoint_every_steps", 500}}));
  EXPECT_EQ(
      numbers(Read("study: s\nfixed: {ranks: 1, checkpoint_every_steps: 7}\ncheckpoint: {every: 2m}\n")),
      (Numbers{{"ranks", 1}, {"checkpoint_every_steps", 7}, {"checkpoint_every_minutes", 2}}))
      << "a checkpoint is written at each of the two";
  const auto set = ReadStudyFile(Put("study: s\nfixed: {ranks: 1}\n"), {"checkpoint.every=1h"});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(numbers(*set), (Numbers{{"ranks", 1}, {"checkpoint_every_minutes", 60}}));

  const auto checked = CheckStudyFile(Put(kFull));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->study.cells[0].spec.checkpoint_every_minutes(), 10);
  EXPECT_EQ(checked->study.cells[0].spec.checkpoint_keep(), 3);
}

TEST_F(StudyFileTest, ANoiseGuardHasKeysOfItsOwn) {
  const std::string head = "study: s\nfixed: {model: resnet20, dataset: synthetic, ranks: 2}\n";
  const v1::NoiseGuard guard =
      Read(head +
           "noise_guard: {rerun_if: noisy, max_reruns: 0, calibration_ms: 50, interval_seconds: 2.5}\n")
          .spec.noise_guard();
  EXPECT_EQ(guard.rerun_if(), v1::NoiseGuard::NOISY);
  EXPECT_TRUE(guard.has_max_reruns());
  EXPECT_EQ(guard.calibration_ms(), 50);
  EXPECT_EQ(guard.interval_seconds(), 2.5);
  EXPECT_FALSE(guard.has_calibrate());
  for (const std::string wrong : {"calibration_ms: 5", "max_reruns: -1", "rerun_if: sometimes",
                                  "calibrate: false, rerun_if: noisy", "interval_seconds: -1"})
    EXPECT_FALSE(CheckStudyFile(Put(head + "noise_guard: {" + wrong + "}\n")).ok()) << wrong;
  EXPECT_TRUE(CheckStudyFile(Put(head + "noise_guard: {calibrate: false}\n")).ok());
}

TEST_F(StudyFileTest, SectionsMayBeLeftEmpty) {
  StudyFile file = Read("study: s\nfixed: {ranks: 1}\nmatrix:\nzip:\nexclude: []\nscaling:\nretry: {}\n");
  EXPECT_EQ(file.spec.matrix_size(), 0);
  EXPECT_FALSE(file.spec.retry().has_max());
}

TEST_F(StudyFileTest, ReadsZippedAxes) {
  v1::StudySpec spec =
      Read("study: s\nzip:\n- ranks: [1, 2]\n  global_batch: [64, 128]\n- {momentum: [0.5]}\n").spec;
  ASSERT_EQ(spec.zip_size(), 2);
  ASSERT_EQ(spec.zip(0).axes_size(), 2);
  EXPECT_EQ(spec.zip(0).axes(1).key(), "global_batch");
  EXPECT_EQ(spec.zip(0).axes(1).values(1).number_value(), 128);
}

TEST_F(StudyFileTest, RangesAreThePowersOfTwoBetweenTheirEnds) {
  v1::StudySpec spec = Read("study: s\nmatrix: {ranks: {pow2: [3, 33]}, epochs: {pow2: [1, 1]}}\n").spec;
  ASSERT_EQ(spec.matrix(0).values_size(), 4);
  EXPECT_EQ(spec.matrix(0).values(0).number_value(), 4);
  EXPECT_EQ(spec.matrix(0).values(3).number_value(), 32);
  ASSERT_EQ(spec.matrix(1).values_size(), 1);
}

TEST_F(StudyFileTest, TextKeysTakeWhatLooksLikeNumbers) {
  auto fields =
      Read("study: s\nfixed: {dataset: 10, data_dir: /d, momentum: 9e-1, command: [sleep, 1, true]}\n")
          .spec.fixed()
          .fields();
  EXPECT_EQ(fields.at("dataset").string_value(), "10");
  EXPECT_EQ(fields.at("momentum").number_value(), 0.9);
  EXPECT_EQ(fields.at("command").list_value().values(1).string_value(), "1");
  EXPECT_EQ(fields.at("command").list_value().values(2).string_value(), "true");
}

TEST_F(StudyFileTest, OwnParametersAreMappingsOrSingleKeys) {
  const v1::StudySpec spec = Read(R"(study: s
fixed: {engine: custom, command: [a], ranks: 1, params: {layers: 4, name: "7"}, env: {NCCL_DEBUG: INFO, N: 1.10}}
matrix:
  params: {dropout: [0.1, 0.5], width: {pow2: [1, 4]}}
  env.OMP_PROC_BIND: [true, false]
exclude: [{params: {dropout: 0.1}, env.OMP_PROC_BIND: true}]
)")
                                 .spec;
  const auto& fixed = spec.fixed().fields();
  EXPECT_EQ(fixed.at("params.layers").number_value(), 4);
  EXPECT_EQ(fixed.at("params.name").string_value(), "7");
  EXPECT_EQ(fixed.at("env.N").string_value(), "1.10") << "a variable is text";
  EXPECT_FALSE(fixed.contains("params"));
  ASSERT_EQ(spec.matrix_size(), 3);
  EXPECT_EQ(spec.matrix(0).key(), "params.dropout");
  EXPECT_EQ(spec.matrix(1).key(), "params.width");
  EXPECT_EQ(spec.matrix(1).values_size(), 3);
  EXPECT_EQ(spec.matrix(2).values(0).string_value(), "true");
  EXPECT_EQ(spec.exclude(0).fields().at("params.dropout").number_value(), 0.1);
  EXPECT_EQ(spec.exclude(0).fields().at("env.OMP_PROC_BIND").string_value(), "true");
}

TEST_F(StudyFileTest, ARangeOfAVariableIsText) {
  const std::string text = R"(study: s
fixed: {engine: custom, command: [a], ranks: 1}
matrix: {env.OMP_NUM_THREADS: {pow2: [1, 4]}}
exclude: [{env.OMP_NUM_THREADS: 4}]
baseline: {env.OMP_NUM_THREADS: 1}
)";
  const v1::StudySpec spec = Read(text).spec;
  ASSERT_EQ(spec.matrix(0).values_size(), 3);
  EXPECT_EQ(spec.matrix(0).values(2).string_value(), "4");
  EXPECT_EQ(Errors(text), "") << "exclude and baseline select its values";
}

TEST_F(StudyFileTest, AnOptionWithoutAValueIsAFlag) {
  const v1::StudySpec spec =
      Read(
          "study: s\nslurm:\n  sbatch_options:\n    contiguous: ~\n    overcommit: null\n    spread-job:\n"
          "    comment: \"~\"\n")
          .spec;
  const auto& options = spec.slurm().sbatch_options();
  for (const std::string flag : {"contiguous", "overcommit", "spread-job"})
    EXPECT_EQ(options.at(flag), "") << flag;
  EXPECT_EQ(options.at("comment"), "~") << "in quotes it is text";
}

TEST_F(StudyFileTest, MetricsOfTheOutputAreAList) {
  const v1::Measure measure = Read(R"(study: s
measure:
  extract:
    - {metric: train/loss, regex: 'loss=([0-9.]+)', per: step}
    - {metric: run/throughput, regex: '([0-9.]+) samples/s', take: mean}
  success: exit_status
)")
                                  .spec.measure();
  ASSERT_EQ(measure.extract_size(), 2);
  EXPECT_EQ(measure.extract(0).metric(), "train/loss");
  EXPECT_EQ(measure.extract(0).regex(), "loss=([0-9.]+)");
  EXPECT_EQ(measure.extract(0).per(), v1::Extract::STEP);
  EXPECT_EQ(measure.extract(1).take(), v1::Extract::MEAN);
  EXPECT_EQ(measure.success(), v1::Measure::EXIT_STATUS);
}

TEST_F(StudyFileTest, ARelativeDataDirIsSeenFromTheFile) {
  auto dir = [&](const std::string& value) {
    return Read("study: s\nfixed: {data_dir: " + value + "}\nmatrix: {data_dir: [" + value + "]}\n").spec;
  };
  EXPECT_EQ(dir("../data").fixed().fields().at("data_dir").string_value(),
            (dir_.parent_path() / "data").string());
  EXPECT_EQ(dir("data").matrix(0).values(0).string_value(), (dir_ / "data").string());
  EXPECT_EQ(dir("/data/../x").fixed().fields().at("data_dir").string_value(), "/data/../x");
}

TEST_F(StudyFileTest, AScriptBesideTheFileMayBeACommandsWord) {
  const auto words = Read("study: s\nfixed: {command: [sh, ./train.sh, ../x, .hidden, a/b]}\n")
                         .spec.fixed()
                         .fields()
                         .at("command");
  EXPECT_EQ(words.list_value().values(1).string_value(), (dir_ / "train.sh").string());
  EXPECT_EQ(words.list_value().values(2).string_value(), (dir_.parent_path() / "x").string());
  EXPECT_EQ(words.list_value().values(3).string_value(), ".hidden");
  EXPECT_EQ(words.list_value().values(4).string_value(), "a/b");
}

TEST_F(StudyFileTest, KnowsThePlaceOfEverything) {
  auto positions =
      Read("study: s\nfixed: {model: resnet20}\nmatrix:\n  ranks: [1, 2]\nzip:\n- epochs: [1]\n").positions;
  EXPECT_EQ(positions.at(""), (Position{1, 1}));
  EXPECT_EQ(positions.at("study"), (Position{1, 1}));
  EXPECT_EQ(positions.at("fixed"), (Position{2, 1}));
  EXPECT_EQ(positions.at("fixed.model"), (Position{2, 9}));
  EXPECT_EQ(positions.at("matrix.ranks"), (Position{4, 3}));
  EXPECT_EQ(positions.at("matrix.ranks[1]"), (Position{4, 14}));
  EXPECT_EQ(positions.at("zip[0]"), (Position{6, 3}));
  EXPECT_EQ(positions.at("zip[0].epochs"), (Position{6, 3}));
  EXPECT_EQ(positions.at("zip[0].epochs[0]"), (Position{6, 12}));
}

TEST_F(StudyFileTest, AliasesStandForWhatTheyReferTo) {
  v1::StudySpec spec = Read("study: s\nzip: []\nmatrix: {epochs: &n [1, 2], bucket_cap_mib: *n}\n").spec;
  EXPECT_EQ(spec.matrix(1).values(1).number_value(), 2);
}

TEST_F(StudyFileTest, TakesWindowsLineEndsAndAByteOrderMark) {
  v1::StudySpec spec = Read("\xEF\xBB\xBFstudy: s\r\nfixed: {ranks: 1}\r\n").spec;
  EXPECT_EQ(spec.study(), "s");
  EXPECT_EQ(spec.fixed().fields().at("ranks").number_value(), 1);
}

TEST_F(StudyFileTest, LocatesViolationsAtTheLongestKnownPartOfTheirPath) {
  StudyFile file = Read("study: s\nmatrix:\n  ranks: [1, 2]\nscaling: {global_batch: 3}\n");
  absl::Status status = InvalidFields({{"scaling.mode", "four"},
                                       {"matrix.ranks[1]", "three"},
                                       {"matrix.engine[7]", "two"},
                                       {"resources.time", "one"},
                                       {"", "and 5 more like these"}});
  absl::Status located = Locate(file, status);
  EXPECT_EQ(located.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Short(located),
            "f.yaml:1:1: one\nf.yaml:2:1: two\nf.yaml:3:14: three\nf.yaml:4:1: four\nf.yaml: and 5 more like "
            "these");
  EXPECT_EQ(ReasonOf(located), "INVALID_FIELDS");
  EXPECT_EQ(ViolationsOf(located).size(), 5u);
}

TEST_F(StudyFileTest, LocateLeavesOtherErrorsAlone) {
  absl::Status status = MakeError(absl::StatusCode::kUnavailable, "DOWN", "no answer");
  EXPECT_EQ(Locate(Read("study: s\n"), status), status);
}

TEST_F(StudyFileTest, AHyphenIsStandardInput) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = "study: piped\nrepeats: 4\n";
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  const int before = dup(STDIN_FILENO);
  dup2(ends[0], STDIN_FILENO);
  const auto file = ReadStudyFile("-");
  dup2(before, STDIN_FILENO);
  close(before);
  close(ends[0]);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->spec.study(), "piped");
  EXPECT_EQ(file->spec.repeats(), 4);
}

TEST_F(StudyFileTest, ValuesOfTheCommandLineReplaceThoseOfTheFile) {
  const auto file =
      ReadStudyFile(Put(kFull), {"matrix.ranks=[1, 2]", "fixed.epochs=7", "repeats=3",
                                 "fixed.batch_norm=sync", "matrix.momentum=[0, 0.9]", "resources.time=1h"});
  ASSERT_TRUE(file.ok()) << file.status();
  const v1::StudySpec& spec = file->spec;
  ASSERT_EQ(spec.matrix_size(), 4);
  EXPECT_EQ(spec.matrix(2).key(), "ranks");
  ASSERT_EQ(spec.matrix(2).values_size(), 2);
  EXPECT_EQ(spec.matrix(2).values(1).number_value(), 2);
  EXPECT_EQ(spec.matrix(3).key(), "momentum");
  EXPECT_EQ(spec.fixed().fields().at("epochs").number_value(), 7);
  EXPECT_EQ(spec.fixed().fields().at("batch_norm").string_value(), "sync");
  EXPECT_EQ(spec.repeats(), 3);
  EXPECT_EQ(spec.resources().time_seconds(), 3600);
}

TEST_F(StudyFileTest, AWrongValueOfTheCommandLineIsNamed) {
  const std::string path = Put(kFull);
  const auto message = [&](const std::vector<std::string>& set) {
    return std::string(CheckStudyFile(path, set).status().message());
  };
  EXPECT_EQ(message({"matrix"}), "--set matrix: write KEY=VALUE, for example matrix.ranks=[1,2]");
  EXPECT_THAT(message({"matrix.ranks=[1,"}),
              testing::StartsWith("--set matrix.ranks=[1,: the value is no YAML: "));
  EXPECT_EQ(message({"study.name=x"}),
            "--set study.name=x: a part of the key is no mapping in the study file");
  EXPECT_THAT(message({"seed=1", "fixed.epochs=many"}), testing::StartsWith("--set fixed.epochs: "));
  EXPECT_THAT(message({"fixed.colour=red"}), testing::StartsWith("--set fixed.colour: unknown key 'colour'"));
}

class DefaultSections : public StudyFileTest {
 protected:
  static constexpr char kWithout[] =
      "study: s\nfixed: {model: resnet20, dataset: synthetic, epochs: 1}\nmatrix: {ranks: [1]}\n";

  absl::StatusOr<CheckedStudyFile> Check(const std::string& text, const std::string& notify,
                                         const std::vector<std::string>& set = {}) {
    return CheckStudyFile(Put(text), set, {{"notify", notify, "/home/ada/config:2: notify"}});
  }
  std::string ErrorOf(const std::string& notify, const std::vector<std::string>& set = {}) {
    return std::string(Check(kWithout, notify, set).status().message());
  }
};

TEST_F(DefaultSections, AreAddedToAFileWithoutTheSection) {
  const auto checked = Check(kWithout, " {mail: ada@uni.example, on: [end]}  # mine", {"repeats=2"});
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->file.spec.notify().mail(), "ada@uni.example");
  EXPECT_THAT(checked->file.spec.notify().on(), ElementsAre(v1::Notify::END));
  EXPECT_EQ(checked->study.spec.notify().mail(), "ada@uni.example");
  EXPECT_EQ(checked->file.spec.repeats(), 2);
  ASSERT_EQ(checked->file.defaults.size(), 1u);
  EXPECT_EQ(checked->file.defaults[0].key, "notify");
  EXPECT_TRUE(CheckStudyFile(Put(kWithout)).value().file.defaults.empty());
}

TEST_F(DefaultSections, DoNotReplaceOrExtendASectionOfTheStudy) {
  const std::string own = absl::StrCat(kWithout, "notify: {command: chat}\n");
  const std::pair<absl::StatusOr<CheckedStudyFile>, std::string> own_sections[] = {
      {Check(own, "{mail: ada@uni.example}"), "chat"},
      {Check(kWithout, "{mail: ada@uni.example}", {"notify={command: post}"}), "post"},
      {Check(kWithout, "{mail: ada@uni.example}", {"notify.command=talk"}), "talk"},
      // A default that is not used is not checked.
      {Check(own, "{mail: nobody}"), "chat"}};
  for (const auto& [checked, command] : own_sections) {
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_EQ(checked->file.spec.notify().command(), command);
    EXPECT_EQ(checked->file.spec.notify().mail(), "");
    EXPECT_TRUE(checked->file.defaults.empty());
  }
}

TEST_F(DefaultSections, AStudyMayHaveNoNotifications) {
  for (const auto& checked :
       {Check(absl::StrCat(kWithout, "notify: none\n"), "{mail: ada@uni.example}"),
        Check(kWithout, "{mail: ada@uni.example}", {"notify=none"}),
        Check(absl::StrCat(kWithout, "notify: {command: chat}\n"), "{}", {"notify=none"})}) {
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_FALSE(checked->file.spec.has_notify());
  }
  EXPECT_THAT(Errors(absl::StrCat(kWithout, "notify: all\n")), HasSubstr("notify must be a mapping"));
}

TEST_F(DefaultSections, AnErrorNamesTheirPlaceAndKey) {
  EXPECT_THAT(ErrorOf("{mail: nobody}"), AllOf(testing::StartsWith("/home/ada/config:2: notify: mail "),
                                               HasSubstr("is not an address")));
  EXPECT_THAT(ErrorOf("{mial: ada@uni.example}", {"repeats=2"}),
              testing::StartsWith("/home/ada/config:2: notify: unknown key 'mial'"));
  EXPECT_THAT(ErrorOf("{mail: a@b.c, on: [start]}"), testing::StartsWith("/home/ada/config:2: notify: "));
  EXPECT_THAT(ErrorOf("ada@uni.example"),
              testing::StartsWith("/home/ada/config:2: notify: notify must be a mapping"));
  EXPECT_THAT(ErrorOf("{mail: [", {"repeats=2"}),
              testing::StartsWith("/home/ada/config:2: notify: the value is no YAML: "));
  EXPECT_THAT(ErrorOf(""),
              testing::StartsWith("/home/ada/config:2: notify: notify needs mail, webhook or command"));
  EXPECT_THAT(
      ErrorOf("{mail: nobody}", {"fixed.colour=red"}),
      AllOf(HasSubstr("--set fixed.colour: unknown key"), HasSubstr("/home/ada/config:2: notify: mail ")));
}

TEST_F(DefaultSections, AnErrorOfTheServerNamesTheirPlace) {
  const auto checked = Check(kWithout, "{command: chat}");
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(Short(Locate(checked->file, InvalidFields({{"notify.command", "there is no command 'chat'"}}))),
            "/home/ada/config:2: notify: there is no command 'chat'");
}

}  // namespace
}  // namespace scalelab
