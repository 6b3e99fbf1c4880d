#include "server/scheduler/scheduler.h"

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

}  // namespace scalelab::server
