// Gloo's connections between the ranks of a communicator. Includes Gloo's headers.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "worker/trainer/comm/peers/rendezvous.h"

namespace scalelab::trainer {

// Slots for our own messages. Gloo's collectives use the numbers 1 to 8 here.
constexpr uint8_t kMessageSlot = 0x40, kReduceScatterSlot = 0x41, kAbortSlot = 0x42;

// The timeout of operations inside Gloo, which is never reached. GlooWatchdog applies the real timeout.
constexpr std::chrono::hours kGlooForever{365 * 24};

// Returns the first line of Gloo's error message, without the source position at its beginning.
std::string GlooReason(const std::string& message);

struct GlooTransport {
  // Connects the ranks, which exchange their addresses through `keys`. `address` selects the network
  // interface. Returns when all ranks have read the keys. Throws exceptions of Gloo. `timeout` does not apply
  // to later operations.
  void Connect(int rank, int size, KeyStore& keys, const std::string& address,
               std::chrono::milliseconds timeout);

  std::unique_ptr<gloo::transport::UnboundBuffer> Buffer(void* data, size_t bytes) {
    return context->createUnboundBuffer(data, bytes);
  }
  // Makes all operations that wait inside Gloo fail.
  void Abort();
  // Sets the receive operation from any rank that Abort must end. null means none.
  void SetReceiveFromAny(gloo::transport::UnboundBuffer* receive);

  std::shared_ptr<gloo::rendezvous::Context> context;

 private:
  std::mutex mutex_;  // guards the members below
  gloo::transport::UnboundBuffer* any_ = nullptr;
  bool aborted_ = false;
};

}  // namespace scalelab::trainer
