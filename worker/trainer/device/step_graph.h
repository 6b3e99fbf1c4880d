// A CUDA graph: work for a GPU that is recorded once and then started again and again in one go, which spares
// the host most of what starting it costs.
#pragma once

#include <functional>
#include <memory>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

class StepGraph {
 public:
  // Records what `work` gives to the calling thread's current stream, and to streams that it joins to that
  // one; nothing is done yet. `work` may allocate, and must neither wait for the device nor depend on values
  // there. The stream must not be the default one. Throws when it cannot be recorded, or on a CPU.
  explicit StepGraph(const std::function<void()>& work);
  ~StepGraph();

  // Does it on the calling thread's current stream, with the memory of the recording.
  void Replay();

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace scalelab::trainer
