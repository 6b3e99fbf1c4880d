// Counts the memory that code allocates for tensors and keeps.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Counts the memory of tensors on one type of device that the calling thread allocates while the object exists. LibTorch's
// allocators report to the thread's c10::ThreadLocalDebugInfo. Threads to which it is passed on count too. Objects of a thread must
// be destroyed in the reverse order of their construction.
class KeptAllocations {
 public:
  explicit KeptAllocations(c10::DeviceType device);

  // Returns the number of bytes that were allocated since the construction and not freed. Memory that existed before does not
  // count, even if it is freed. A block that a thread without this information frees counts until its address is used again.
  int64_t bytes() const;

 private:
  class Report;

  const std::shared_ptr<Report> report_;
  const c10::DebugInfoGuard guard_;
};

// Excludes the calling thread's allocations from KeptAllocations while the object exists.
class UncountedAllocations {
 public:
  UncountedAllocations();

 private:
  const c10::DebugInfoGuard guard_;
};

}  // namespace scalelab::trainer
