// Checkpoints of a run: what training needs to continue, in a directory that all ranks and all attempts of the run share.
//
//   DIRECTORY/step-000000001200/shared.safetensors     what is equal on all ranks, written by rank 0
//                               rank-R.safetensors     what belongs to rank R
//                               manifest.json          sizes and sums of these files; written last
//
// A checkpoint without a manifest is not complete. The manifest begins with a line that has its own sum, so a file that is
// cut off or changed anywhere is noticed (durable_file.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/named_tensors.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

class Communicator;

struct Checkpoint {
  int64_t step = 0;     // number of steps that it contains
  int ranks = 0;        // that wrote it
  NamedTensors shared;  // equal on all ranks
  // The element of this rank alone if as many ranks read it as wrote it, else one of each rank that wrote it.
  std::vector<NamedTensors> of_ranks;
};

class CheckpointStore {
 public:
  // Keeps the newest `keep` checkpoints. `communicator` must outlive the store.
  CheckpointStore(std::string directory, int64_t keep, const TrainingSpec& spec, Communicator& communicator);

  // Writes a checkpoint and then removes the oldest ones. `shared` is that of rank 0. Returns its size in bytes over all
  // ranks; nothing, after a line on standard error, if a rank could not write its file: training can go on without it.
  // Collective.
  std::optional<int64_t> Save(int64_t step, const NamedTensors& shared, const NamedTensors& mine);

  // Returns the newest checkpoint that is complete and undamaged, or nothing if there is none. A damaged one is reported on
  // standard error and passed over. Throws TrainerError if a checkpoint belongs to a run that trains something else.
  // Collective.
  std::optional<Checkpoint> LoadNewest();
  // Returns how many checkpoints LoadNewest has passed over.
  int64_t damaged() const { return damaged_; }

  // Removes all checkpoints. Collective.
  void RemoveAll();

  const std::string& directory() const { return directory_; }

 private:
  Checkpoint Load(int64_t step) const;
  std::vector<int64_t> Steps() const;
  std::string PathOf(int64_t step) const;
  void RemoveOld() const;
  bool AnyFails(bool failed);

  const std::string directory_;
  const int64_t keep_;
  const std::string recipe_;  // JSON
  Communicator& communicator_;
  int64_t damaged_ = 0;
};

// Returns the tensor `name` of a checkpoint. Throws TrainerError if there is none.
const at::Tensor& Find(const NamedTensors& tensors, std::string_view name);
// Copies the values of `from` into the tensors of `into`, by their names. Throws TrainerError if one is missing or has another
// shape.
void Assign(const NamedTensors& from, const NamedTensors& into);

// Returns what must be equal in an attempt that writes a checkpoint and in one that reads it, as a JSON object: the engine
// and the parameters that decide what is trained. The number of ranks, epochs and steps may differ.
std::string RecipeOf(const TrainingSpec& spec);

}  // namespace scalelab::trainer
