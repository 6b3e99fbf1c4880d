// Points in the work of a device, which on a GPU goes on while the host is elsewhere.
#pragma once

#include <memory>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// The end of everything that the calling thread's current stream of a device has been given so far. On a CPU
// that is now. Undefined when made without a device: over, and nobody waits for it.
class Moment {
 public:
  Moment();
  explicit Moment(at::Device device);
  Moment(Moment&&) noexcept;
  Moment& operator=(Moment&&) noexcept;
  ~Moment();

  // Whether the device has come this far.
  bool Over() const;
  // Returns when it has.
  void Wait() const;
  // What the calling thread's current stream is given from now on begins after it; the host does not wait.
  void Block() const;
  // Seconds between two moments of one device, both over.
  double SecondsSince(const Moment& earlier) const;

 private:
  struct Point;
  std::unique_ptr<Point> point_;
};

// A stream of a GPU, out of the pool that streams come from in turn; nothing on a CPU.
class DeviceStream {
 public:
  explicit DeviceStream(at::Device device);
  ~DeviceStream();

 private:
  friend class StreamScope;
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

// What the calling thread gives to the stream's device goes to that stream while this lives.
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
