// The interface for reading the event files of workers that have ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "scalelab/v1/worker.pb.h"
#include "server/core/ingest.h"

namespace scalelab::server {

// The position in a rank's event file at which to continue reading.
struct EventPlace {
  int64_t position = 0;  // offset in bytes
  int64_t line = 0;      // line number, counted from 0
};

// A request to read event files of one attempt.
struct EventRequest {
  std::string token;               // token of the attempt
  std::string directory;           // directory of the attempt
  int64_t number = 0;              // number of this request, which identifies the response
  int first_rank = 0;              // the event files of earlier ranks have been read
  std::vector<EventPlace> places;  // positions for first_rank and the following ranks
  std::optional<v1::FrameworkEnvironment> environment;  // environment of the attempt's engine
};

// The next part of an attempt's event files.
struct EventPart {
  std::vector<ParsedBatch> batches;  // at most one for each rank, in the order of ranks
  int next_rank = 0;                 // the event files of earlier ranks have been read completely
  std::string problem;               // why events of these ranks may be missing; empty if none are
  // Set in the last part: how the attempt ended on its first node, if the worker recorded that, and the
  // software that its ranks used.
  std::optional<v1::SynchronizeRequest::AttemptStatus> end;
  std::map<std::string, std::string> software;
};

// Reads event files after the processes that wrote them have ended.
class EventReader {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<EventPart>)>;

  virtual ~EventReader() = default;

  // Reads the next part, which has a limited size, and passes it to `done`, on any thread and at most
  // once. Does not call `done` while the filesystem blocks. An error may be temporary; the caller may
  // repeat the request. FAILED_PRECONDITION: the files cannot be read before a user acts, for example because the
  // agent of the user is not connected.
  virtual void Read(EventRequest request, Done done) = 0;
};

}  // namespace scalelab::server
