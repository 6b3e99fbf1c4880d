// Named tensors as bytes, in the safetensors format (https://github.com/huggingface/safetensors, "Format"):
// the length of the header as 8 bytes, little endian; the header, a JSON object name -> {dtype, shape,
// data_offsets}; the data of all tensors one after another, each contiguous, row by row. Any language reads
// it in a few lines.
#pragma once

#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Tensors of any device and memory format. Throws TrainerError for a type that the format lacks, and where
// `out` does not take the bytes.
void WriteSafetensors(const NamedTensors& tensors, std::ostream& out);

// Appears as a whole: written beside and renamed. Throws TrainerError that names the path.
void SaveSafetensors(const NamedTensors& tensors, const std::string& path);

// Contiguous copies on the CPU, in the order of their data. `source` stands in the TrainerError about bytes
// that are no such file.
NamedTensors ReadSafetensors(std::string_view bytes, const std::string& source);

}  // namespace scalelab::trainer
