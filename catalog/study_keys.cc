#include "catalog/study_keys.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "catalog/engines.h"
#include "catalog/models.h"

namespace scalelab {
namespace {

std::vector<absl::string_view> ModelNames() {
  std::vector<absl::string_view> names;
  for (const ModelInfo& model : Models()) names.push_back(model.name);
  return names;
}

}  // namespace

const std::vector<StudyKey>& StudyKeys() {
  using enum KeyType;
  static const auto& keys = *new std::vector<StudyKey>{
      {"engine", kString, EngineNames(), 0, 0, "framework/strategy, or custom for a program of your own"},
      {"model", kString, ModelNames(), 0, 0, "network to train"},
      {"dataset", kString, {"cifar10", "imagefolder", "synthetic"}, 0, 0, "what to train on"},
      {"data_dir", kString, {}, 0, 0, "directory of the data set, as the nodes see it"},
      {"precision",
       kString,
       {"fp32", "tf32", "amp-bf16", "amp-fp16"},
       0,
       0,
       "arithmetic of forward and backward"},
      {"backend", kString, {"auto", "solo", "mpi", "gloo", "nccl"}, 0, 0, "communicator"},
      {"device",
       kString,
       {"auto", "cpu", "cuda"},
       0,
       0,
       "where ranks compute; auto: cuda where they were given GPUs"},
      {"ranks", kInt, {}, 1, 65536, "training processes"},
      {"epochs", kInt, {}, 1, 1e6, "epochs to train"},
      {"max_steps", kInt, {}, 0, 1e12, "end after so many steps; 0: no such limit"},
      {"global_batch", kInt, {}, 1, 1 << 30, "samples in a step over all ranks (strong scaling)"},
      {"batch_per_rank", kInt, {}, 1, 1 << 30, "samples in a step on each rank (weak scaling)"},
      {"learning_rate", kDouble, {}, 1e-12, 1e6, "rate at the reference batch, in place of lr.base"},
      {"lr_schedule", kString, {"constant", "step", "cosine"}, 0, 0, "decay of the rate after warm-up"},
      {"momentum", kDouble, {}, 0, 1, "momentum of SGD"},
      {"weight_decay", kDouble, {}, 0, 1, "L2 penalty"},
      {"decay_norm", kBool, {}, 0, 0, "apply the penalty to batch normalisation and biases too"},
      {"augment", kBool, {}, 0, 0, "pad, crop and flip training images at random"},
      {"batch_norm", kString, {"train", "sync", "eval"}, 0, 0, "statistics of batch normalisation"},
      {"memory_format", kString, {"auto", "contiguous", "channels_last"}, 0, 0, "layout of images in memory"},
      {"bucket_cap_mib", kInt, {}, 1, 4096, "cap of a gradient bucket in MiB"},
      {"first_bucket_cap_mib", kInt, {}, 1, 4096, "cap of the first gradient bucket in MiB"},
      {"accumulation_steps", kInt, {}, 1, 4096, "parts of a rank's batch whose gradients are added up"},
      {"find_unused_parameters",
       kBool,
       {},
       0,
       0,
       "look for parameters without a gradient in each step (ddp)"},
      {"static_graph", kBool, {}, 0, 0, "every step uses the parameters of the first one (ddp)"},
      {"fusion_threshold_mib", kInt, {}, 0, 4096, "tensors are fused up to so many MiB (horovod); 0: never"},
      {"cycle_time_ms", kDouble, {}, 0, 1000, "time between cycles of the background thread (horovod)"},
      {"cache_capacity", kInt, {}, 0, 1 << 20, "tensors whose negotiation is remembered (horovod); 0: none"},
      {"gradient_compression", kString, {"none", "fp16"}, 0, 0, "type of gradients on the wire (horovod)"},
      {"autotune", kBool, {}, 0, 0, "search for cycle time and fusion threshold (horovod)"},
      {"stall_warning_s", kDouble, {}, 0, 1e6, "report tensors that ranks lack so long (horovod); 0: never"},
      {"timeline", kBool, {}, 0, 0, "write a timeline for Chrome's trace viewer (horovod)"},
      {"all_reduce",
       kString,
       {"library", "ring", "hierarchical"},
       0,
       0,
       "algorithm that sums gradients (horovod)"},
      {"cuda_graph", kBool, {}, 0, 0, "record the step once and replay it, on a GPU"},
      {"image_size", kInt, {}, 8, 1024, "side in pixels that images of synthetic and imagefolder are given"},
      {"classes", kInt, {}, 2, 1000, "classes of synthetic images"},
      {"last_batch", kString, {"drop", "keep"}, 0, 0, "samples of an epoch that do not fill a global batch"},
      {"save_parameters", kBool, {}, 0, 0, "write the trained parameters into the attempt directory"},
      {"train_samples", kInt, {}, 0, 1e12, "training samples to use; 0: all"},
      {"cpus_per_rank", kInt, {}, 1, 4096, "CPU cores of each rank"},
      {"gpus_per_rank", kInt, {}, 0, 64, "GPUs of each rank"},
      {"command", kStringList, {}, 0, 0, "program and arguments of engine custom"},
  };
  return keys;
}

const StudyKey* FindStudyKey(absl::string_view name) {
  for (const StudyKey& key : StudyKeys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

namespace {

// Edits between two words where swapping neighbours is one edit (optimal string alignment): "modle" is one
// from "model".
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<absl::string_view>& candidates) {
  constexpr size_t kLongest = 64;  // nothing we know is longer, and the work is quadratic
  if (word.size() > kLongest) return "";
  std::string lower = absl::AsciiStrToLower(word);
  absl::string_view best;
  size_t best_distance = kLongest;
  for (absl::string_view candidate : candidates) {
    size_t distance = EditDistance(lower, absl::AsciiStrToLower(candidate));
    if (distance * 3 <= std::max(word.size(), candidate.size()) && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return std::string(best);
}

}  // namespace scalelab
