// A call of a client in progress: its caller, and the data for its entry in the audit log.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "server/identity/identity.h"

namespace scalelab::server {

// Thread-safe.
class ClientCall {
 public:
  // `action`: the method, for example "CancelStudy". `changes`: whether the call changes something if it succeeds.
  // `pool_client`: the user if it is empty.
  ClientCall(Identity caller, std::string action, bool changes, const std::string& pool_client = "")
      : caller_(std::move(caller)),
        action_(std::move(action)),
        changes_(changes),
        pool_client_(pool_client.empty() ? caller_.user : pool_client) {}

  const Identity& caller() const { return caller_; }
  const std::string& action() const { return action_; }
  bool changes() const { return changes_; }
  // Returns the client for CallPool::Run.
  const std::string& pool_client() const { return pool_client_; }

  // Sets the resource name that the call is about.
  void SetTarget(std::string target) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    target_ = std::move(target);
  }
  // Sets a text for the entry in the audit log of a call that succeeds.
  void SetDetail(std::string detail) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    detail_ = std::move(detail);
  }
  // Notes that the target is hidden from the caller, who gets NOT_FOUND. The entry in the audit
  // log has PERMISSION_DENIED.
  void SetHidden() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    hidden_ = true;
  }
  std::string target() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return target_;
  }
  std::string detail() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return detail_;
  }
  bool hidden() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return hidden_;
  }

 private:
  const Identity caller_;
  const std::string action_;
  const bool changes_;
  const std::string pool_client_;
  mutable absl::Mutex mutex_;
  std::string target_ ABSL_GUARDED_BY(mutex_);
  std::string detail_ ABSL_GUARDED_BY(mutex_);
  bool hidden_ ABSL_GUARDED_BY(mutex_) = false;
};

// Returns the method that answers with this message: "CancelStudy" for CancelStudyResponse.
template <typename Response>
std::string ActionOf() {
  return std::string(absl::StripSuffix(Response::descriptor()->name(), "Response"));
}

// Returns whether a method changes something, according to its name.
bool ChangesSomething(absl::string_view action);

}  // namespace scalelab::server
