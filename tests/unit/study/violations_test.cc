// Tests every violation of a specification: the field that is named and its message.
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/status.h"
#include "study/rules.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

// Returns the violations of a small valid study with one more section.
std::vector<FieldViolation> WrongWith(const std::string& section) { return Wrong(Small(section)); }
std::vector<FieldViolation> WrongFixed(const std::string& fixed) {
  return Wrong(Small("", R"("ranks": 1, )" + fixed));
}

TEST(StudyViolations, Names) {
  EXPECT_THAT(Wrong(Spec(R"({"fixed": {"model": "resnet20", "dataset": "synthetic", "ranks": 1}})")),
              Only("study", "the study has no name; write for example study: my-first-study"));
  for (const char* name : {"1st", "a b", "-a", "a/b", "\xC3\xA4"}) {
    v1::StudySpec spec = Small();
    spec.set_study(name);
    EXPECT_THAT(Wrong(spec),
                Only("study", std::string("study name '") + name +
                                  "' must be a letter, then letters, digits, '-', '_' or '.', 100 "
                                  "characters at most"));
  }
  v1::StudySpec spec = Small();
  spec.set_study(std::string(101, 'a'));
  EXPECT_EQ(Wrong(spec).size(), 1u);
  spec.set_study(std::string(100, 'a'));
  EXPECT_TRUE(ExpandStudy(spec).ok());
  spec.set_study("last");
  EXPECT_THAT(Wrong(spec), Only("study", "study name 'last' is reserved; choose another"));
}

TEST(StudyViolations, UnknownValues) {
  EXPECT_THAT(
      Wrong(Spec(R"({"study": "s", "fixed": {"model": "resnet21", "dataset": "synthetic", "ranks": 1}})")),
      Only("fixed.model",
           "unknown model 'resnet21'; did you mean 'resnet20'? known: resnet8, resnet20, resnet32, resnet44, "
           "resnet56, resnet18, resnet34, resnet50, resnet101, resnet152, mobilenet_v2, alexnet, "
           "inception_v3, vgg16, gpt-nano, gpt-small"));
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "engine", "values": ["native/ddp", "native/dpd"]}])"),
              Only("matrix.engine[1]",
                   "unknown engine 'native/dpd'; did you mean 'native/ddp'? known: native/ddp, "
                   "native/horovod, native/serial, native/none, native/zero1, native/zero2, "
                   "native/zero3, native/local-sgd, native/pipeline, native/tensor, native/parameter-server, "
                   "native/data-parallel, "
                   "pytorch/ddp, pytorch/fsdp, pytorch/zero1, pytorch/powersgd, "
                   "pytorch/local-sgd, pytorch/pipeline, pytorch/dp, horovod/pytorch, horovod/tensorflow, "
                   "horovod/mxnet, tensorflow/mirrored, tensorflow/multiworker-mirrored, "
                   "keras/tensorflow, keras/jax, keras/pytorch, mxnet/kvstore, custom"));
  EXPECT_THAT(WrongFixed(R"("precision": "int8")"),
              Only("fixed.precision", "unknown precision 'int8'; known: fp32, tf32, amp-bf16, amp-fp16"));
}

TEST(StudyViolations, UnknownKeys) {
  EXPECT_THAT(WrongFixed(R"("epoch": 2)"),
              Only("fixed.epoch", "unknown key 'epoch'; did you mean 'epochs'?"));
  EXPECT_THAT(Wrong(Spec(R"({"study": "s", "fixed": {"modle": "resnet20", "dataset": "synthetic"},
                             "matrix": [{"key": "rank", "values": [1, 2]}]})")),
              ElementsAre(FieldViolation{"fixed.modle", "unknown key 'modle'; did you mean 'model'?"},
                          FieldViolation{"matrix.rank", "unknown key 'rank'; did you mean 'ranks'?"}))
      << "a misspelt key is not also reported as missing";
  EXPECT_THAT(Wrong(Small(R"("exclude": [{"colour": "red"}])")),
              ElementsAre(Field(&FieldViolation::description,
                                HasSubstr("unknown key 'colour'; for a parameter of your own write "
                                          "params.colour; known: engine, model"))));
  EXPECT_THAT(Wrong(Small(R"("baseline": {"rank": 1})")),
              Only("baseline.rank", "unknown key 'rank'; did you mean 'ranks'?"));
}

TEST(StudyViolations, WrongTypes) {
  EXPECT_THAT(WrongFixed(R"("epochs": "two")"),
              Only("fixed.epochs", "epochs must be a whole number, not 'two'"));
  EXPECT_THAT(WrongFixed(R"("epochs": 1.5)"), Only("fixed.epochs", "epochs must be a whole number, not 1.5"));
  EXPECT_THAT(WrongFixed(R"("momentum": true)"),
              Only("fixed.momentum", "momentum must be a number, not true"));
  EXPECT_THAT(WrongFixed(R"("augment": "yes")"),
              Only("fixed.augment", "augment must be true or false, not 'yes'"));
  EXPECT_THAT(WrongFixed(R"("precision": 16)"), Only("fixed.precision", "precision must be text, not 16"));
  EXPECT_THAT(WrongFixed(R"("backend": ["mpi"])"), Only("fixed.backend", "backend must be text, not a list"));
  EXPECT_THAT(WrongFixed(R"("backend": {"a": 1})"),
              Only("fixed.backend", "backend must be text, not a mapping"));
  EXPECT_THAT(WrongFixed(R"("backend": null)"), Only("fixed.backend", "backend must be text, not nothing"));
  EXPECT_THAT(WrongFixed(R"("command": "python3 a.py")"),
              Only("fixed.command", "command must be a list of texts, not 'python3 a.py'"));
  EXPECT_THAT(WrongFixed(R"("command": [])"),
              Only("fixed.command", "command must start with the name of a program"));
}

TEST(StudyViolations, MilestonesOfTheLearningRate) {
  const std::string form =
      "lr_milestones must be a text with epochs greater than 0 in ascending order without spaces, such as "
      "\"30,60,80\", not ";
  const std::string step = R"("epochs": 90, "lr_schedule": "step", "lr_milestones": )";
  EXPECT_TRUE(ExpandStudy(Small("", R"("ranks": 1, )" + step + R"("30,60,80")")).ok());
  EXPECT_THAT(WrongFixed(step + R"("30, 60, 80")"), Only("fixed.lr_milestones", form + "'30, 60, 80'"));
  EXPECT_THAT(WrongFixed(step + "[30, 60, 80]"), Only("fixed.lr_milestones", form + "a list"));
  EXPECT_THAT(WrongFixed(step + "30"), Only("fixed.lr_milestones", form + "30"));
  EXPECT_TRUE(ExpandStudy(Small("", R"("ranks": 1, )" + step + "\"\"")).ok()) << "the default";
  EXPECT_THAT(WrongFixed(R"("epochs": 90, "lr_milestones": "30,60,80")"),
              Only("fixed.lr_milestones",
                   "lr_milestones is for lr_schedule step, not constant; set lr_schedule: step, or remove "
                   "lr_milestones"));
  EXPECT_THAT(WrongFixed(R"("max_steps": 100, "lr_schedule": "step", "lr_milestones": "30,60,80")"),
              Only("fixed.lr_milestones",
                   "the last of lr_milestones, 80, must be less than epochs, 1; set more epochs, or earlier "
                   "milestones"))
      << "a schedule refers to epochs, of which the default is 1";
}

TEST(StudyViolations, ZeroGammaWithoutAResNet) {
  EXPECT_TRUE(ExpandStudy(Small("", R"("ranks": 1, "zero_gamma": true)")).ok());
  const auto wrong = [](const std::string& model) {
    return Wrong(Spec(R"({"study": "s", "fixed": {"dataset": "synthetic", "image_size": 64, "ranks": 1,
                          "zero_gamma": true, "model": ")" +
                      model + "\"}}"));
  };
  for (const char* model : {"vgg16", "mobilenet_v2"}) {
    EXPECT_THAT(wrong(model),
                Only("fixed.zero_gamma", absl::StrCat("zero_gamma is for ResNets, not for model ", model,
                                                      "; remove zero_gamma, or use for example resnet50")));
  }
}

TEST(StudyViolations, OutOfRange) {
  EXPECT_THAT(Wrong(Small("", R"("ranks": 0)")), Only("fixed.ranks", "ranks must be at least 1, not 0"));
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "epochs", "values": [1, -2]}])"),
              Only("matrix.epochs[1]", "epochs must be at least 1, not -2"));
  EXPECT_THAT(WrongFixed(R"("momentum": 1.5)"),
              Only("fixed.momentum", "momentum must be at most 1, not 1.5"));
  EXPECT_THAT(Wrong(Small("", R"("ranks": 1e30)")),
              Only("fixed.ranks", "ranks must be at most 65536, not 1e+30"));
  v1::StudySpec spec = Small();
  (*spec.mutable_fixed()->mutable_fields())["momentum"].set_number_value(
      std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Wrong(spec), Only("fixed.momentum", "momentum must be a number, not NaN"));
  (*spec.mutable_fixed()->mutable_fields())["momentum"].set_number_value(
      std::numeric_limits<double>::infinity());
  EXPECT_THAT(Wrong(spec), Only("fixed.momentum", "momentum must be at most 1, not inf"));
  (*spec.mutable_fixed()->mutable_fields())["momentum"].Clear();
  EXPECT_THAT(Wrong(spec), Only("fixed.momentum", "momentum must be a number, not nothing"));
}

TEST(StudyViolations, TextThatWouldBreakALine) {
  EXPECT_THAT(WrongFixed(R"("data_dir": "/a\nb")"),
              Only("fixed.data_dir", "data_dir has a control character: '/a?b'"));
  EXPECT_THAT(WrongFixed(R"("data_dir": "")"), Only("fixed.data_dir", "data_dir must not be empty"));
  EXPECT_THAT(WrongFixed(R"("data_dir": ")" + std::string(5000, 'x') + "\""),
              Only("fixed.data_dir", "data_dir has 5000 characters; at most 4096 are allowed"));
}

TEST(StudyViolations, RanksAreRequired) {
  EXPECT_THAT(Wrong(Small("", R"("epochs": 1)")),
              Only("matrix.ranks",
                   "ranks is not set; write for example ranks: [1, 2, 4] in matrix, or ranks: 2 in fixed"));
}

TEST(StudyViolations, AxesThatAreNone) {
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "epochs"}])"),
              Only("matrix.epochs", "epochs has no values; give at least one, or remove the axis"));
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "epochs", "values": [1, 2, 1]}])"),
              Only("matrix.epochs[2]", "epochs has the value 1 twice"));
  EXPECT_THAT(WrongWith(R"("zip": [{}])"),
              Only("zip[0]",
                   "the zip group has no axes; write for example {ranks: [1, 2], global_batch: [64, 128]}"));
  EXPECT_THAT(
      WrongWith(
          R"("zip": [{"axes": [{"key": "epochs", "values": [1, 2]}, {"key": "momentum", "values": [0.5]}]}])"),
      Only("zip[0].momentum",
           "all axes of a zip group must have the same number of values, but epochs has 2 and momentum has "
           "1"));
  EXPECT_THAT(WrongWith(R"("zip": [{"axes": [{"key": "epochs", "values": [1, 2, 1]},
                                            {"key": "momentum", "values": [0.5, 0.5, 0.5]}]}])"),
              Only("zip[0].epochs[2]", "the zip group repeats its values at index 2"));
}

TEST(StudyViolations, AKeyHasOneHome) {
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "ranks", "values": [1, 2]}])"),
              Only("matrix.ranks", "ranks is set in fixed and in matrix; keep one"));
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "epochs", "values": [1]}, {"key": "epochs", "values": [2]}])"),
              Only("matrix.epochs", "epochs is set twice in matrix; keep one"));
  EXPECT_THAT(WrongWith(R"("zip": [{"axes": [{"key": "model", "values": ["resnet20"]}]}])"),
              Only("zip[0].model", "model is set in fixed and in zip[0]; keep one"));
  EXPECT_THAT(Wrong(Small(R"("scaling": {"global_batch": 64})", R"("ranks": 1, "global_batch": 32)")),
              Only("fixed.global_batch", "global_batch is also set as scaling.global_batch; keep one"));
  EXPECT_THAT(Wrong(Small(R"("lr": {"base": 0.1}, "matrix": [{"key": "learning_rate", "values": [0.1]}])")),
              Only("matrix.learning_rate", "learning_rate is also set as lr.base; keep one"));
  EXPECT_THAT(Wrong(Small(R"("resources": {"cpus_per_rank": 2})", R"("ranks": 1, "cpus_per_rank": 2)")),
              Only("fixed.cpus_per_rank", "cpus_per_rank is also set as resources.cpus_per_rank; keep one"));
}

TEST(StudyViolations, StrongScalingDividesEvenly) {
  EXPECT_THAT(
      Wrong(Small(R"("matrix": [{"key": "ranks", "values": [1, 8]},
                                        {"key": "precision", "values": ["fp32", "amp-bf16"]}],
                             "scaling": {"mode": "STRONG", "global_batch": 100})",
                  R"("epochs": 1)")),
      Only("scaling.global_batch",
           "global_batch 100 does not divide evenly over 8 ranks; the nearest that do are 96 and 104"))
      << "once, however many cells have it";
  EXPECT_THAT(Wrong(Small(R"("scaling": {"global_batch": 3})", R"("ranks": 8)")),
              Only("scaling.global_batch",
                   "global_batch 3 does not divide evenly over 8 ranks; the nearest that does is 8"));
  EXPECT_THAT(Wrong(Small(R"("matrix": [{"key": "global_batch", "values": [64, 65]}])", R"("ranks": 2)")),
              Only("matrix.global_batch[1]",
                   "global_batch 65 does not divide evenly over 2 ranks; the nearest that do are 64 and 66"));
  EXPECT_THAT(
      Wrong(Small("", R"("ranks": 3)")),
      Only("scaling.global_batch",
           "global_batch 128 does not divide evenly over 3 ranks; the nearest that do are 126 and 129"))
      << "the default batch too";
}

TEST(StudyViolations, OwnProgramsThatNameNoBatchRunOnAnyNumberOfRanks) {
  const auto custom = [](const std::string& word, const std::string& more) {
    return Spec(R"({"study": "s", "fixed": {"ranks": 3, "engine": "custom", "command": ["run", ")" + word +
                R"("]})" + more + "}");
  };
  EXPECT_TRUE(ExpandStudy(custom("--ranks={ranks}", "")).ok());
  EXPECT_THAT(
      Wrong(custom("--batch={batch_per_rank}", "")),
      Only("scaling.global_batch",
           "global_batch 128 does not divide evenly over 3 ranks; the nearest that do are 126 and 129"));
  const auto axis = [](const std::string& word) {
    return Spec(R"({"study": "s", "fixed": {"ranks": 3, "engine": "custom"}, "matrix": [
        {"key": "command", "values": [["run", "x"], ["run", ")" +
                word + R"("]]}]})");
  };
  EXPECT_TRUE(ExpandStudy(axis("--ranks={ranks}")).ok());
  EXPECT_THAT(
      Wrong(axis("--batch={batch_per_rank}")),
      Only("scaling.global_batch",
           "global_batch 128 does not divide evenly over 3 ranks; the nearest that do are 126 and 129"))
      << "a command that is an axis";
  EXPECT_THAT(Wrong(custom("x", R"(, "scaling": {"global_batch": 64})")),
              Only("scaling.global_batch",
                   "global_batch 64 does not divide evenly over 3 ranks; the nearest that do are 63 and 66"));
}

TEST(StudyViolations, BatchesOfTheOtherMode) {
  EXPECT_THAT(WrongWith(R"("scaling": {"batch_per_rank": 32})"),
              Only("scaling.batch_per_rank",
                   "batch_per_rank is for weak scaling; write mode: weak, or global_batch"));
  EXPECT_THAT(WrongWith(R"("scaling": {"mode": "WEAK", "global_batch": 32})"),
              Only("scaling.global_batch",
                   "global_batch is for strong scaling; write batch_per_rank, or mode: strong"));
  EXPECT_THAT(WrongFixed(R"("batch_per_rank": 32)"),
              Only("fixed.batch_per_rank", "batch_per_rank is for weak scaling; add scaling: {mode: weak}"));
  EXPECT_THAT(
      Wrong(Small(R"("scaling": {"mode": "WEAK", "batch_per_rank": 1000000000})", R"("ranks": 4)")),
      Only("scaling.batch_per_rank",
           "batch_per_rank 1000000000 x 4 ranks is a global batch of 4,000,000,000; at most 2,147,483,647 is "
           "possible"));
}

TEST(StudyViolations, Notifications) {
  EXPECT_TRUE(ExpandStudy(Small(R"("notify": {"mail": "ada@uni.example", "on": ["END"]})")).ok());
  EXPECT_TRUE(ExpandStudy(Small(R"("notify": {"webhook": "https://chat.example:8443/x?y=1"})")).ok());
  EXPECT_THAT(WrongWith(R"("notify": {})"),
              Only("notify", "notify needs mail, webhook or command, for example {mail: ada@uni.example}"));
  for (const char* mail : {"ada", "@uni.example", "ada@", "-v@uni.example", "ada@uni.example, eve@x.y",
                           "a b@c.d", "a@b\\nBcc: c@d", "ada@uni@example", "ada@[10.0.0.1]"}) {
    EXPECT_THAT(WrongWith(absl::StrCat(R"("notify": {"mail": ")", mail, R"("})")),
                ElementsAre(Field(&FieldViolation::field, "notify.mail")))
        << mail;
  }
  for (const char* url :
       {"ftp://x/", "https://", "https:///x", "chat.example", "https://x/ y", "javascript:alert(1)"}) {
    EXPECT_THAT(WrongWith(absl::StrCat(R"("notify": {"webhook": ")", url, R"("})")),
                ElementsAre(Field(&FieldViolation::field, "notify.webhook")))
        << url;
  }
  EXPECT_THAT(WrongWith(R"("notify": {"mail": "a@b.c", "on": [7]})"),
              ElementsAre(Field(&FieldViolation::field, "notify.on[0]")));
}

TEST(StudyViolations, Sections) {
  EXPECT_THAT(WrongWith(R"("repeats": -3)"), Only("repeats", "repeats must be at least 1, not -3"));
  EXPECT_THAT(WrongWith(R"("seed": "9223372036854775807")"),
              Only("seed", "seed is too large: seed + repeat must fit into 64 bits"));
  EXPECT_THAT(WrongWith(R"("seed": "9223372036854775800", "adaptive_repeats": {"half_width": 0.02})"),
              Only("seed", "seed is too large: seed + repeat must fit into 64 bits"));
  EXPECT_THAT(WrongWith(R"("lr": {"base": -0.1})"), Only("lr.base", "base must be at least 1e-12, not -0.1"));
  EXPECT_THAT(WrongWith(R"("lr": {"warmup_epochs": -1})"),
              Only("lr.warmup_epochs", "warmup_epochs must be at least 0, not -1"));
  EXPECT_THAT(WrongWith(R"("measure": {"target_accuracy": 75})"),
              Only("measure.target_accuracy", "target_accuracy must be at most 1, not 75"));
  EXPECT_THAT(WrongWith(R"("measure": {"warmup_steps": -1})"),
              Only("measure.warmup_steps", "warmup_steps must be at least 0, not -1"));
  EXPECT_THAT(Wrong(Small(R"("measure": {"warmup_steps": 10})", R"("ranks": 1, "max_steps": 10)")),
              Only("measure.warmup_steps", "warmup_steps 10 must be less than the 10 steps of the run"));
  EXPECT_THAT(WrongWith(R"("resources": {"ranks_per_node": -1})"),
              Only("resources.ranks_per_node", "ranks_per_node must be at least 0, not -1"));
  EXPECT_THAT(WrongWith(R"("resources": {"time_seconds": -5})"),
              Only("resources.time", "time must be at least 0, not -5"));
  EXPECT_THAT(WrongWith(R"("resources": {"partition": "gpu\n#SBATCH"})"),
              Only("resources.partition", "partition 'gpu?#SBATCH' must be one word"));
  EXPECT_THAT(WrongWith(R"("limits": {"gpu_hours": -1})"),
              Only("limits.gpu_hours", "gpu_hours must be at least 0, not -1"));
  EXPECT_THAT(WrongWith(R"("priority": 5000)"), Only("priority", "priority must be at most 1000, not 5000"));
  EXPECT_THAT(WrongWith(R"("retry": {"max": -1})"), Only("retry.max", "max must be at least 0, not -1"));
  EXPECT_THAT(
      WrongWith(R"("retry": {"on": ["preempted", "node_fial"]})"),
      Only("retry.on[1]",
           "unknown cause 'node_fial'; did you mean 'node_fail'? known: node_fail, preempted, worker_lost, "
           "rank_killed, boot_fail, out_of_memory, timeout, trainer_error, deadline, no_finish, "
           "allocation_cancelled, launch_error"));
  EXPECT_THAT(WrongWith(R"("order": 9)"), Only("order", "unknown order 9"));
  EXPECT_THAT(WrongWith(R"("visibility": 9)"), Only("visibility", "unknown visibility 9"));
}

TEST(StudyViolations, SbatchOptions) {
  EXPECT_TRUE(
      ExpandStudy(Small(R"("slurm": {"sbatch_options": {"constraint": "a100", "mail-type": "END"}})")).ok());
  EXPECT_THAT(
      WrongWith(R"("slurm": {"sbatch_options": {"job-name": "x"}})"),
      Only(
          "slurm.sbatch_options.job-name",
          "sbatch option 'job-name' cannot be set here: the coordinator identifies its jobs by their names"));
  EXPECT_THAT(
      WrongWith(R"("slurm": {"sbatch_options": {"--constraint": "x"}})"),
      Only("slurm.sbatch_options.--constraint",
           "sbatch option '--constraint' must be the name of a long option without leading dashes, for "
           "example constraint"));
  EXPECT_THAT(
      WrongWith(R"("slurm": {"sbatch_options": {"comment": "a\nrm -rf /"}})"),
      Only("slurm.sbatch_options.comment", "sbatch option 'comment' has a control character in its value"));
}

TEST(StudyViolations, Exclude) {
  EXPECT_THAT(WrongWith(R"("exclude": [{"precision": "tf32", "ranks": 1}])"),
              Only("exclude[0]", "the entry excludes nothing: no cell has precision 'tf32' and ranks 1"));
  EXPECT_THAT(WrongWith(R"("exclude": [{"ranks": 1}])"),
              Only("exclude", "every cell is excluded (1 of 1); nothing is left to run"));
  EXPECT_THAT(WrongWith(R"("exclude": [{}])"),
              Contains(FieldViolation{"exclude[0]",
                                      "the entry has no keys and would exclude every cell; remove it"}));
  EXPECT_THAT(WrongWith(R"("exclude": [{"ranks": "one"}])"),
              Only("exclude[0].ranks", "ranks must be a whole number, not 'one'"));
  v1::StudySpec many = Small();
  for (int i = 0; i < 1001; ++i) (*many.add_exclude()->mutable_fields())["ranks"].set_number_value(2);
  EXPECT_THAT(
      Wrong(many),
      Only("exclude", "exclude has 1,001 entries; at most 1,000 are allowed: name fewer keys in each"));
}

TEST(StudyViolations, Baseline) {
  EXPECT_THAT(WrongWith(R"("baseline": {"ranks": 4})"),
              Only("baseline", "no cell has ranks 4; use values of the study, or remove baseline"));
  EXPECT_TRUE(ExpandStudy(Small(R"("baseline": {"ranks": 1})")).ok());
}

TEST(StudyViolations, WhatAnEngineNeeds) {
  EXPECT_THAT(
      Wrong(Spec(R"({"study": "s", "fixed": {"ranks": 1}})")),
      ElementsAre(
          FieldViolation{"fixed.model", "engine native/ddp needs a model, for example model: resnet20"},
          FieldViolation{"fixed.data_dir",
                         "dataset cifar10 needs data_dir, the directory that contains data_batch_1.bin"}));
  EXPECT_THAT(
      Wrong(Spec(R"({"study": "s", "fixed": {"ranks": 1, "engine": "custom"}})")),
      Only("fixed.command", "engine custom needs a command, for example command: [python3, train.py]"));
}

TEST(StudyViolations, WhatADeviceCannotDo) {
  EXPECT_THAT(WrongFixed(R"("device": "cuda")"),
              Only("fixed.device", "device cuda needs GPUs; set resources.gpus_per_rank, for example to 1"));
  EXPECT_THAT(Wrong(Small("", R"("ranks": 2, "backend": "solo")")),
              Only("fixed.backend", "backend solo is for one rank, not 2; use auto, mpi or gloo"));
  EXPECT_THAT(
      WrongFixed(R"("backend": "nccl")"),
      Only("fixed.backend", "backend nccl needs GPUs; set resources.gpus_per_rank, or use mpi or gloo"));
  EXPECT_THAT(WrongWith(R"("matrix": [{"key": "precision", "values": ["fp32", "amp-fp16"]}])"),
              Only("matrix.precision[1]",
                   "precision amp-fp16 needs GPUs; set resources.gpus_per_rank, or use fp32 or amp-bf16"));
  EXPECT_THAT(
      Wrong(
          Small(R"("resources": {"gpus_per_rank": 1})", R"("ranks": 1, "device": "cpu", "backend": "nccl")")),
      Only("fixed.backend", "backend nccl needs device cuda, not cpu; change device, or use mpi or gloo"));
  EXPECT_TRUE(
      ExpandStudy(Small(R"("resources": {"gpus_per_rank": 1})", R"("ranks": 1, "precision": "amp-fp16",
                                "device": "cuda", "backend": "nccl")"))
          .ok());
}

TEST(StudyViolations, WhatAnEngineCannotDo) {
  const std::string horovod = R"("engine": "native/horovod", "batch_norm": "sync", "ranks": )";
  EXPECT_THAT(Wrong(Small("", horovod + "2")),
              Only("fixed.batch_norm",
                   "engine native/horovod cannot run batch_norm sync; use batch_norm train, or native/ddp"));
  EXPECT_TRUE(ExpandStudy(Small("", horovod + "1")).ok()) << "one rank has nothing to bring together";
  EXPECT_THAT(
      Wrong(Small("", R"("ranks": 4, "global_batch": 8, "accumulation_steps": 3)")),
      Only("fixed.accumulation_steps", "accumulation_steps 3 must not exceed the 2 samples of a rank"));
}

TEST(StudyViolations, AnAllReduceOverMessagesNeedsABackendOfTheHost) {
  const std::string gpus = R"("resources": {"gpus_per_rank": 1})";
  const std::string ring = R"("engine": "native/horovod", "all_reduce": "ring", "ranks": 2)";
  const std::string sentence =
      "all_reduce ring waits on the host for each message, which backend nccl does on the GPU; use "
      "all_reduce "
      "library, or backend mpi or gloo";
  EXPECT_THAT(Wrong(Small(gpus, ring)), Only("fixed.all_reduce", sentence)) << "auto is nccl on GPUs";
  EXPECT_THAT(Wrong(Small(gpus, ring + R"(, "backend": "nccl")")), Only("fixed.all_reduce", sentence));
  EXPECT_TRUE(ExpandStudy(Small(gpus, ring + R"(, "backend": "mpi")")).ok());
  EXPECT_TRUE(ExpandStudy(Small("", ring)).ok());
}

TEST(StudyViolations, EverythingIsToldInTheOrderOfTheFile) {
  EXPECT_THAT(
      Wrong(Spec(R"({"study": "1", "fixed": {"model": "resnet21", "momentum": 2, "dataset": "synthetic"},
                             "matrix": [{"key": "ranks", "values": [3, 0]}], "repeats": -1, "priority": 2000})")),
      ElementsAre(Field(&FieldViolation::field, "study"), Field(&FieldViolation::field, "fixed.model"),
                  Field(&FieldViolation::field, "fixed.momentum"),
                  Field(&FieldViolation::field, "matrix.ranks[1]"),
                  Field(&FieldViolation::field, "scaling.global_batch"),
                  Field(&FieldViolation::field, "repeats"), Field(&FieldViolation::field, "priority")));
}

TEST(StudyViolations, AHostileRequestIsAnsweredInBounds) {
  v1::StudySpec spec = Small();
  auto* axis = spec.add_matrix();
  axis->set_key("momentum");
  for (int i = 0; i < 5000; ++i) axis->add_values()->set_number_value(2 + i);
  std::vector<FieldViolation> violations = Wrong(spec);
  EXPECT_EQ(violations.size(), 1001u);
  EXPECT_EQ(violations.back(), (FieldViolation{"", "and 4,000 more like these"}));
}

v1::StudySpec WithAxes(const std::vector<std::pair<std::string, int>>& axes, int repeats) {
  v1::StudySpec spec = Small();
  spec.set_repeats(repeats);
  for (const auto& [key, length] : axes) {
    auto* axis = spec.add_matrix();
    axis->set_key(key);
    for (int i = 1; i <= length; ++i) axis->add_values()->set_number_value(i);
  }
  return spec;
}

TEST(StudyTooLarge, IsToldWithItsNumbers) {
  absl::Status status = ExpandStudy(WithAxes({{"max_steps", 1000}, {"epochs", 200}}, 5)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "STUDY_TOO_LARGE");
  EXPECT_EQ(status.message(),
            "the study has 1,000,000 runs (200,000 cells x 5 repeats); at most 100,000 are allowed: reduce "
            "matrix.max_steps (1,000 values), or split it into several studies");
  EXPECT_THAT(ViolationsOf(status), ElementsAre(Field(&FieldViolation::field, "matrix.max_steps")));
}

TEST(StudyTooLarge, CanBeTheRepeats) {
  absl::Status status = ExpandStudy(WithAxes({}, 100'001)).status();
  EXPECT_EQ(
      status.message(),
      "the study has 100,001 runs (1 cells x 100,001 repeats); at most 100,000 are allowed: reduce repeats "
      "(100,001), or split it into several studies");
  EXPECT_TRUE(ExpandStudy(WithAxes({}, 100'000)).ok());
}

// The key of each cell contains these values.
TEST(StudyTooLarge, CanBeLongValuesOfAnAxis) {
  v1::StudySpec spec = WithAxes({{"max_steps", 1000}}, 1);
  auto* axis = spec.add_matrix();
  axis->set_key("command");
  for (int i = 0; i < 10; ++i) {
    axis->add_values()->mutable_list_value()->add_values()->set_string_value(
        absl::StrCat(i, std::string(1 << 20, 'x')));
  }
  const absl::Status status = ExpandStudy(spec).status();
  EXPECT_EQ(ReasonOf(status), "STUDY_TOO_LARGE");
  EXPECT_EQ(
      status.message(),
      "the values of matrix.command take 10,000 MiB in 10,000 cells; at most 64 MiB are allowed: put long "
      "texts into files and use their names");
  EXPECT_THAT(ViolationsOf(status), ElementsAre(Field(&FieldViolation::field, "matrix.command")));
}

TEST(StudyTooLarge, IsToldWithoutOverflow) {
  absl::Status status = ExpandStudy(WithAxes({{"max_steps", 4000},
                                              {"epochs", 4000},
                                              {"train_samples", 4000},
                                              {"cpus_per_rank", 4000},
                                              {"bucket_cap_mib", 4000}},
                                             2'000'000'000))
                            .status();
  EXPECT_EQ(ReasonOf(status), "STUDY_TOO_LARGE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1,000,000,000,000,000,000 runs"));
}

}  // namespace
}  // namespace scalelab
