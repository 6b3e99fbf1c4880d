// Sends notifications to the service manager that has started this process, usually systemd, with the
// protocol of sd_notify(3).
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace scalelab::server {

class ServiceManager {
 public:
  // Takes the address of the service manager's socket from NOTIFY_SOCKET, and removes the variable from the
  // environment, so that programs which this process starts cannot use it. Call it before other threads
  // exist.
  static ServiceManager FromEnvironment();
  // `address` is the path of a Unix datagram socket, or "@" and the name of an abstract one. If it is empty,
  // the functions below do nothing. Each of them blocks for at most `timeout`.
  explicit ServiceManager(std::string address, absl::Duration timeout = absl::Seconds(5));

  // Each function sends one notification. A failure is logged and has no other effect.

  // The service accepts calls. `status` is a sentence for the administrator.
  void Ready(absl::string_view status) const;
  // The start has failed with `error`, and the process ends.
  void Failed(absl::string_view error) const;
  // The service reads its configuration again; Ready() follows.
  void Reloading() const;
  // The service stops, and the process ends.
  void Stopping() const;

 private:
  void Send(const std::string& notification) const;

  std::string address_;
  absl::Duration timeout_;
};

}  // namespace scalelab::server
