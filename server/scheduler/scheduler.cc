#include "server/scheduler/scheduler.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace scalelab::server {

bool IsOver(JobStatus::State state) {
  switch (state) {
    case JobStatus::State::kUnknown:
    case JobStatus::State::kPending:
    case JobStatus::State::kRunning:
      return false;
    case JobStatus::State::kCompleted:
    case JobStatus::State::kFailed:
    case JobStatus::State::kCancelled:
    case JobStatus::State::kTimeout:
    case JobStatus::State::kPreempted:
    case JobStatus::State::kNodeFail:
    case JobStatus::State::kOutOfMemory:
    case JobStatus::State::kBootFail:
    case JobStatus::State::kDeadline:
      return true;
  }
  return false;
}

std::string TimeLimitReason(absl::Duration limit) {
  const int64_t seconds = absl::ToInt64Seconds(limit);
  const std::string text =
      limit == absl::InfiniteDuration()
          ? ""
          : absl::StrFormat(" of %d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
  return absl::StrCat("its time limit", text, " was reached; raise resources.time");
}

}  // namespace scalelab::server
