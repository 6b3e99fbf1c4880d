#include "worker/trainer/device/device_event.h"

#include <chrono>
#include <optional>
#ifdef SCALELAB_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace scalelab::trainer {

struct DeviceEvent::Point {
  std::chrono::steady_clock::time_point time;
#ifdef SCALELAB_CUDA
  std::optional<at::cuda::CUDAEvent> event;  // set for a GPU
#endif
};

#ifdef SCALELAB_CUDA
struct DeviceStream::Stream {
  c10::cuda::CUDAStream stream;
};
struct StreamScope::Guard {
  c10::cuda::CUDAStreamGuard guard;
};
#else
struct DeviceStream::Stream {};
struct StreamScope::Guard {};
#endif

DeviceEvent::DeviceEvent() = default;
DeviceEvent::DeviceEvent(DeviceEvent&&) noexcept = default;
DeviceEvent& DeviceEvent::operator=(DeviceEvent&&) noexcept = default;
DeviceEvent::~DeviceEvent() = default;
DeviceStream::~DeviceStream() = default;
StreamScope::~StreamScope() = default;

#ifdef SCALELAB_CUDA

DeviceEvent::DeviceEvent(at::Device device) : point_(std::make_unique<Point>()) {
  if (device.is_cuda()) {
    // With this flag, the thread that calls Wait sleeps. By default it would poll, and occupy a core that the
    // rank's other threads need.
    point_->event.emplace(cudaEventBlockingSync);
    point_->event->record(c10::cuda::getCurrentCUDAStream(device.index()));
  } else {
    point_->time = std::chrono::steady_clock::now();
  }
}

bool DeviceEvent::Over() const { return !point_ || !point_->event || point_->event->query(); }

void DeviceEvent::Wait() const {
  if (point_ && point_->event) point_->event->synchronize();
}

void DeviceEvent::Block() const {
  if (!point_ || !point_->event) return;
  point_->event->block(c10::cuda::getCurrentCUDAStream(point_->event->device_index()));
}

double DeviceEvent::SecondsSince(const DeviceEvent& earlier) const {
  if (point_->event) return earlier.point_->event->elapsed_time(*point_->event) / 1e3;
  return std::chrono::duration<double>(point_->time - earlier.point_->time).count();
}

DeviceStream::DeviceStream(at::Device device) {
  if (!device.is_cuda()) return;
  stream_ = std::make_unique<Stream>(Stream{c10::cuda::getStreamFromPool(false, device.index())});
}

StreamScope::StreamScope(const DeviceStream& stream) {
  if (stream.stream_) guard_.reset(new Guard{c10::cuda::CUDAStreamGuard(stream.stream_->stream)});
}

#else

DeviceEvent::DeviceEvent(at::Device)
    : point_(std::make_unique<Point>(Point{std::chrono::steady_clock::now()})) {}
bool DeviceEvent::Over() const { return true; }
void DeviceEvent::Wait() const {}
void DeviceEvent::Block() const {}
double DeviceEvent::SecondsSince(const DeviceEvent& earlier) const {
  return std::chrono::duration<double>(point_->time - earlier.point_->time).count();
}
DeviceStream::DeviceStream(at::Device) {}
StreamScope::StreamScope(const DeviceStream&) {}

#endif

}  // namespace scalelab::trainer
