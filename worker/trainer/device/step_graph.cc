#include "worker/trainer/device/step_graph.h"

#include "worker/trainer/errors.h"
#ifdef SCALELAB_CUDA
#include <ATen/cuda/CUDAGraph.h>
#endif

namespace scalelab::trainer {

#ifdef SCALELAB_CUDA

struct StepGraph::Graph {
  at::cuda::CUDAGraph graph;
};

StepGraph::StepGraph(const std::function<void()>& work) : graph_(std::make_unique<Graph>()) {
  // Other threads may query events during the recording, as the NCCL watchdog does.
  graph_->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    const std::exception_ptr cause = std::current_exception();
    try {
      graph_->graph.capture_end();  // ends the capture on the stream
    } catch (const std::exception&) {
      // Ignored: the recording is known to be broken.
    }
    std::rethrow_exception(cause);
  }
  graph_->graph.capture_end();
}

void StepGraph::Replay() { graph_->graph.replay(); }

#else

struct StepGraph::Graph {};
StepGraph::StepGraph(const std::function<void()>&) {
  throw TrainerError("only GPU work can be recorded into a graph: build the trainer with preset cuda");
}
void StepGraph::Replay() {}

#endif

StepGraph::~StepGraph() = default;

}  // namespace scalelab::trainer
