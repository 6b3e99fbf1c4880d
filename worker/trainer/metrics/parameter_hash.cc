#include "worker/trainer/metrics/parameter_hash.h"

#include <cstdio>
#include <cstring>

namespace scalelab::trainer {

std::string ParameterHash(const std::vector<at::Tensor>& tensors) {
  // FNV-1a over words of 8 bytes (the last one padded with zeros) instead of single bytes, with a final mix
  // because FNV's high bits change slowly.
  uint64_t hash = 0xcbf29ce484222325u;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.detach().cpu().contiguous();
    const char* data = static_cast<const char*>(flat.data_ptr());
    for (size_t left = flat.nbytes(); left > 0;) {
      const size_t bytes = left < 8 ? left : 8;
      uint64_t word = 0;
      std::memcpy(&word, data, bytes);
      hash = (hash ^ word) * 0x100000001b3u;
      hash ^= hash >> 32;
      data += bytes;
      left -= bytes;
    }
    hash = (hash ^ flat.nbytes()) * 0x100000001b3u;
  }
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccdu;
  hash ^= hash >> 33;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace scalelab::trainer
