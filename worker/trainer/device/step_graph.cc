#include "worker/trainer/device/step_graph.h"

#include "worker/trainer/errors.h"
#ifdef SCALELAB_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace scalelab::trainer {

#ifdef SCALELAB_CUDA

struct StepGraph::Graph {
  at::cuda::CUDAGraph graph;
};

StepGraph::StepGraph(const std::function<void()>& work) : graph_(std::make_unique<Graph>()) {
  // A graph has its own memory pool. Release the cached memory of the earlier steps first, because otherwise
  // both would occupy memory.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  // With this mode, other threads may query events during the recording. The NCCL watchdog does so.
  graph_->graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  std::exception_ptr cause;
  try {
    work();
  } catch (...) {
    cause = std::current_exception();
  }
  try {
    graph_->graph.capture_end();  // ends the capture; necessary after a failure too
  } catch (...) {
    if (!cause) cause = std::current_exception();
    try {
      // Otherwise later tensors of the stream would still be allocated in the memory pool of the graph.
      c10::cuda::CUDACachingAllocator::endAllocateToPool(c10::cuda::current_device(), pool);
    } catch (const std::exception&) {
      // capture_end had done so before it failed.
    }
    (void)graph_.release();  // LibTorch's allocators may keep pointers to a graph whose recording failed
  }
  if (cause) std::rethrow_exception(cause);
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
