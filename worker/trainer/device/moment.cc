#include "worker/trainer/device/moment.h"

#include <chrono>
#include <optional>
#ifdef SCALELAB_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace scalelab::trainer {

struct Moment::Point {
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

Moment::Moment() = default;
Moment::Moment(Moment&&) noexcept = default;
Moment& Moment::operator=(Moment&&) noexcept = default;
Moment::~Moment() = default;
DeviceStream::~DeviceStream() = default;
StreamScope::~StreamScope() = default;

#ifdef SCALELAB_CUDA

Moment::Moment(at::Device device) : point_(std::make_unique<Point>()) {
  if (device.is_cuda()) {
    // Wait sleeps. By default it would keep a core busy, which the rank's other threads need.
    point_->event.emplace(cudaEventBlockingSync);
    point_->event->record(c10::cuda::getCurrentCUDAStream(device.index()));
  } else {
    point_->time = std::chrono::steady_clock::now();
  }
}

bool Moment::Over() const { return !point_ || !point_->event || point_->event->query(); }

void Moment::Wait() const {
  if (point_ && point_->event) point_->event->synchronize();
}

void Moment::Block() const {
  if (!point_ || !point_->event) return;
  point_->event->block(c10::cuda::getCurrentCUDAStream(point_->event->device_index()));
}

double Moment::SecondsSince(const Moment& earlier) const {
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

Moment::Moment(at::Device) : point_(std::make_unique<Point>(Point{std::chrono::steady_clock::now()})) {}
bool Moment::Over() const { return true; }
void Moment::Wait() const {}
void Moment::Block() const {}
double Moment::SecondsSince(const Moment& earlier) const {
  return std::chrono::duration<double>(point_->time - earlier.point_->time).count();
}
DeviceStream::DeviceStream(at::Device) {}
StreamScope::StreamScope(const DeviceStream&) {}

#endif

}  // namespace scalelab::trainer
