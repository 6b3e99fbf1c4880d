// Options and counters of native/horovod.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace scalelab::trainer::horovod {

// The algorithm that sums gradients: the communicator's all-reduce, one ring of all ranks, or a reduction
// within nodes followed by one between nodes (comm/ring_all_reduce.h, comm/hierarchical_all_reduce.h).
enum class AllReduce { kLibrary, kRing, kHierarchical };

struct Options {
  int64_t fusion_bytes = 128 << 20;   // largest group of fused tensors; 0: no fusion
  double cycle_seconds = 0.001;       // time between the starts of two cycles
  int64_t cache_capacity = 1024;      // number of tensors; 0: no cache
  bool fp16 = false;                  // whether gradients are sent as float16
  bool autotune = false;              // whether to search for fusion_bytes and cycle_seconds
  double stall_warning_seconds = 60;  // waiting time of a tensor before a warning; 0: no warnings
  std::string timeline_path = {};     // file that rank 0 writes; empty: no timeline
  AllReduce all_reduce = AllReduce::kLibrary;
  std::string node = {};  // name of this rank's node; empty: NodeName()
  // Called on rank 0 with warnings. Warnings of the stall inspector come from the background thread. If it is
  // empty, warnings are written to standard error.
  std::function<void(std::string_view)> warn = {};
};

// Counters of this rank since the start. They are equal on all ranks, except stall_warnings, which only
// rank 0 counts.
struct Counters {
  int64_t cycles = 0;
  int64_t negotiations = 0;  // cycles that gathered requests at rank 0
  int64_t cache_hits = 0;    // tensors agreed on by the bit vector alone
  int64_t cache_misses = 0;  // tensors reduced after a negotiation
  int64_t all_reduces = 0;   // all-reduces of gradients
  int64_t ring_all_reduces = 0;
  int64_t hierarchical_all_reduces = 0;
  int64_t fused_tensors = 0;  // tensors that shared an all-reduce
  int64_t bytes = 0;          // bytes of reduced gradients
  int64_t stall_warnings = 0;
};

}  // namespace scalelab::trainer::horovod
