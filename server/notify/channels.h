// Delivers notifications: by mail, to a URL, or to a program.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "db/records.h"
#include "server/notify/settings.h"

namespace scalelab::server {

// Delivers one notification. Blocks for at most about 30 seconds. OK: the receiver has accepted it. UNAVAILABLE: another
// try may succeed. Other errors: it will not. May be called from several threads.
class Channels {
 public:
  explicit Channels(const NotifySettings& settings) : settings_(settings) {}
  absl::Status Deliver(const db::NoticeRow& notice) const;

 private:
  absl::Status Mail(const db::NoticeRow& notice) const;
  absl::Status Post(const db::NoticeRow& notice) const;
  absl::Status Run(const db::NoticeRow& notice) const;

  const NotifySettings settings_;
};

// Returns a mail: headers, an empty line and a text for people.
std::string MailText(const db::NoticeRow& notice, const std::string& from, absl::Time now);

}  // namespace scalelab::server
