// Keeps messages that were parsed from JSON of the database.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/cells/message_json.h"

namespace scalelab::server {

// Parses JSON texts and keeps the messages. Many calls read the same texts, such as the specification of a study, and parsing one
// takes longer than the rest of such a call. At most 128 messages are kept, and no text above 8 KiB. When there are more, all of them
// are dropped. Any thread may call the functions.
template <class Message>
class ParsedMessages {
 public:
  // Returns DATA_LOSS if the text cannot be parsed.
  absl::StatusOr<std::shared_ptr<const Message>> Get(const std::string& json) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (const auto found = messages_.find(json); found != messages_.end()) return found->second;
    }
    auto message = std::make_shared<Message>();
    if (absl::Status status = FromJson(json, message.get()); !status.ok()) return status;
    if (json.size() <= kLongestText) {
      absl::MutexLock lock(&mutex_);
      if (messages_.size() >= kMostMessages) messages_.clear();
      messages_.emplace(json, message);
    }
    return message;
  }

 private:
  static constexpr size_t kMostMessages = 128, kLongestText = 8 << 10;

  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const Message>> messages_ ABSL_GUARDED_BY(mutex_);
};

// The messages of this process. They are never destroyed, because threads may use them until the process ends.
template <class Message>
ParsedMessages<Message>& MessagesOfProcess() {
  static auto& messages = *new ParsedMessages<Message>();
  return messages;
}

}  // namespace scalelab::server
