// What a user may choose about native/horovod, and what it counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace scalelab::trainer::horovod {

// How gradients are summed: as the communicator does it, around one ring of all ranks, or within nodes and
// between them (comm/ring_all_reduce.h, comm/hierarchical_all_reduce.h).
enum class AllReduce { kLibrary, kRing, kHierarchical };

struct Options {
  int64_t fusion_bytes = 128 << 20;   // largest group of tensors; 0: each tensor alone
  double cycle_seconds = 0.001;       // from the start of a cycle to the start of the next
  int64_t cache_capacity = 1024;      // tensors; 0: no cache
  bool fp16 = false;                  // gradients travel as float16
  bool autotune = false;              // search for fusion_bytes and cycle_seconds
  double stall_warning_seconds = 60;  // 0: no reports
  std::string timeline_path = {};     // of rank 0; empty: no timeline
  AllReduce all_reduce = AllReduce::kLibrary;
  std::string node = {};  // a name for the node that this rank is on; empty: NodeName()
  // Takes what rank 0 has to report: the stall inspector's on its background thread; empty: standard error.
  std::function<void(std::string_view)> warn = {};
};

// Since the start, on this rank. Equal on all ranks but for the stall warnings, which rank 0 counts.
struct Counters {
  int64_t cycles = 0;
  int64_t negotiations = 0;  // cycles in which requests were gathered at rank 0
  int64_t cache_hits = 0;    // tensors reduced by the bit vector alone
  int64_t cache_misses = 0;  // tensors reduced after a negotiation
  int64_t all_reduces = 0;   // of gradients
  int64_t ring_all_reduces = 0, hierarchical_all_reduces = 0;  // of these: those not left to the communicator
  int64_t fused_tensors = 0;                                   // that shared an all-reduce with others
  int64_t bytes = 0;                                           // reduced
  int64_t stall_warnings = 0;
};

}  // namespace scalelab::trainer::horovod
