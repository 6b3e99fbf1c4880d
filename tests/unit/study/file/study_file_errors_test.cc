// Every possible error in a study file: its position and its message.
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/run_parameters.h"
#include "gmock/gmock.h"
#include "proto/status.h"
#include "tests/unit/study/file/study_file_fixture.h"

namespace scalelab {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Two valid lines before the lines of each test.
constexpr char kHead[] = "study: s\nfixed: {model: resnet20, dataset: synthetic, ranks: 2}\n";

class StudyFileErrors : public StudyFiles {
 protected:
  std::string After(const std::string& text) { return Errors(kHead + text); }
};

TEST_F(StudyFileErrors, ASoundFileHasNone) { EXPECT_EQ(After("repeats: 2\n"), ""); }

TEST_F(StudyFileErrors, UnknownKeys) {
  EXPECT_EQ(After("matrx: {epochs: [1]}\n"), "f.yaml:3:1: unknown key 'matrx'; did you mean 'matrix'?");
  EXPECT_EQ(After("scaling:\n  global_bacth: 64\n"),
            "f.yaml:4:3: unknown key 'global_bacth'; did you mean 'global_batch'?");
  EXPECT_EQ(After("scaling: {colour: red}\n"),
            "f.yaml:3:11: unknown key 'colour'; known: mode, global_batch, batch_per_rank");
  EXPECT_EQ(After("resources: {time_seconds: 5}\n"),
            "f.yaml:3:13: unknown key 'time_seconds'; known: ranks_per_node, "
            "cpus_per_rank, gpus_per_rank, partition, time, exclusive, "
            "memory_mib");
  EXPECT_EQ(Errors("study: s\nfixed:\n  modle: resnet20\n  dataset: synthetic\n  ranks: 2\n"),
            "f.yaml:3:3: unknown key 'modle'; did you mean 'model'?");
  EXPECT_EQ(After("matrix: {epoch: [1, 2]}\n"), "f.yaml:3:10: unknown key 'epoch'; did you mean 'epochs'?");
}

TEST_F(StudyFileErrors, DuplicateKeys) {
  EXPECT_EQ(After("repeats: 2\nrepeats: 3\n"), "f.yaml:4:1: duplicate key 'repeats' (first on line 3)");
  EXPECT_EQ(Errors("study: s\nfixed:\n  ranks: 2\n  model: resnet20\n  dataset: synthetic\n  ranks: 4\n"),
            "f.yaml:6:3: duplicate key 'ranks' (first on line 3)");
  EXPECT_EQ(After("matrix: {epochs: [1], epochs: [2]}\n"),
            "f.yaml:3:23: duplicate key 'epochs' (first on line 3)");
  EXPECT_EQ(After("exclude: [{epochs: 1, epochs: 1}]\n"),
            "f.yaml:3:23: duplicate key 'epochs' (first on line 3)");
  // A key of params has two spellings.
  for (const char* keys :
       {"params: {dropout: 0.1}, params.dropout: 0.5", "params.dropout: 0.5, params: {dropout: 0.1}"}) {
    for (const std::string& section :
         {absl::StrCat("exclude: [{", keys, "}]\n"), absl::StrCat("baseline: {", keys, "}\n")})
      EXPECT_THAT(After(section), HasSubstr("duplicate key 'params.dropout' (first on line 3)"));
    EXPECT_THAT(Errors(absl::StrCat("study: s\nfixed: {", keys, ", model: resnet20, dataset: synthetic}\n")),
                HasSubstr("duplicate key 'params.dropout' (first on line 2)"));
  }
}

TEST_F(StudyFileErrors, RulesOfRepeats) {
  EXPECT_EQ(After("repeats: {min: 2}\n"),
            "f.yaml:3:1: repeats has no rule; add until: {half_width: 2%}, or write a number of repeats");
  EXPECT_EQ(After("repeats: {until: {}}\n"),
            "f.yaml:3:11: until has no half_width; write until: {half_width: 2%}");
  EXPECT_EQ(After("repeats: {until: {half_width: narrow}}\n"),
            "f.yaml:3:19: half_width must be a share such as 2% or 0.02, not 'narrow'");
  EXPECT_EQ(After("repeats: {until: {half_with: 2%}}\n"),
            "f.yaml:3:11: until has no half_width; write until: {half_width: 2%}\n"
            "f.yaml:3:19: unknown key 'half_with'; did you mean 'half_width'?");
  EXPECT_EQ(After("repeats: {most: 4, until: {half_width: 2%}}\n"),
            "f.yaml:3:11: unknown key 'most'; known: min, max, until");
  EXPECT_EQ(After("repeats: {min: 1, until: {half_width: 2%}}\n"),
            "f.yaml:3:11: min must be at least 2, not 1");
  for (const std::string end : {"min", "max"}) {
    EXPECT_EQ(After("repeats: {" + end + ": 0, until: {half_width: 2%}}\n"),
              "f.yaml:3:11: " + end + " must be at least 2, not 0")
        << "0 is not the default of " << end;
  }
  EXPECT_EQ(After("repeats: {min: 5, max: 4, until: {half_width: 2%}}\n"),
            "f.yaml:3:19: max is 4 and below min, 5");
  EXPECT_EQ(After("repeats: {until: {half_width: 200%}}\n"),
            "f.yaml:3:19: half_width must be at most 1, not 2");
  EXPECT_THAT(After("adaptive_repeats: {min: 2}\n"),
              StartsWith("f.yaml:3:1: unknown key 'adaptive_repeats'"));
}

TEST_F(StudyFileErrors, RulesOfCheckpoints) {
  EXPECT_EQ(After("checkpoint: 10m\n"),
            "f.yaml:3:1: checkpoint must be a mapping such as {every: 10m, keep: 2}, not '10m'");
  for (const char* without : {"checkpoint:\n", "checkpoint: {keep: 3}\n"}) {
    EXPECT_EQ(
        After(without),
        "f.yaml:3:1: checkpoint has no every; add every: 10m (a time) or every: 500 (a number of steps)");
  }
  EXPECT_EQ(After("checkpoint: {evry: 5, every: 5}\n"),
            "f.yaml:3:14: unknown key 'evry'; did you mean 'every'?");
  EXPECT_EQ(After("chekpoint: {every: 5}\n"),
            "f.yaml:3:1: unknown key 'chekpoint'; did you mean 'checkpoint'?");
  for (const char* wrong : {"soon", "1.5", "10 m"}) {
    EXPECT_EQ(After(absl::StrCat("checkpoint: {every: ", wrong, "}\n")),
              absl::StrCat("f.yaml:3:14: every must be a time such as 10m or \"00:10:00\", or a number of "
                           "steps such as 500, not '",
                           wrong, "'"));
  }
  EXPECT_THAT(After("checkpoint: {every: [5]}\n"), HasSubstr("a number of steps such as 500, not a list"));
  EXPECT_EQ(
      After("checkpoint: {every: 0}\n"),
      "f.yaml:3:14: every must be at least 1 step (to write no checkpoints, remove checkpoint), not '0'");
  EXPECT_EQ(After("checkpoint: {every: 0m}\n"),
            "f.yaml:3:14: every must be at least 1s (to write no checkpoints, remove checkpoint), not '0m'");
  EXPECT_EQ(After("checkpoint: {every: 2000000000000}\n"),
            "f.yaml:3:14: every must be at most 1000000000000 steps, not '2000000000000'");
  EXPECT_EQ(After("checkpoint: {every: 800d}\n"), "f.yaml:3:14: every must be at most 1000000m, not '800d'");
  for (const char* wrong : {"0", "1001", "many", "1.5"}) {
    EXPECT_EQ(After(absl::StrCat("checkpoint: {every: 5, keep: ", wrong, "}\n")),
              absl::StrCat("f.yaml:3:24: keep must be a whole number from 1 to 1000, not '", wrong, "'"));
  }
  // A key has one place only.
  EXPECT_EQ(
      Errors("study: s\nfixed: {model: resnet20, dataset: synthetic, ranks: 2, checkpoint_every_steps: 4}\n"
             "checkpoint: {every: 5}\n"),
      "f.yaml:3:14: every is also set as fixed.checkpoint_every_steps; keep one");
  EXPECT_EQ(After("matrix: {checkpoint_every_steps: [5, 6]}\ncheckpoint: {every: 7}\n"),
            "f.yaml:4:14: every is also set as matrix.checkpoint_every_steps; keep one");
  EXPECT_EQ(After("zip: [{checkpoint_every_minutes: [1, 2]}]\ncheckpoint: {every: 7m}\n"),
            "f.yaml:4:14: every is also set as zip[0].checkpoint_every_minutes; keep one");
  // The position of an error in a key of `fixed` is that of the key in the section.
  EXPECT_THAT(Errors("study: s\nfixed: {engine: pytorch/dp, model: resnet20, dataset: synthetic, ranks: 2}\n"
                     "resources: {gpus_per_rank: 1}\ncheckpoint:\n  every: 5\n"),
              HasSubstr("f.yaml:5:3: engine pytorch/dp does not have checkpoint_every_steps 5"));
}

TEST_F(StudyFileErrors, WrongTypes) {
  EXPECT_EQ(After("repeats: many\n"), "f.yaml:3:1: repeats must be a whole number, not 'many'");
  EXPECT_EQ(After("repeats: 1.5\n"), "f.yaml:3:1: repeats must be a whole number, not '1.5'");
  EXPECT_EQ(After("repeats: [1]\n"), "f.yaml:3:1: repeats must be a whole number, not a list");
  EXPECT_EQ(After("repeats:\n"), "f.yaml:3:1: repeats must be a whole number, not nothing");
  EXPECT_EQ(After("repeats: \"2\"\n"), "f.yaml:3:1: repeats must be a whole number, not '2'");
  EXPECT_EQ(After("repeats: 99999999999\n"),
            "f.yaml:3:1: repeats must be a whole number from -2147483648 to 2147483647, not '99999999999'");
  EXPECT_EQ(After("lr: {base: fast}\n"), "f.yaml:3:6: base must be a number, not 'fast'");
  EXPECT_EQ(After("lr: 0.1\n"), "f.yaml:3:1: lr must be a mapping of keys to values, not '0.1'");
  EXPECT_EQ(After("measure: {evaluate: yes}\n"), "f.yaml:3:11: evaluate must be true or false, not 'yes'");
  EXPECT_EQ(After("exclude: {epochs: 1}\n"), "f.yaml:3:1: exclude must be a list, not a mapping");
  EXPECT_EQ(After("exclude: [1]\n"), "f.yaml:3:11: exclude[0] must be a mapping of keys to values, not '1'");
  EXPECT_EQ(After("matrix: {epochs: 2}\n"),
            "f.yaml:3:10: epochs must be a list, not '2'; put one value for all cells under fixed");
  EXPECT_EQ(After("matrix: [epochs]\n"),
            "f.yaml:3:1: matrix must be a mapping of keys to values, not a list");
  EXPECT_EQ(After("matrix: {epochs: [1, two]}\n"), "f.yaml:3:22: epochs must be a whole number, not 'two'");
  EXPECT_EQ(After("slurm: {sbatch_options: {constraint: [a]}}\n"),
            "f.yaml:3:26: sbatch option 'constraint' must be text, not a list");
  EXPECT_EQ(After("retry: {on: preempted}\n"), "f.yaml:3:9: on must be a list, not 'preempted'");
  EXPECT_EQ(After("retry: {on: []}\n"), "f.yaml:3:9: on has no causes; to disable retries, write max: 0");
  EXPECT_EQ(After("retry: {on: ~}\n"), "f.yaml:3:9: on has no causes; to disable retries, write max: 0");
  EXPECT_EQ(
      Errors("study: s\nfixed: {engine: custom, command: [ls, ~], ranks: 1}\n"),
      "f.yaml:2:25: command must be a list of texts, but its word 2 is nothing; put the word in quotes");
  EXPECT_EQ(After("notify: {mail: a@b.c, on: [start]}\n"),
            "f.yaml:3:28: unknown occasion 'start'; known: end, first_failure");
  EXPECT_EQ(Errors("study: [a]\nfixed: {model: resnet20, dataset: synthetic, ranks: 2}\n"),
            "f.yaml:1:1: study must be text, not a list");
}

TEST_F(StudyFileErrors, UnknownWords) {
  EXPECT_EQ(After("order: random\n"), "f.yaml:3:1: unknown order 'random'; known: randomized, listed");
  EXPECT_EQ(After("scaling: {mode: storng}\n"),
            "f.yaml:3:11: unknown mode 'storng'; did you mean 'strong'? known: strong, weak");
  EXPECT_EQ(After("allocation: per_run\n"),
            "f.yaml:3:1: unknown allocation 'per_run'; did you mean 'per-run'? known: group, per-run");
  EXPECT_EQ(After("resources: {time: soon}\n"),
            "f.yaml:3:13: time must be a time limit such as \"00:30:00\", 30m or 1800 (seconds), not 'soon'");
}

TEST_F(StudyFileErrors, UnknownModelsAndEngines) {
  EXPECT_EQ(
      Errors("study: s\nfixed:\n  ranks: 2\n  dataset: synthetic\n  model: resnet21\n"),
      "f.yaml:5:3: unknown model 'resnet21'; did you mean 'resnet20'? known: resnet8, resnet20, resnet32, "
      "resnet44, "
      "resnet56, resnet18, resnet34, resnet50, resnet101, resnet152, mobilenet_v2, alexnet, inception_v3, "
      "vgg16, gpt-nano, gpt-small");
  EXPECT_EQ(
      After("matrix:\n  engine:\n  - native/ddp\n  - native/dpd\n"),
      "f.yaml:6:5: unknown engine 'native/dpd'; did you mean 'native/ddp'? known: native/ddp, "
      "native/horovod, native/serial, native/none, native/zero1, native/zero2, "
      "native/zero3, native/local-sgd, native/pipeline, native/tensor, native/parameter-server, "
      "native/data-parallel, "
      "pytorch/ddp, pytorch/fsdp, pytorch/zero1, pytorch/powersgd, "
      "pytorch/local-sgd, pytorch/pipeline, pytorch/dp, horovod/pytorch, horovod/tensorflow, horovod/mxnet, "
      "tensorflow/mirrored, tensorflow/multiworker-mirrored, keras/tensorflow, keras/jax, "
      "keras/pytorch, mxnet/kvstore, custom");
}

TEST_F(StudyFileErrors, ABatchThatDoesNotDivide) {
  EXPECT_EQ(
      Errors("study: s\nfixed: {model: resnet20, dataset: synthetic}\nmatrix: {ranks: [1, 8]}\n"
             "scaling:\n  mode: strong\n  global_batch: 100\n"),
      "f.yaml:6:3: global_batch 100 does not divide evenly over 8 ranks; the nearest that do are 96 and 104");
}

TEST_F(StudyFileErrors, NumbersThatCannotBe) {
  EXPECT_EQ(Errors("study: s\nfixed: {model: resnet20, dataset: synthetic, ranks: 0}\n"),
            "f.yaml:2:46: ranks must be at least 1, not 0");
  EXPECT_EQ(After("repeats: -3\n"), "f.yaml:3:1: repeats must be at least 1, not -3");
  EXPECT_EQ(After("repeats: 0\n"), "f.yaml:3:1: repeats must be at least 1, not 0");
  EXPECT_EQ(After("scaling: {global_batch: 0}\n"), "f.yaml:3:11: global_batch must be at least 1, not 0");
  EXPECT_EQ(After("lr: {base: 0}\n"), "f.yaml:3:6: base must be more than 0, not '0'");
  EXPECT_EQ(After("lr: {base: .nan}\n"), "f.yaml:3:6: base must be a number, not NaN");
  EXPECT_EQ(After("noise_guard: {interval_seconds: 0}\n"),
            "f.yaml:3:15: interval_seconds must be more than 0, not '0'");
  EXPECT_EQ(After("noise_guard: {calibration_ms: 0}\n"),
            "f.yaml:3:15: calibration_ms must be at least 10, not 0");
  EXPECT_EQ(After("resources: {time: 0}\n"), "f.yaml:3:13: time must be at least one second");
  EXPECT_EQ(After("measure: {warmup_steps: -1}\n"), "f.yaml:3:11: warmup_steps must be at least 0, not -1");
}

TEST_F(StudyFileErrors, OwnNumbersWithMoreDigitsThanAreStored) {
  const std::string head = "study: s\nfixed: {engine: custom, command: [a], ranks: 1}\n";
  const std::string sentence =
      " is a whole number that cannot be stored exactly; write it in quotes, as text";
  EXPECT_EQ(Errors(head + "matrix: {params.id: [1, 9007199254740993]}\n"),
            "f.yaml:3:25: params.id '9007199254740993'" + sentence);
  EXPECT_EQ(Errors("study: s\nfixed:\n  engine: custom\n  command: [a]\n  ranks: 1\n"
                   "  params: {id: -12345678901234567890}\n"),
            "f.yaml:6:12: params.id '-12345678901234567890'" + sentence);
  EXPECT_EQ(
      Errors(
          head +
          "matrix: {params.id: [-9007199254740991, 1152921504606846976, \"9007199254740993\", 1e20, +007], "
          "env.ID: [9007199254740993]}\n"),
      "");
}

TEST_F(StudyFileErrors, EmptyAxes) {
  EXPECT_EQ(After("matrix:\n  epochs: []\n"),
            "f.yaml:4:3: epochs has no values; give at least one, or remove the axis");
  EXPECT_EQ(After("matrix:\n  epochs:\n"),
            "f.yaml:4:3: epochs has no values; give at least one, or remove the axis");
  EXPECT_EQ(
      Errors("study: s\nfixed: {model: resnet20, dataset: synthetic}\nmatrix: {}\n"),
      "f.yaml:3:1: ranks is not set; write for example ranks: [1, 2, 4] in matrix, or ranks: 2 in fixed");
}

TEST_F(StudyFileErrors, Ranges) {
  EXPECT_EQ(After("matrix: {epochs: {pow: [1, 8]}}\n"),
            "f.yaml:3:19: unknown range 'pow'; did you mean 'pow2'? known: pow2");
  EXPECT_EQ(After("matrix: {epochs: {pow2: [8, 1]}}\n"),
            "f.yaml:3:19: pow2 must be a list of two whole numbers, the first at least 1 and not above the "
            "second, for "
            "example [1, 8]");
  EXPECT_EQ(After("matrix: {epochs: {pow2: [5, 7]}}\n"),
            "f.yaml:3:19: there is no power of two between 5 and 7");
  EXPECT_EQ(After("matrix: {backend: {pow2: [1, 2]}}\n"),
            "f.yaml:3:20: pow2 generates whole numbers, which backend does not accept; write a list");
  EXPECT_EQ(After("matrix: {epochs: {}}\n"),
            "f.yaml:3:10: epochs must be a list or a range {pow2: [FIRST, LAST]}");
}

TEST_F(StudyFileErrors, AMillionRuns) {
  std::string values;
  for (int i = 1; i <= 1000; ++i) absl::StrAppend(&values, i > 1 ? ", " : "", i);
  EXPECT_EQ(
      After("repeats: 1000\nmatrix:\n  max_steps: [" + values + "]\n"),
      "f.yaml:3:1: the study has 1,000,000 runs (1,000 cells x 1,000 repeats); at most 100,000 are allowed: "
      "reduce repeats (1,000), or split it into several studies");
  EXPECT_THAT(
      After("repeats: 500\nmatrix:\n  max_steps: [" + values + "]\n  momentum: [0.1, 0.9]\n"),
      StartsWith("f.yaml:5:3: the study has 1,000,000 runs (2,000 cells x 500 repeats); at most 100,000 are "
                 "allowed: reduce matrix.max_steps (1,000 values)"));
}

TEST_F(StudyFileErrors, NoYaml) {
  EXPECT_EQ(Errors("study: [a\n"), "f.yaml:2:1: this is not valid YAML: end of sequence flow not found");
  EXPECT_EQ(Errors("study: s\n\tfixed: {}\n"),
            "f.yaml:2:1: this is not valid YAML: illegal tab when looking for indentation");
  EXPECT_EQ(Errors("hello world\n"),
            "f.yaml:1:1: a study file is a mapping that starts with study: NAME, not 'hello world'");
  EXPECT_EQ(Errors("- study: s\n"),
            "f.yaml:1:1: a study file is a mapping that starts with study: NAME, not a list");
  EXPECT_EQ(Errors("study: *nowhere\n"),
            "f.yaml:1:8: this is not valid YAML: the referenced anchor is not defined");
  EXPECT_EQ(After("---\nstudy: t\n"), "f.yaml:4:1: a second document starts here; a study file holds one");
  EXPECT_EQ(After("[a, b]: c\n"), "f.yaml:3:1: this is not valid YAML: a key must be text, not a list");
}

TEST_F(StudyFileErrors, NothingInTheFile) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "~\n"}) {
    EXPECT_EQ(Errors(text), "f.yaml: the file is empty; a study file starts with study: NAME") << text;
  }
  EXPECT_THAT(Errors("{}\n"), StartsWith("f.yaml:1:1: the study has no name"));
}

TEST_F(StudyFileErrors, NoText) {
  EXPECT_EQ(Errors(std::string("\x7F"
                               "ELF\x02\0",
                               6)),
            "f.yaml: the file is not text (byte 0x02 at offset 4); a study file is YAML in UTF-8");
  EXPECT_EQ(Errors("study: \xFF\n"),
            "f.yaml: the file is not text (byte 0xFF at offset 7); a study file is YAML in UTF-8");
  EXPECT_EQ(Errors("study: \xED\xA0\x80\n"),
            "f.yaml: the file is not text (byte 0xED at offset 7); a study file is YAML in UTF-8");
  EXPECT_THAT(After("exclude: [{\"\\0\": 1}]\n"), StartsWith("f.yaml:3:12: unknown key '?'; known: "))
      << "escaped";
  EXPECT_EQ(After("resources: {partition: \"a\\nb\"}\n"), "f.yaml:3:13: partition 'a?b' must be one word");
}

TEST_F(StudyFileErrors, FilesThatCannotBeRead) {
  absl::Status missing = ReadStudyFile(Path() + ".not").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Short(missing), "f.yaml.not: there is no such file");
  EXPECT_EQ(ReadStudyFile(dir_.string()).status().message(),
            dir_.string() + ": this is a directory; give the path of a study file");
}

TEST_F(StudyFileErrors, FilesThatAreTooLarge) {
  EXPECT_EQ(Errors(std::string(5'000'000, '#')),
            "f.yaml: the file is 5.0 MB; a study file may have at most 4 MiB");
  EXPECT_EQ(After("#" + std::string((4 << 20) - sizeof kHead - 1, 'x') + "\n"), "");
}

TEST_F(StudyFileErrors, AliasBombsAndDeepNestingEndSoon) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'j'; ++c) {
    std::string before(1, c - 1);
    std::string list = "*" + before;
    for (int i = 0; i < 9; ++i) list += ", *" + before;
    absl::StrAppend(&bomb, std::string(1, c), ": &", std::string(1, c), " [", list, "]\n");
  }
  EXPECT_THAT(Errors(bomb), HasSubstr("this is not valid YAML: more than 500,000 values"));
  EXPECT_THAT(Errors("study: &a [*a]\n"),
              HasSubstr("f.yaml:1:12: this is not valid YAML: an alias refers to a node"));
  EXPECT_THAT(Errors("study: " + std::string(100'000, '[')), HasSubstr("this is not valid YAML"));
  // Each key has few levels of its own, and those of the key before it.
  const auto nested = [](absl::string_view value) {
    return absl::StrCat(std::string(40, '['), value, std::string(40, ']'));
  };
  std::string chain = absl::StrCat("k0: &a0 ", nested("x"), "\n");
  for (int i = 1; i < 1000; ++i)
    absl::StrAppend(&chain, "k", i, ": &a", i, " ", nested(absl::StrCat("*a", i - 1)), "\n");
  EXPECT_THAT(Errors(chain), HasSubstr("this is not valid YAML: values are nested too deeply"));
  EXPECT_THAT(Errors("study: " + nested(nested(nested("x")))), HasSubstr("values are nested too deeply"));
}

TEST_F(StudyFileErrors, AreToldAllAtOnceInFileOrder) {
  EXPECT_EQ(
      Errors("study: s\nrepeats: -1\nfixed:\n  model: resnet21\n  ranks: 0\n  dataset: synthetic\n  colour: "
             "red\n"
             "priority: 5000\nexclude: [{precision: tf32}]\n"),
      absl::StrCat(
          "f.yaml:2:1: repeats must be at least 1, not -1\n"
          "f.yaml:4:3: unknown model 'resnet21'; did you mean 'resnet20'? known: resnet8, resnet20, "
          "resnet32, resnet44, resnet56, resnet18, resnet34, resnet50, resnet101, resnet152, mobilenet_v2, "
          "alexnet, inception_v3, vgg16, gpt-nano, gpt-small\n"
          "f.yaml:5:3: ranks must be at least 1, not 0\n"
          "f.yaml:7:3: unknown key 'colour'; for a parameter of your own write params.colour; known: ",
          absl::StrJoin(StudyKeyNames(), ", "), "\nf.yaml:8:1: priority must be at most 1000, not 5000"));
}

TEST_F(StudyFileErrors, OfShapeAndOfMeaningStandTogether) {
  EXPECT_EQ(
      Errors("study: s\nfixed: {model: resnet21, dataset: synthetic, ranks: 2}\nrepeat: 3\npriority: 5000\n"),
      "f.yaml:2:9: unknown model 'resnet21'; did you mean 'resnet20'? known: resnet8, resnet20, resnet32, "
      "resnet44, "
      "resnet56, resnet18, resnet34, resnet50, resnet101, resnet152, mobilenet_v2, alexnet, inception_v3, "
      "vgg16, gpt-nano, gpt-small\n"
      "f.yaml:3:1: unknown key 'repeat'; did you mean 'repeats'?\n"
      "f.yaml:4:1: priority must be at most 1000, not 5000");
}

TEST_F(StudyFileErrors, DoNotFollowFromEachOther) {
  EXPECT_EQ(Errors("study: s\nfixed: {model: resnet20, dataset: synthetic}\nmatrix: {ranks: 2}\n"
                   "exclude: [{ranks: 2}]\nbaseline: {ranks: 2}\n"),
            "f.yaml:3:10: ranks must be a list, not '2'; put one value for all cells under fixed");
}

}  // namespace
}  // namespace scalelab
