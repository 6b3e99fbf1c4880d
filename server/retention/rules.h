// The rules of retention, and the section `retention` of the configuration file.
//
//   retention:
//     points: {older_than: 365d}
//     logs: {older_than: 90d, max_size: 100GiB}
//     attempt_directories: {older_than: 180d, max_size: 2TiB}
//     database: {max_size: 50GiB}
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace YAML {
class Node;
struct Mark;
}  // namespace YAML

namespace scalelab::server {

// Ages count from the end of a study. Studies that are not final are kept.
struct RetentionRules {
  absl::Duration points = absl::InfiniteDuration();       // the points of its attempts
  absl::Duration logs = absl::InfiniteDuration();         // the output files of its attempts
  absl::Duration directories = absl::InfiniteDuration();  // the directories of its attempts
  // While the rows of the database take more bytes than this, the points of the study that ended first are
  // removed. 0 means no limit.
  int64_t database_bytes = 0;
  // While the logs, or the directories, of all final studies take more bytes than this, those of the study that
  // ended first are removed. 0 means no limit.
  int64_t logs_bytes = 0, directories_bytes = 0;

  bool empty() const {
    return points == absl::InfiniteDuration() && logs == absl::InfiniteDuration() &&
           directories == absl::InfiniteDuration() && database_bytes == 0 && logs_bytes == 0 &&
           directories_bytes == 0;
  }
};

// Formats a duration in days, hours or minutes: "365d", "12h".
std::string AgeText(absl::Duration age);

// Reads the section `retention`. `at` converts a YAML mark to a position for error messages.
absl::Status ReadRetention(const YAML::Node& node, const std::function<std::string(const YAML::Mark&)>& at,
                           RetentionRules* rules);

}  // namespace scalelab::server
