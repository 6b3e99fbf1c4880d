// Events in the work of a device. On a GPU the host runs ahead of these.
#pragma once

#include <memory>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// The end of all work that the calling thread's current stream of a device has at construction. On a CPU this
// is the current time. A default-constructed DeviceEvent has passed already.
class DeviceEvent {
 public:
  DeviceEvent();
  explicit DeviceEvent(at::Device device);
  DeviceEvent(DeviceEvent&&) noexcept;
  DeviceEvent& operator=(DeviceEvent&&) noexcept;
  ~DeviceEvent();

  // Returns whether the device has passed this point.
  bool Over() const;
  // Blocks the host until the device has passed this point.
  void Wait() const;
  // Makes later work on the calling thread's current stream wait for this point. Does not block the host.
  void Block() const;
  // Returns the seconds between two events of one device. Both must have passed.
  double SecondsSince(const DeviceEvent& earlier) const;

 private:
  struct Point;
  std::unique_ptr<Point> point_;
};

// A time between two events of one device.
struct Span {
  std::shared_ptr<const DeviceEvent> begin, end;
};

// A stream of a GPU, taken from Torch's pool of streams; nothing on a CPU.
class DeviceStream {
 public:
  explicit DeviceStream(at::Device device);
  ~DeviceStream();

 private:
  friend class StreamScope;
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

// Makes a stream the calling thread's current stream of its device, for the lifetime of this object.
class StreamScope {
 public:
  explicit StreamScope(const DeviceStream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace scalelab::trainer
