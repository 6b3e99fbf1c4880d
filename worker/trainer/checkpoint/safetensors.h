// Reads and writes named tensors in the safetensors format (https://github.com/huggingface/safetensors,
// "Format"): the length of the header as 8 bytes, little endian; the header, a JSON object name -> {dtype,
// shape, data_offsets}; then the data of all tensors, each contiguous and row by row. Any language can read
// the format with a few lines of code.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

#include "worker/trainer/named_tensors.h"

namespace scalelab::trainer {

// Writes tensors of any device and memory format. Throws TrainerError for a type that the format lacks, and
// if writing to `out` fails.
void WriteSafetensors(const NamedTensors& tensors, std::ostream& out);

// Replaces the file at `path` atomically (durable_file.h). Throws TrainerError that names the path.
void SaveSafetensors(const NamedTensors& tensors, const std::string& path);

// Returns contiguous copies on the CPU, in the order of their data. Throws TrainerError (kData), which names
// `source`, if the bytes are not a complete safetensors file.
NamedTensors ReadSafetensors(std::string_view bytes, const std::string& source);

}  // namespace scalelab::trainer
