// A CUDA graph: GPU work that is recorded once and then launched repeatedly with one call, which saves most
// of the host's launch overhead.
#pragma once

#include <functional>
#include <memory>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

class StepGraph {
 public:
  // Records the work that `work` enqueues on the calling thread's current stream and on streams that it joins
  // to that stream. Nothing runs yet. `work` may allocate memory. It must neither wait for the device nor
  // depend on values there. The stream must not be the default one. Throws if the work cannot be recorded, or
  // on a CPU.
  explicit StepGraph(const std::function<void()>& work);
  ~StepGraph();

  // Launches the graph on the calling thread's current stream, using the memory of the recording.
  void Replay();

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace scalelab::trainer
