#include "worker/trainer/comm/gloo/gloo_transport.h"

#include <gloo/barrier.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <exception>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// Adapts a KeyStore to Gloo's interface.
class GlooStore : public gloo::rendezvous::Store {
 public:
  explicit GlooStore(KeyStore& store) : store_(store) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.Set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override { return Wait(key, kDefaultTimeout); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, kDefaultTimeout); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) Wait(key, timeout);
  }

 private:
  std::vector<char> Wait(const std::string& key, std::chrono::milliseconds timeout) {
    Deadline deadline(timeout);
    const auto value = WaitForKey(store_, key, deadline);
    if (!value) throw std::runtime_error("timeout: no rank has set " + key);
    return std::vector<char>(value->begin(), value->end());
  }
  KeyStore& store_;
};

}  // namespace

std::string GlooReason(const std::string& message) {
  const size_t place = message.rfind("[./", 0) == 0 ? message.find("] ") : std::string::npos;
  return FirstLine(place == std::string::npos ? message : message.substr(place + 2));
}

void GlooTransport::Connect(int rank, int size, KeyStore& keys, const std::string& address,
                            std::chrono::milliseconds timeout) {
  gloo::transport::tcp::attr attribute;
  attribute.hostname = address;
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attribute);
  context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(timeout);
  GlooStore store(keys);
  context->connectFullMesh(store, device);
  gloo::BarrierOptions all_have_read_the_store(context);
  all_have_read_the_store.setTimeout(timeout);
  gloo::barrier(all_have_read_the_store);
  context->setTimeout(kGlooForever);
}

// If a receive times out, Gloo closes all connections. That ends all operations except a receive from
// any rank. A receive from a rank whose process has ended fails at once and closes no connection, so
// try each rank.
void GlooTransport::Abort() {
  if (context->size == 1) return;
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    if (any_ != nullptr) any_->abortWaitRecv();
  }
  char byte = 0;
  for (int distance = 1; distance < context->size; ++distance) {
    try {
      auto buffer = Buffer(&byte, 1);
      buffer->recv((context->rank + distance) % context->size, gloo::Slot::build(kAbortSlot, 0));
      buffer->waitRecv(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // Expected: the receive times out, or the connection is closed.
    }
  }
}

void GlooTransport::SetReceiveFromAny(gloo::transport::UnboundBuffer* receive) {
  std::lock_guard lock(mutex_);
  any_ = receive;
  if (aborted_ && any_ != nullptr) any_->abortWaitRecv();
}

}  // namespace scalelab::trainer
