// The table of engines: what each is made of, how it is started and what it supports. One row per engine. Readers: the
// checks of studies, the worker, the coordinator, the analysis and, through run_parameters.json, the tests of frameworks.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

// How the ranks of an attempt find each other, as far as the launcher is concerned.
enum class Rendezvous {
  kNone,  // no help from the launcher: through the attempt's directory, or not at all
  kMpi,   // through the MPI launcher that starts the ranks
};

// Groups of run parameters. Each row of catalog/run_parameters.def names its group, each engine the groups that it reads.
enum class ParameterGroup : unsigned {
  kCommon = 0,            // every engine
  kBuckets = 1 << 0,      // gradient buckets, as in PyTorch DDP
  kFirstBucket = 1 << 1,  // the size of the first bucket
  kFusion = 1 << 2,       // tensor fusion, as in Horovod
  kAllReduce = 1 << 3,    // the algorithm of the all-reduce
  kStep = 1 << 4,    // the shape of a step; a run of an engine that does not read it must keep the defaults
  kCustom = 1 << 5,  // a program of the user's own
  kCompression = 1 << 6,    // the form of gradients while they are communicated
  kLowRank = 1 << 7,        // PowerSGD
  kSparse = 1 << 8,         // the largest elements of a gradient
  kLocal = 1 << 9,          // steps between averages of the parameters
  kSlowMomentum = 1 << 10,  // momentum over such averages
  kCheckpoint = 1 << 12,    // checkpoints; a run of an engine that does not read it must keep the defaults
  kPipeline = 1 << 13,      // stages of a model on different ranks
  kServers = 1 << 14,       // ranks that hold parameters for others
  kReplicas = 1 << 15,      // replicas of the model in one process
  kCompile = 1 << 16,       // a compiler for the whole step
  kTensor = 1 << 17,        // layers divided among ranks
  kParts = 1 << 18,  // parts of a batch; a run of an engine that does not read it must keep the defaults
};

struct Engine {
  using Names = std::vector<absl::string_view>;

  // The program that runs a rank.
  enum class Program {
    kTrainer,  // scalelab-trainer
    kAdapter,  // Python, with a script of worker/adapters
    kCommand,  // the command of the study
  };
  enum class Gpus { kOptional, kRequired };
  // When gradients are synchronised, for engines that can be compared with each other to measure the cost of communication.
  enum class Synchronisation {
    kOverlapped,     // while backward runs
    kAfterBackward,  // a baseline: communication is not hidden
    kNever,          // a baseline: no communication
    kNotMeasured,    // there is no baseline that runs the same code
  };

  absl::string_view name;  // "framework/strategy", or "custom"
  Program program = Program::kTrainer;
  absl::string_view environment;  // name for `deploy/frameworks`; empty unless the program is an adapter
  absl::string_view script;       // file in worker/adapters; empty unless the program is an adapter
  Rendezvous rendezvous = Rendezvous::kNone;
  bool one_process = false;  // one process with a replica for each rank, all on one node
  Gpus gpus = Gpus::kOptional;
  // Supported values of the study key of that name; empty: all. Backend "auto" is always supported.
  Names backends = {};
  Names precisions = {};
  Names models = {};
  Names batch_norms = {};
  unsigned reads = 0;  // the ParameterGroups that it reads besides kCommon, or-ed
  Synchronisation synchronisation = Synchronisation::kNotMeasured;
  // Supported values of gradient_compression; empty: all. Of no meaning for an engine that does not read the key.
  Names compressions = {};
  // Why the engine never computes the same steps as one rank; see WhyDiffersByDesign.
  absl::string_view differs = "";

  bool Reads(ParameterGroup group) const {
    return group == ParameterGroup::kCommon || (reads & static_cast<unsigned>(group)) != 0;
  }
};

// All engines in the order in which users see them.
const std::vector<Engine>& Engines();
// Returns null when there is no engine of this name.
const Engine* FindEngine(absl::string_view name);
// Returns the engine that trains without communication, or with communication after backward: the baselines of
// "measure: {communication: true}".
const Engine& UnsynchronisedEngine();
const Engine& SerialEngine();
// Returns whether the engine runs scalelab-trainer, whose version and libraries then determine its speed.
bool RunsTrainer(absl::string_view engine);
// Returns whether the engine runs a program of the user's own, whose parameters nobody else interprets.
bool RunsOwnProgram(absl::string_view engine);
// Returns whether a value of gradient_compression leaves part of a gradient to the next step.
bool CompressesWithErrors(absl::string_view compression);
// Returns why a run does not compute the same steps as one rank, as the rest of "trains differently by design: ..."; empty if
// it does. `compression` is the run's value of gradient_compression, `consistency` that of consistency.
absl::string_view WhyDiffersByDesign(const Engine& engine, absl::string_view compression,
                                     absl::string_view consistency);
// Returns the names of all engines.
const std::vector<absl::string_view>& EngineNames();
// Returns the names of all environments, each once.
std::vector<absl::string_view> EnvironmentNames();

}  // namespace scalelab
