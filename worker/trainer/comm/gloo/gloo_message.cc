#include "worker/trainer/comm/gloo/gloo_message.h"

#include <exception>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace scalelab::trainer {

GlooMessage::GlooMessage(GlooTransport& transport, GlooWatchdog& watchdog, const at::Tensor& tensor,
                         const char* what, int peer, RunningClock::time_point deadline,
                         const std::vector<int>& members, Fail fail)
    : transport_(transport),
      watchdog_(watchdog),
      members_(members),
      tensor_(tensor),
      operation_(what, peer),
      fail_(std::move(fail)),
      buffer_(transport.Buffer(tensor.data_ptr(), tensor.nbytes())) {
  operation_.deadline = deadline;
}

void GlooMessage::Start(bool send) {
  send_ = send;
  const uint64_t slot = gloo::Slot::build(kMessageSlot, 0);
  try {
    if (send) {
      buffer_->send(operation_.peer, slot);
    } else if (operation_.peer == Operation::kAnyRank) {
      std::vector<int> others(transport_.context->size);
      std::iota(others.begin(), others.end(), 0);
      others.erase(others.begin() + transport_.context->rank);
      buffer_->recv(others, slot);
      transport_.SetReceiveFromAny(buffer_.get());
    } else {
      buffer_->recv(operation_.peer, slot);
    }
  } catch (const std::exception& e) {
    fail_(operation_, e.what());
  }
  in_flight_ = true;
}

void GlooMessage::Wait() {
  if (done_) return;
  if (waiting_.valid()) {
    waiting_.get();
  } else {
    WaitForGloo();
  }
  done_ = true;
}

bool GlooMessage::Done() {
  if (done_) return true;
  if (!waiting_.valid()) waiting_ = std::async(std::launch::async, [this] { WaitForGloo(); }).share();
  return waiting_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

GlooMessage::~GlooMessage() {
  if (operation_.peer == Operation::kAnyRank) transport_.SetReceiveFromAny(nullptr);
  try {
    if (waiting_.valid() || in_flight_) Wait();
  } catch (const std::exception&) {
    // Ignore the error, because the caller never called Wait.
  }
}

void GlooMessage::WaitForGloo() {
  try {
    const GlooWatchdog::Monitored monitored(watchdog_, operation_, members_);
    const bool ended = send_ ? buffer_->waitSend(kGlooForever) : buffer_->waitRecv(&source_, kGlooForever);
    in_flight_ = false;
    if (!ended) throw std::runtime_error("interrupted");
  } catch (const std::exception& e) {
    in_flight_ = false;  // Gloo has closed the connection
    fail_(operation_, e.what());
  }
}

}  // namespace scalelab::trainer
