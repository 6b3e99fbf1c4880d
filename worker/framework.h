// A framework: maps engines to the program of a rank and its rendezvous.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "catalog/engines.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

using DesiredAttempt = v1::SynchronizeResponse::DesiredAttempt;

// The program of a rank; all ranks run the same one.
struct RankProgram {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;  // added to the variables that every rank has
  Rendezvous rendezvous = Rendezvous::kNone;
  bool one_process =
      false;  // one process for all ranks, with all their cores and GPUs; SCALELAB_REPLICAS is their number
  // The study's `launcher`; empty for engines that do not have this parameter. Ranks of programs that have it get the
  // variables that torchrun sets.
  std::string launcher = {};
  std::vector<std::pair<std::string, std::string>> defaults =
      {};  // variables that are added unless the worker's environment has them
};

// Implementations are immutable, so any thread may call them.
class Framework {
 public:
  virtual ~Framework() = default;
  // Returns whether this framework runs the engine ("native/ddp").
  virtual bool Serves(absl::string_view engine) const = 0;
  // Returns the program for an attempt whose engine this framework serves. Returns FAILED_PRECONDITION if it
  // is not installed on this node, or the study lacks a required key; the message suggests a solution.
  virtual absl::StatusOr<RankProgram> ProgramOf(const DesiredAttempt& attempt) const = 0;
};

using Frameworks = std::vector<std::unique_ptr<Framework>>;

// Serves "native/*" with this project's trainer.
std::unique_ptr<Framework> NewNativeFramework(std::string trainer_program);
// Serves the engines of Python frameworks (catalog/engines.h). A rank runs the engine's adapter script in the
// directory `adapters`, with the Python of the attempt's environment. All of them take their initial weights
// from the native trainer.
std::unique_ptr<Framework> NewPythonFramework(std::string adapters, std::string trainer_program);
// Serves "custom": the study's own command.
std::unique_ptr<Framework> NewCustomFramework();

// Returns the first framework that serves the engine; UNIMPLEMENTED if none does.
absl::StatusOr<const Framework*> FrameworkOf(const Frameworks& frameworks, absl::string_view engine);

}  // namespace scalelab::worker
