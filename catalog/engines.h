// The table of engines. Each row has the program of an engine, how to start it and the values that it
// supports. The checks of studies, the worker, the coordinator, the analysis and, through
// run_parameters.json, the tests of frameworks use the table.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

// The help of the launcher for the rendezvous of the ranks of an attempt.
enum class Rendezvous {
  kNone,  // the launcher does not help; ranks use the attempt's directory, or need no rendezvous
  kMpi,   // the MPI launcher connects the ranks that it starts
};

// Groups of run parameters. Each row of catalog/run_parameters.def has a group, and each engine has the
// groups that it reads.
enum class ParameterGroup : unsigned {
  kCommon = 0,            // every engine
  kBuckets = 1 << 0,      // gradient buckets, as in PyTorch DDP
  kFirstBucket = 1 << 1,  // the size of the first bucket
  kFusion = 1 << 2,       // tensor fusion, as in Horovod
  kAllReduce = 1 << 3,    // the algorithm of the all-reduce
  kStep = 1 << 4,    // the shape of a step; a run of an engine that does not read it must keep the defaults
  kCustom = 1 << 5,  // custom programs
  kCompression = 1 << 6,    // the form of gradients while they are communicated
  kLowRank = 1 << 7,        // PowerSGD
  kSparse = 1 << 8,         // the largest elements of a gradient
  kLocal = 1 << 9,          // steps between averages of the parameters
  kSlowMomentum = 1 << 10,  // momentum over such averages
  kGraph = 1 << 11,  // recording of the step; a run of an engine that does not read it must keep the defaults
  kCheckpoint = 1 << 12,  // checkpoints; a run of an engine that does not read it must keep the defaults
  kPipeline = 1 << 13,    // stages of a model on different ranks
  kServers = 1 << 14,     // ranks that hold parameters for others
  kReplicas = 1 << 15,    // replicas of the model in one process
  kCompile = 1 << 16,     // a compiler for the whole step
  kTensor = 1 << 17,      // layers divided among ranks
  kParts = 1 << 18,       // parts of a batch; a run of an engine that does not read it must keep the defaults
};

struct Engine {
  using Names = std::vector<absl::string_view>;

  // The program that runs a rank.
  enum class Program {
    kTrainer,  // scalelab-trainer
    kAdapter,  // Python, with a script of worker/adapters
    kCommand,  // the command of the study
  };
  enum class Gpus { kOptional, kRequired, kNever };
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
  unsigned reads = 0;  // bitwise OR of the ParameterGroups that it reads in addition to kCommon
  Synchronisation synchronisation = Synchronisation::kNotMeasured;
  // Supported values of gradient_compression; empty: all. Not used for an engine that does not read the key.
  Names compressions = {};
  // Why the engine never computes the same steps as one rank; see WhyDiffersByDesign.
  absl::string_view differs = "";

  bool Reads(ParameterGroup group) const {
    return group == ParameterGroup::kCommon || (reads & static_cast<unsigned>(group)) != 0;
  }
};

// All engines in the order in which users see them.
const std::vector<Engine>& Engines();
// Returns the engine with this name, or null.
const Engine* FindEngine(absl::string_view name);
// Return the engine that trains without communication, and the engine that communicates after backward. They
// are the baselines of "measure: {communication: true}".
const Engine& UnsynchronisedEngine();
const Engine& SerialEngine();
// Returns whether the engine runs scalelab-trainer, whose version and libraries then determine its speed.
bool RunsTrainer(absl::string_view engine);
// Returns whether the engine runs a custom program. Only this program interprets its parameters.
bool RunsOwnProgram(absl::string_view engine);
// Returns whether a value of gradient_compression adds a part of each gradient to the gradient of
// the next step.
bool CompressesWithErrors(absl::string_view compression);
// Returns why a run does not compute the same steps as one rank, as the end of the sentence "trains
// differently by design: ...". Returns "" if it computes the same steps. `compression` and `consistency` are
// the run's values of gradient_compression and consistency.
absl::string_view WhyDiffersByDesign(const Engine& engine, absl::string_view compression,
                                     absl::string_view consistency);
// Returns the names of all engines.
const std::vector<absl::string_view>& EngineNames();
// Returns the names of all environments, without duplicates.
std::vector<absl::string_view> EnvironmentNames();

}  // namespace scalelab
