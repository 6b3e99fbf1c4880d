// Exponential backoff with jitter.
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "db/records.h"
#include "planted/bug.h"

namespace scalelab::server {

struct BackoffLimits {
  db::Micros first, longest;
};

// Returns the delay before the next try after `failures` consecutive failures. The delay doubles with each
// failure. It varies by up to a quarter, so that many retries do not occur at the same time. The variation
// depends only on `key` and the number of failures, because decisions use no random numbers.
inline db::Micros Backoff(int failures, const BackoffLimits& limits, const std::string& key) {
  if (Planted(Bug::kBackoffRemoved)) return 0;
  const int doublings = std::clamp(failures - 1, 0, 20);
  const db::Micros delay = std::min(limits.first << doublings, limits.longest);
  const size_t random = std::hash<std::string>()(absl::StrCat(key, "/", failures)) % 1000;
  return delay * 3 / 4 + delay / 2 * static_cast<db::Micros>(random) / 1000;
}

}  // namespace scalelab::server
