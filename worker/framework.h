// What runs an engine: the command of one rank, and how its ranks find each other.
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

// One rank's program; every rank runs the same.
struct RankProgram {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;  // beside what every rank finds
  Rendezvous rendezvous = Rendezvous::kNone;
  bool one_process =
      false;  // one process for all ranks, with their cores and GPUs; SCALELAB_REPLICAS says how many
};

class Framework {
 public:
  virtual ~Framework() = default;
  // Whether engines of this name ("native/ddp") are its own.
  virtual bool Serves(absl::string_view engine) const = 0;
  // What to run, of an attempt whose engine it serves. FAILED_PRECONDITION: it is not installed here; the
  // sentence says what to try.
  virtual absl::StatusOr<RankProgram> ProgramOf(const DesiredAttempt& attempt) const = 0;
};

using Frameworks = std::vector<std::unique_ptr<Framework>>;

// "native/*": the trainer of this project.
std::unique_ptr<Framework> NewNativeFramework(std::string trainer_program);
// Engines of Python frameworks (catalog/engines.h): an adapter of the directory `adapters`, run by the Python
// of the attempt's environment. The native trainer gives all of them their initial weights.
std::unique_ptr<Framework> NewPythonFramework(std::string adapters, std::string trainer_program);
// "custom": the study's own command.
std::unique_ptr<Framework> NewCustomFramework();

// UNIMPLEMENTED when none of them serves the engine.
absl::StatusOr<const Framework*> FrameworkOf(const Frameworks& frameworks, absl::string_view engine);

}  // namespace scalelab::worker
