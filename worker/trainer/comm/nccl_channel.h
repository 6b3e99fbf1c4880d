// Sends and receives between two ranks over NCCL.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/device_channel.h"
#include "worker/trainer/comm/nccl_handle.h"
#include "worker/trainer/comm/peers/rendezvous.h"

namespace scalelab::trainer {

// One direction between two ranks. It has an NCCL communicator of two ranks, a stream and a thread of its
// own, because operations on one communicator run one after another, and a receive may wait for a message
// that comes later in the collective order. The two ranks connect at the first message.
class NcclChannel {
 public:
  // `store` and `watchdog` must outlive the channel.
  NcclChannel(KeyStore& store, NcclWatchdog& watchdog, at::Device device, int rank, int from, int to,
              std::chrono::milliseconds timeout);

  // Sends or receives, in the order of the calls.
  std::unique_ptr<Work> Start(const at::Tensor& tensor) { return channel_.Start(tensor); }
  // For the watchdog: returns NCCL's error on this channel; ends everything on this channel.
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
  const std::string key_;  // of the id of the NCCL communicator
  NcclHandle handle_;      // used by the thread; not blocking, because a message may come late
  DeviceChannel channel_;  // last member: its thread uses the others
};

}  // namespace scalelab::trainer
