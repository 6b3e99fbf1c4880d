#include "worker/framework.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace scalelab::worker {
namespace {

class NativeFramework final : public Framework {
 public:
  explicit NativeFramework(std::string trainer) : trainer_(std::move(trainer)) {}

  bool Serves(absl::string_view engine) const override { return absl::StartsWith(engine, "native/"); }

  absl::StatusOr<RankProgram> ProgramOf(const v1::RunSpec& spec) const override {
    if (access(trainer_.c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("Engine ", spec.engine(), " needs the trainer, and '", trainer_,
                       "' is no program; build it (SCALELAB_TRAINER=ON) or name another with --trainer."));
    }
    // Ranks of gloo and nccl meet in the attempt's directory, whoever starts them. MPI wants its launcher on
    // Slurm even for one rank.
    const bool automatic = spec.backend().empty() || spec.backend() == "auto";
    const bool mpi = spec.backend() == "mpi" || (automatic && spec.ranks() > 1);
    return RankProgram{{trainer_}, {}, mpi ? Rendezvous::kMpi : Rendezvous::kNone};
  }

 private:
  const std::string trainer_;
};

class CustomFramework final : public Framework {
 public:
  bool Serves(absl::string_view engine) const override { return engine == "custom"; }

  absl::StatusOr<RankProgram> ProgramOf(const v1::RunSpec& spec) const override {
    if (spec.command().empty()) {
      return absl::FailedPreconditionError("Engine custom has no command; set the study's `command`.");
    }
    return RankProgram{{spec.command().begin(), spec.command().end()}, {}, Rendezvous::kNone};
  }
};

}  // namespace

std::unique_ptr<Framework> NewNativeFramework(std::string trainer_program) {
  return std::make_unique<NativeFramework>(std::move(trainer_program));
}

std::unique_ptr<Framework> NewCustomFramework() { return std::make_unique<CustomFramework>(); }

absl::StatusOr<const Framework*> FrameworkOf(const Frameworks& frameworks, absl::string_view engine) {
  for (const auto& framework : frameworks) {
    if (framework->Serves(engine)) return framework.get();
  }
  return absl::UnimplementedError(
      absl::StrCat("This worker does not know engine '", engine, "'; it runs native/* and custom."));
}

}  // namespace scalelab::worker
