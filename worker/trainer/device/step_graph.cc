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
  // Other threads may look at events meanwhile, as the watchdog of NCCL does.
  graph_->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    const std::exception_ptr cause = std::current_exception();
    try {
      graph_->graph.capture_end();  // the stream must not stay in the recording
    } catch (const std::exception&) {
      // That the recording is broken is no news.
    }
    std::rethrow_exception(cause);
  }
  graph_->graph.capture_end();
}

void StepGraph::Replay() { graph_->graph.replay(); }

#else

struct StepGraph::Graph {};
StepGraph::StepGraph(const std::function<void()>&) {
  throw TrainerError("only work of a GPU can be recorded: build with preset cuda");
}
void StepGraph::Replay() {}

#endif

StepGraph::~StepGraph() = default;

}  // namespace scalelab::trainer
