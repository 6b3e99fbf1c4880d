// Tests which settings each engine supports, and the messages for the others.
#include "catalog/engines.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "catalog/rank_variables.h"
#include "catalog/run_parameters.h"
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
using testing::SizeIs;

// A study with one cell of this engine on 2 ranks.
v1::StudySpec On(const std::string& engine, const std::string& fixed = "", const std::string& more = "") {
  return Small(more, absl::StrCat(R"("ranks": 2, "engine": ")", engine, "\"", fixed));
}

TEST(Engines, EachHasARowOfItsOwn) {
  std::set<absl::string_view> names, scripts;
  for (const Engine& engine : Engines()) {
    EXPECT_TRUE(names.insert(engine.name).second) << engine.name;
    EXPECT_EQ(engine.program == Engine::Program::kAdapter, !engine.environment.empty()) << engine.name;
    if (engine.program == Engine::Program::kAdapter) {
      EXPECT_TRUE(scripts.insert(engine.script).second) << engine.script;
    }
    EXPECT_EQ(FindEngine(engine.name), &engine);
  }
  EXPECT_EQ(FindEngine("pytorch"), nullptr);
  EXPECT_THAT(EnvironmentNames(),
              ElementsAre("pytorch", "pytorch2", "tensorflow", "mxnet", "keras-tensorflow", "keras-jax"));
}

// Checks that study keys allow every value in the table of engines; otherwise a study could not select the
// value. Models are not checked, because they may be added later.
TEST(Engines, TakeWordsOfTheStudyKeys) {
  for (const Engine& engine : Engines()) {
    const auto check = [&](absl::string_view key, const Engine::Names& names) {
      const auto& choices = FindStudyKey(key)->choices;
      for (absl::string_view name : names)
        EXPECT_NE(std::find(choices.begin(), choices.end(), name), choices.end())
            << engine.name << " " << name;
    };
    check("backend", engine.backends);
    check("precision", engine.precisions);
    check("batch_norm", engine.batch_norms);
    check("gradient_compression", engine.compressions);
  }
}

TEST(StudyEngines, EveryEngineButTheOneThatNeedsGpusTakesTheSimplestCell) {
  for (absl::string_view engine : EngineNames()) {
    const std::string needed = engine == "custom"             ? R"(, "command": ["true"])"
                               : engine == "pytorch/pipeline" ? R"(, "accumulation_steps": 2)"
                                                              : "";
    const auto study = ExpandStudy(On(std::string(engine), needed));
    if (engine == "native/data-parallel") {
      EXPECT_THAT(
          ViolationsOf(study.status()),
          Only("fixed.ranks",
               "engine native/data-parallel is one process, not 2; use ranks 1 and set replicas, or use "
               "native/ddp"));
    } else if (engine == "pytorch/dp") {
      EXPECT_THAT(ViolationsOf(study.status()),
                  Only("fixed.engine",
                       "engine pytorch/dp needs GPUs; set resources.gpus_per_rank, for example to 1, or use "
                       "pytorch/ddp"));
    } else {
      EXPECT_TRUE(study.ok()) << engine << ": " << study.status();
    }
  }
  EXPECT_TRUE(ExpandStudy(On("pytorch/dp", "", R"("resources": {"gpus_per_rank": 1})")).ok());
}

TEST(StudyEngines, AnEngineThatTrainsOnCpusOnlyIsRefusedWithGpus) {
  const std::string gpus = R"("resources": {"gpus_per_rank": 1})";
  for (const std::string engine : {"horovod/mxnet", "mxnet/kvstore"}) {
    const auto refused = Only("fixed.engine", absl::StrCat("engine ", engine,
                                                           " trains on CPUs only; remove "
                                                           "resources.gpus_per_rank, set device to cpu, or "
                                                           "use another engine"));
    EXPECT_THAT(Wrong(On(engine, "", gpus)), refused);
    EXPECT_THAT(Wrong(On(engine, R"(, "gpus_per_rank": 1)")), refused);
    EXPECT_THAT(Wrong(On(engine, R"(, "device": "cuda")")), refused);
    EXPECT_TRUE(ExpandStudy(On(engine, R"(, "device": "cpu")", gpus)).ok());
  }
  EXPECT_THAT(
      Wrong(Small(R"("matrix": [{"key": "engine", "values": ["pytorch/ddp", "mxnet/kvstore"]}])",
                  R"("ranks": 1, "gpus_per_rank": 1)")),
      Only("matrix.engine[1]",
           "engine mxnet/kvstore trains on CPUs only; remove resources.gpus_per_rank, set device to cpu, or "
           "use another engine"));
}

TEST(StudyEngines, ABackendThatAnEngineDoesNotTake) {
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "backend": "mpi")")),
              Only("fixed.backend", "engine pytorch/ddp cannot use backend mpi; use gloo or auto"));
  EXPECT_THAT(Wrong(On("horovod/pytorch", R"(, "backend": "gloo")")),
              Only("fixed.backend", "engine horovod/pytorch cannot use backend gloo; use mpi or auto"));
  EXPECT_THAT(Wrong(On("mxnet/kvstore", R"(, "backend": "gloo")")),
              Only("fixed.backend", "engine mxnet/kvstore cannot use backend gloo; use auto"));
  EXPECT_THAT(Wrong(On("horovod/mxnet", R"(, "backend": "nccl")")),
              Only("fixed.backend", "engine horovod/mxnet cannot use backend nccl; use mpi or auto"));
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "backend": "solo")")),
              Only("fixed.backend", "engine pytorch/ddp cannot use backend solo; use gloo or auto"));
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "backend": "mpi")", R"("resources": {"gpus_per_rank": 1})")),
              Only("fixed.backend", "engine pytorch/ddp cannot use backend mpi; use nccl or auto"));
  EXPECT_THAT(Wrong(On("tensorflow/mirrored", R"(, "backend": "nccl")")),
              Only("fixed.backend", "backend nccl needs GPUs; set resources.gpus_per_rank, or use auto"));
  EXPECT_TRUE(ExpandStudy(On("keras/jax", R"(, "backend": "gloo")")).ok());
}

TEST(StudyEngines, WhatAnEngineDoesNotHave) {
  EXPECT_THAT(
      Wrong(On("mxnet/kvstore", R"(, "precision": "tf32")")),
      Only("fixed.precision",
           "engine mxnet/kvstore does not have precision tf32; use fp32 (it has fp32, amp-bf16), or a "
           "native engine"));
  v1::StudySpec spec = On("mxnet/kvstore");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet34");
  EXPECT_THAT(Wrong(spec), Only("fixed.model",
                                "engine mxnet/kvstore does not have model resnet34; use resnet32 (it has "
                                "resnet8, resnet20, resnet32, "
                                "resnet44, resnet56, resnet50), or a native engine"));
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "accumulation_steps": 2)")),
              Only("fixed.accumulation_steps",
                   "engine pytorch/ddp does not have accumulation_steps 2; use 1, or a native engine"));
  EXPECT_THAT(Wrong(On("horovod/pytorch", R"(, "all_reduce": "ring")")),
              Only("fixed.all_reduce",
                   "engine horovod/pytorch does not have all_reduce ring; use library, or a native engine"));
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "batch_norm": "eval")")),
              Only("fixed.batch_norm",
                   "engine pytorch/ddp cannot run batch_norm eval; use train, or a native engine"));
}

TEST(StudyEngines, CoresAndNotVariablesSetTheNumberOfThreads) {
  const auto sentence = [](absl::string_view engine, absl::string_view variable) {
    return absl::StrCat(
        "engine ", engine, " ignores ", variable,
        ", because cpus_per_rank is the number of threads of a rank; set cpus_per_rank, which "
        "may be an axis, and remove ",
        variable, " from env");
  };
  for (const std::string engine :
       {"native/ddp", "native/horovod", "pytorch/ddp", "horovod/tensorflow", "keras/jax"}) {
    EXPECT_THAT(Wrong(On(engine, R"(, "env.OMP_NUM_THREADS": "2")")),
                Only("fixed.env.OMP_NUM_THREADS", sentence(engine, "OMP_NUM_THREADS")));
  }
  EXPECT_THAT(
      Wrong(On("native/ddp", "", R"("matrix": [{"key": "env.MKL_NUM_THREADS", "values": ["1", "2"]}])")),
      ElementsAre(
          FieldViolation{"matrix.env.MKL_NUM_THREADS[0]", sentence("native/ddp", "MKL_NUM_THREADS")},
          FieldViolation{"matrix.env.MKL_NUM_THREADS[1]", sentence("native/ddp", "MKL_NUM_THREADS")}));
  EXPECT_THAT(
      Wrong(On("keras/tensorflow", R"(, "env.TF_NUM_INTRAOP_THREADS": "2")")),
      Only("fixed.env.TF_NUM_INTRAOP_THREADS", sentence("keras/tensorflow", "TF_NUM_INTRAOP_THREADS")));
  EXPECT_TRUE(ExpandStudy(On("mxnet/kvstore", R"(, "env.OMP_NUM_THREADS": "2")")).ok());
  EXPECT_TRUE(ExpandStudy(On("native/ddp", R"(, "env.OMP_PROC_BIND": "true")")).ok());
  EXPECT_TRUE(ExpandStudy(Spec(R"({"study": "s", "fixed": {"engine": "custom", "ranks": 1, "command": ["./a"],
                           "env.OMP_NUM_THREADS": "2"}})"))
                  .ok());
}

TEST(StudyEngines, AVariableThatOnlySomeEnginesUseNeedsAStudyOfTheirs) {
  EXPECT_THAT(
      Wrong(Small(
          R"("matrix": [{"key": "engine", "values": ["native/ddp", "mxnet/kvstore", "horovod/mxnet"]}])",
          R"("ranks": 1, "env.OMP_NUM_THREADS": "2")")),
      Only("fixed.env.OMP_NUM_THREADS",
           "engine native/ddp ignores OMP_NUM_THREADS, because cpus_per_rank is the number of threads of a "
           "rank; set cpus_per_rank, which may be an axis, and remove OMP_NUM_THREADS from env; or submit "
           "mxnet/kvstore and horovod/mxnet, which use OMP_NUM_THREADS, in a separate study"));
}

TEST(StudyEngines, VariablesThatAnEngineSetsItselfAreRefused) {
  for (const EngineVariable& variable : EngineVariables()) {
    ASSERT_FALSE(variable.engines.empty()) << variable.key;
    for (const absl::string_view name : variable.engines) {
      const Engine* engine = FindEngine(name);
      ASSERT_NE(engine, nullptr) << name;
      const std::string setting = absl::StrCat(", \"", variable.key, "\": \"1\"");
      const std::string launcher =
          variable.launcher.empty() ? "" : absl::StrCat(R"(, "launcher": ")", variable.launcher, "\"");
      const std::string needed = name == "custom"             ? R"(, "command": ["./a"])"
                                 : name == "pytorch/pipeline" ? R"(, "accumulation_steps": 2)"
                                                              : "";
      const std::string gpus =
          engine->gpus == Engine::Gpus::kRequired ? R"("resources": {"gpus_per_rank": 1})" : "";
      const std::vector<FieldViolation> wrong =
          Wrong(On(std::string(name), absl::StrCat(setting, launcher, needed), gpus));
      ASSERT_THAT(wrong, SizeIs(1)) << name << " " << variable.key;
      EXPECT_EQ(wrong[0].field, absl::StrCat("fixed.", variable.key));
      EXPECT_THAT(wrong[0].description, HasSubstr(absl::StrCat("engine ", name)));
    }
  }
  EXPECT_THAT(Wrong(On("keras/jax", R"(, "env.KERAS_BACKEND": "torch")")),
              Only("fixed.env.KERAS_BACKEND",
                   "engine keras/jax sets KERAS_BACKEND itself; choose engine keras/tensorflow, keras/jax or "
                   "keras/pytorch, and remove KERAS_BACKEND from env"));
  EXPECT_THAT(
      Wrong(On("custom", R"(, "command": ["./a"], "launcher": "torchrun")",
               R"("matrix": [{"key": "env.PET_MAX_RESTARTS", "values": ["1", "2"]}])")),
      Contains(FieldViolation{"matrix.env.PET_MAX_RESTARTS[1]",
                              "engine custom with launcher torchrun sets PET_MAX_RESTARTS itself; set "
                              "retry.max, and remove PET_MAX_RESTARTS from env"}));
  // Other engines keep the value of the study.
  EXPECT_TRUE(ExpandStudy(On("pytorch/ddp", R"(, "env.TF_CONFIG": "{}")")).ok());
  EXPECT_TRUE(ExpandStudy(On("custom", R"(, "env.TF_CONFIG": "{}", "command": ["./a"])")).ok());
  EXPECT_TRUE(
      ExpandStudy(On("custom", R"(, "env.PET_NNODES": "1", "launcher": "plain", "command": ["./a"])")).ok());
}

TEST(StudyEngines, ModelsAreDividedIntoStagesThatDivideTheRanks) {
  EXPECT_TRUE(ExpandStudy(On("native/pipeline", R"(, "pipeline_stages": 2, "accumulation_steps": 4)")).ok());
  EXPECT_TRUE(ExpandStudy(Small("", R"("ranks": 1, "engine": "native/pipeline", "pipeline_stages": 2)")).ok())
      << "one rank is the baseline";
  EXPECT_THAT(Wrong(On("native/pipeline", R"(, "pipeline_stages": 3)")),
              Only("fixed.pipeline_stages",
                   "pipeline_stages 3 does not divide the 2 ranks; use a divisor of the number of ranks"));
  EXPECT_THAT(Wrong(On("native/pipeline", R"(, "batch_norm": "sync")")),
              Only("fixed.batch_norm",
                   "engine native/pipeline cannot run batch_norm sync; use batch_norm train, or native/ddp"));
  v1::StudySpec spec = On("native/pipeline");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("vgg16");
  EXPECT_THAT(Wrong(spec),
              Only("fixed.model",
                   "engine native/pipeline does not have model vgg16; use resnet8, resnet20, resnet32, "
                   "resnet44, resnet56, "
                   "resnet18, resnet34, resnet50, resnet101, resnet152, gpt-nano, gpt-small, or native/ddp"));
}

TEST(StudyEngines, PipelinesOfPytorchNeedEqualPartsAndNoFewerThanStages) {
  EXPECT_TRUE(ExpandStudy(On("pytorch/pipeline", R"(, "accumulation_steps": 4)")).ok());
  EXPECT_TRUE(ExpandStudy(On("pytorch/pipeline", R"(, "pipeline_schedule": "gpipe")")).ok());
  EXPECT_TRUE(ExpandStudy(Small("", R"("ranks": 1, "engine": "pytorch/pipeline")")).ok())
      << "one rank is the baseline";
  EXPECT_THAT(
      Wrong(On("pytorch/pipeline")),
      Only("fixed.accumulation_steps",
           "accumulation_steps 1 is less than the 2 stages, which engine pytorch/pipeline cannot run "
           "with pipeline_schedule 1f1b; use at least 2, pipeline_schedule gpipe, or native/pipeline"));
  EXPECT_THAT(Wrong(On("pytorch/pipeline", R"(, "accumulation_steps": 3, "global_batch": 64)")),
              Only("fixed.accumulation_steps",
                   "accumulation_steps 3 does not divide the 64 samples of a pipeline, which engine "
                   "pytorch/pipeline needs; use a divisor, or native/pipeline"));
  EXPECT_THAT(Wrong(On("pytorch/pipeline", R"(, "accumulation_steps": 2, "last_batch": "keep")")),
              Only("fixed.last_batch",
                   "engine pytorch/pipeline does not have last_batch keep; use drop, or a native engine"));
}

// The last batch has 3 samples, too few for four ranks.
TEST(StudyEngines, ParameterServersNeedNoSamplesOfTheLastBatch) {
  const auto wrong = [](const std::string& engine) {
    return Wrong(
        Small(R"("scaling": {"global_batch": 8}, "measure": {"warmup_steps": 99})",
              R"("ranks": 4, "server_ranks": 2, "train_samples": 35, "last_batch": "keep", "epochs": 1,
                          "engine": ")" +
                  engine + "\""));
  };
  EXPECT_THAT(wrong("native/ddp"),
              Only("measure.warmup_steps", "warmup_steps 99 must be less than the 4 steps of the run"));
  EXPECT_THAT(wrong("native/parameter-server"),
              Only("measure.warmup_steps", "warmup_steps 99 must be less than the 5 steps of the run"));
}

TEST(StudyEngines, ErrorsOfPowerSgdAreNotScaled) {
  EXPECT_THAT(
      Wrong(On("pytorch/powersgd", R"(, "precision": "amp-fp16")", R"("resources": {"gpus_per_rank": 1})")),
      Contains(Field(&FieldViolation::field, "fixed.precision")));
  EXPECT_TRUE(ExpandStudy(On("pytorch/powersgd", R"(, "precision": "amp-bf16")")).ok());
}

TEST(StudyEngines, PytorchRecordsGraphsOnlyOfACompiledModel) {
  EXPECT_TRUE(ExpandStudy(On("native/ddp", R"(, "cuda_graph": true)")).ok());
  EXPECT_TRUE(ExpandStudy(On("pytorch/ddp", R"(, "cuda_graph": true, "compile": true)")).ok());
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "cuda_graph": true)")),
              Only("fixed.cuda_graph",
                   "engine pytorch/ddp records only what torch.compile makes; add compile: true, or remove "
                   "cuda_graph"));
  EXPECT_THAT(Wrong(On("pytorch/zero1", R"(, "cuda_graph": true, "compile": true)")),
              Only("fixed.cuda_graph",
                   "engine pytorch/zero1 does not have cuda_graph true; use false, or a native engine"));
}

TEST(StudyEngines, LayersAreDividedAmongRanksThatDivideTheRun) {
  EXPECT_TRUE(ExpandStudy(On("native/tensor", R"(, "tensor_ranks": 2)")).ok());
  EXPECT_TRUE(ExpandStudy(Small("", R"("ranks": 1, "engine": "native/tensor", "tensor_ranks": 2)")).ok())
      << "one rank is the baseline";
  EXPECT_THAT(Wrong(On("native/tensor", R"(, "tensor_ranks": 3)")),
              Only("fixed.tensor_ranks",
                   "tensor_ranks 3 does not divide the 2 ranks; use a divisor of the number of ranks"));
  EXPECT_THAT(Wrong(On("native/tensor", R"(, "batch_norm": "sync")")),
              Only("fixed.batch_norm",
                   "engine native/tensor cannot run batch_norm sync; use batch_norm train, or native/ddp"));
  v1::StudySpec spec = On("native/tensor");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("vgg16");
  EXPECT_THAT(Wrong(spec),
              Only("fixed.model",
                   "engine native/tensor does not have model vgg16; use resnet8, resnet20, resnet32, "
                   "resnet44, resnet56, "
                   "resnet18, resnet34, resnet50, resnet101, resnet152, gpt-nano, gpt-small, or native/ddp"));
}

TEST(StudyEngines, LayersHaveAPartForEachRank) {
  const auto on = [](int ranks, const std::string& fixed) {
    return Spec(absl::StrCat(
        R"({"study": "s", "scaling": {"mode": "STRONG", "global_batch": 96}, "fixed": {"engine": "native/tensor", "ranks": )",
        ranks, ", ", fixed, "}}"));
  };
  const std::string resnet = R"("model": "resnet20", "dataset": "synthetic")",
                    gpt = R"("model": "gpt-nano", "dataset": "synthetic-tokens")";
  EXPECT_TRUE(ExpandStudy(on(16, resnet)).ok());
  EXPECT_THAT(Wrong(on(3, resnet)),
              Only("fixed.ranks",
                   "3 ranks cannot divide the layers of resnet20, some of which have 16 channels; use "
                   "tensor_ranks that divide 16"));
  EXPECT_TRUE(ExpandStudy(on(3, gpt)).ok());
  EXPECT_TRUE(ExpandStudy(on(4, gpt + R"(, "tensor_ranks": 2)")).ok());
  EXPECT_THAT(Wrong(on(4, gpt)), Only("fixed.ranks",
                                      "4 ranks cannot divide the layers of gpt-nano, which have 3 heads; use "
                                      "tensor_ranks of at most 3"));
  EXPECT_THAT(Wrong(on(12, gpt + R"(, "tensor_ranks": 6)")),
              Only("fixed.tensor_ranks",
                   "6 ranks cannot divide the layers of gpt-nano, which have 3 heads; use tensor_ranks of at "
                   "most 3"));
}

TEST(StudyEngines, AFormOfGradientsThatAnEngineDoesNotHave) {
  for (const char* form : {"fp16", "bf16", "powersgd", "top-k", "onebit"}) {
    for (const char* engine : {"native/ddp", "native/zero1"}) {
      EXPECT_TRUE(ExpandStudy(On(engine, absl::StrCat(R"(, "gradient_compression": ")", form, "\""))).ok())
          << engine << " " << form;
    }
  }
  EXPECT_THAT(Wrong(On("native/zero2", R"(, "gradient_compression": "top-k")")),
              Only("fixed.gradient_compression",
                   "engine native/zero2 does not have gradient_compression top-k; use none, fp16, bf16, or "
                   "native/ddp"));
  EXPECT_THAT(Wrong(On("horovod/pytorch", R"(, "gradient_compression": "bf16")")),
              Only("fixed.gradient_compression",
                   "engine horovod/pytorch does not have gradient_compression bf16; use none, fp16, or "
                   "native/ddp"));
  EXPECT_THAT(Wrong(On("native/ddp", R"(, "gradient_compression": "onebit", "precision": "amp-fp16")",
                       R"("resources": {"gpus_per_rank": 1})")),
              Only("fixed.gradient_compression",
                   "gradient_compression onebit cannot run with precision amp-fp16, whose loss scale changes "
                   "between steps; use amp-bf16, or gradient_compression fp16"));
  EXPECT_THAT(Wrong(On("pytorch/ddp", R"(, "top_k_ratio": 0.1)")),
              Only("fixed.top_k_ratio",
                   "engine pytorch/ddp does not have top_k_ratio 0.1; use 0.01, or a native engine"));
}

TEST(StudyEngines, NativeEnginesHaveCheckpoints) {
  for (const char* engine :
       {"native/ddp", "native/horovod", "native/serial", "native/none", "native/zero1", "native/zero2",
        "native/zero3", "native/local-sgd", "native/pipeline", "native/tensor", "native/parameter-server"})
    EXPECT_TRUE(ExpandStudy(On(engine, R"(, "checkpoint_every_steps": 5)")).ok()) << engine;
}

TEST(StudyEngines, AllAdaptersButDataParallelHaveCheckpoints) {
  for (const Engine& engine : Engines()) {
    if (engine.program != Engine::Program::kAdapter || engine.name == "pytorch/dp") continue;
    const std::string parts = engine.name == "pytorch/pipeline" ? R"(, "accumulation_steps": 2)" : "";
    const std::string fixed = parts + R"(, "checkpoint_every_minutes": 5)";
    EXPECT_TRUE(ExpandStudy(On(std::string(engine.name), fixed)).ok()) << engine.name;
  }
  EXPECT_THAT(
      Wrong(On("pytorch/dp", R"(, "checkpoint_every_steps": 5)", R"("resources": {"gpus_per_rank": 1})")),
      Only("fixed.checkpoint_every_steps",
           "engine pytorch/dp does not have checkpoint_every_steps 5; use 0, or a native engine"));
}

TEST(Engines, ThatDifferByDesignHaveAReason) {
  const auto why = [](absl::string_view name, absl::string_view form, absl::string_view consistency = "") {
    return std::string(WhyDiffersByDesign(*FindEngine(name), form, consistency));
  };
  EXPECT_EQ(why("native/ddp", "none"), "");
  EXPECT_EQ(why("native/ddp", "fp16"), "");
  EXPECT_EQ(why("native/zero2", "none"), "");
  EXPECT_EQ(why("pytorch/ddp", "top-k"), "") << "the engine does not read the key";
  EXPECT_THAT(why("native/ddp", "top-k"), HasSubstr("compresses gradients"));
  EXPECT_THAT(why("native/local-sgd", "none"), HasSubstr("averages parameters"));
  EXPECT_THAT(why("pytorch/powersgd", "none"), HasSubstr("low rank"));
  EXPECT_EQ(why("native/parameter-server", "", "sync"), "");
  EXPECT_THAT(why("native/parameter-server", "", "async"), HasSubstr("older"));
  EXPECT_THAT(why("native/parameter-server", "", "ssp"), HasSubstr("older"));
  EXPECT_EQ(why("native/ddp", "none", "ssp"), "") << "the engine does not read the key";
}

TEST(StudyEngines, ServersLeaveARankToTrain) {
  EXPECT_TRUE(ExpandStudy(On("native/parameter-server", R"(, "consistency": "ssp", "staleness": 2)")).ok());
  EXPECT_THAT(
      Wrong(On("native/parameter-server", R"(, "server_ranks": 2)")),
      Only("fixed.server_ranks", "server_ranks 2 leaves none of the 2 ranks to train; use at most 1"));
  EXPECT_THAT(
      Wrong(On("native/parameter-server", R"(, "batch_norm": "sync")")),
      Only("fixed.batch_norm",
           "engine native/parameter-server cannot run batch_norm sync; use batch_norm train, or native/ddp"));
  EXPECT_THAT(
      Wrong(On("native/parameter-server", R"(, "precision": "amp-fp16")",
               R"("resources": {"gpus_per_rank": 1})")),
      Only("fixed.precision",
           "engine native/parameter-server does not have precision amp-fp16; use amp-bf16 (it has fp32, "
           "tf32, amp-bf16), or native/ddp"));
}

TEST(StudyEngines, ReplicasNeedAGpuEach) {
  const auto on = [](const std::string& fixed, const std::string& more) {
    return Small(more, absl::StrCat(R"("ranks": 1, "engine": "native/data-parallel")", fixed));
  };
  EXPECT_TRUE(ExpandStudy(on(R"(, "replicas": 4)", "")).ok()) << "on a CPU they are threads";
  EXPECT_TRUE(ExpandStudy(on(R"(, "replicas": 4)", R"("resources": {"gpus_per_rank": 4})")).ok());
  EXPECT_THAT(Wrong(on(R"(, "replicas": 4)", R"("resources": {"gpus_per_rank": 2})")),
              Only("fixed.gpus_per_rank", "replicas 4 need a GPU each, not 2; set gpus_per_rank to 4"));
  EXPECT_THAT(
      Wrong(on(R"(, "batch_norm": "sync")", "")),
      Only("fixed.batch_norm",
           "engine native/data-parallel cannot run batch_norm sync; use batch_norm train, or native/ddp"));
}

TEST(StudyEngines, OneProcessHasAllItsRanksOnOneNode) {
  EXPECT_THAT(Wrong(On("tensorflow/mirrored", "", R"("resources": {"ranks_per_node": 1})")),
              Only("resources.ranks_per_node",
                   "engine tensorflow/mirrored is one process, so its 2 ranks share a node; set "
                   "ranks_per_node to 2, or remove it"));
  EXPECT_TRUE(ExpandStudy(On("tensorflow/mirrored", "", R"("resources": {"ranks_per_node": 2})")).ok());
  EXPECT_TRUE(ExpandStudy(On("pytorch/ddp", "", R"("resources": {"ranks_per_node": 1})")).ok());
}

TEST(StudyEngines, CellsThatDoNotGoTogetherCanBeLeftOut) {
  const auto study = ExpandStudy(Small(R"("on_unusable": "EXCLUDE", "matrix": [
            {"key": "engine", "values": ["native/ddp", "pytorch/ddp", "mxnet/kvstore"]},
            {"key": "backend", "values": ["auto", "gloo"]}])",
                                       R"("ranks": 2)"));
  ASSERT_TRUE(study.ok()) << study.status();
  EXPECT_THAT(study->cells, SizeIs(5));
  ASSERT_THAT(study->excluded, SizeIs(1));
  EXPECT_EQ(study->excluded[0].spec.engine(), "mxnet/kvstore");
  EXPECT_THAT(study->unusable, ElementsAre(HasSubstr("cannot use backend gloo")));
}

TEST(StudyEngines, CommunicationIsMeasuredWhereThereAreRunsToCompareWith) {
  EXPECT_THAT(Wrong(On("pytorch/ddp", "", R"("measure": {"communication": true})")),
              ElementsAre(FieldViolation{"fixed.engine",
                                         "measure: {communication: true} does not support engine "
                                         "pytorch/ddp; measure native/ddp or "
                                         "native/horovod, or remove communication"}));
}

TEST(StudyEngines, AnUnknownOneIsToldWithTheNearest) {
  const auto wrong = Wrong(On("pytorch/dpd"));
  ASSERT_THAT(wrong, SizeIs(1));
  EXPECT_THAT(wrong[0].description, HasSubstr("unknown engine 'pytorch/dpd'; did you mean 'pytorch/ddp'?"));
}

TEST(StudyEngines, CompileIsForPyTorch) {
  for (const char* engine : {"pytorch/ddp", "pytorch/zero1", "pytorch/fsdp", "keras/pytorch"})
    EXPECT_TRUE(ExpandStudy(On(engine, R"(, "compile": true)")).ok()) << engine;
  for (const char* engine : {"keras/jax", "pytorch/powersgd", "horovod/pytorch"})
    EXPECT_THAT(
        Wrong(On(engine, R"(, "compile": true)")),
        Only("fixed.compile",
             absl::StrCat("engine ", engine, " does not have compile true; use false, or pytorch/ddp")));
}

}  // namespace
}  // namespace scalelab
