// Sends and receives between two ranks over NCCL.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/device_channel.h"
#include "worker/trainer/comm/nccl_handle.h"
#include "worker/trainer/comm/peers/rendezvous.h"

namespace scalelab::trainer {

// One direction between two ranks. It has its own NCCL communicator of two ranks, stream and thread.
// Operations on one NCCL communicator run one after another, so a receive on the communicator of the run
// could block a collective operation that must run before the message is sent. The two ranks connect for
// the first message.
class NcclChannel {
 public:
  // `store` and `watchdog` must outlive the channel.
  NcclChannel(KeyStore& store, NcclWatchdog& watchdog, at::Device device, int rank, int from, int to,
              std::chrono::milliseconds timeout);

  // Starts a send or a receive. They run in the order of the calls.
  std::unique_ptr<Work> Start(const at::Tensor& tensor) { return channel_.Start(tensor); }
  // For the watchdog. AsyncError returns NCCL's error on this channel. Abort ends all operations
  // on this channel.
  std::string AsyncError() { return handle_.AsyncError(); }
  void Abort() { handle_.Abort(); }

 private:
  using Check = DeviceChannel::Check;

  DeviceChannel::Hooks MakeHooks();
  void Connect(const Check& check);
  DeviceChannel::Transfer Enqueue(const at::Tensor& tensor, const Check& check);
  void Finish();

  KeyStore& store_;
  const at::Device device_;
  const bool send_;
  const std::string key_;  // key of the id of the NCCL communicator
  NcclHandle handle_;      // used by the thread; non-blocking, because a message may arrive late
  DeviceChannel channel_;  // the last member, because its thread uses all others
};

}  // namespace scalelab::trainer
