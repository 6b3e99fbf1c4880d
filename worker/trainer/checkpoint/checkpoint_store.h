// Checkpoints of a run. A checkpoint is the state from which training continues. Checkpoints lie in a
// directory that all ranks and all attempts of the run share.
//
//   DIRECTORY/step-000000001200/shared.safetensors     what is equal on all ranks, written by rank 0
//                               rank-R.safetensors     what belongs to rank R
//                               manifest.json          sizes and checksums of these files; written last
//
// A checkpoint without a manifest is not complete. The first line of the manifest is the checksum of its
// other lines (durable_file.h). So a file that is truncated or changed is detected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "worker/trainer/named_tensors.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

class Communicator;

struct Checkpoint {
  int64_t step = 0;     // number of steps that it contains
  int ranks = 0;        // number of ranks that wrote it
  NamedTensors shared;  // equal on all ranks
  // If as many ranks read the checkpoint as wrote it: one element, that of this rank. Otherwise one element
  // for each rank that wrote it.
  std::vector<NamedTensors> of_ranks;
};

class CheckpointStore {
 public:
  // Keeps the newest `keep` checkpoints. `communicator` must outlive the store.
  CheckpointStore(std::string directory, int64_t keep, const TrainingSpec& spec, Communicator& communicator);

  // Writes a checkpoint and then removes the oldest ones. Only the `shared` of rank 0 is written. Returns the
  // size of the checkpoint in bytes, over all ranks. If a rank cannot write its file, prints a line to
  // standard error, removes the files of this checkpoint and returns nothing, because training can continue
  // without a checkpoint. Collective.
  std::optional<int64_t> Save(int64_t step, const NamedTensors& shared, const NamedTensors& mine);

  // Returns the newest checkpoint that is complete and undamaged, or nothing if there is none. Reports
  // damaged checkpoints on standard error and tries the next older one. A checkpoint is damaged if a file is
  // missing, has changed, or cannot be parsed. Throws TrainerError if a checkpoint belongs to a run that
  // trains something else, or cannot be read for another reason. Collective.
  std::optional<Checkpoint> LoadNewest();
  // Returns the number of damaged checkpoints that LoadNewest has found.
  int64_t damaged() const { return damaged_; }

  // Removes all checkpoints. Collective.
  void RemoveAll();

  const std::string& directory() const { return directory_; }

 private:
  Checkpoint Load(int64_t step) const;
  std::vector<int64_t> Steps(std::error_code& error) const;
  std::string PathOf(int64_t step) const;
  void RemoveOld() const;
  bool AnyFails(bool failed);

  const std::string directory_;
  const int64_t keep_;
  const std::string recipe_;  // JSON
  Communicator& communicator_;
  int64_t damaged_ = 0;
  bool directory_synced_ = false;  // on rank 0: whether directory_ survives a power failure
};

// Returns the tensor `name` of a checkpoint. Throws TrainerError if there is none.
const at::Tensor& Find(const NamedTensors& tensors, std::string_view name);
// Copies the values of `from` into the tensors of `into`, by their names. Throws TrainerError if one is
// missing or has another shape.
void Assign(const NamedTensors& from, const NamedTensors& into);

// Returns, as a JSON object, the settings that must be equal in the attempt that writes a checkpoint and the
// attempt that reads it: the engine and the parameters that determine the result of training. The numbers of
// ranks, epochs and steps may differ.
std::string RecipeOf(const TrainingSpec& spec);

}  // namespace scalelab::trainer
