// The interface to the event files that workers leave behind.
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

// Where the rest of a rank's event file begins.
struct EventPlace {
  int64_t position = 0;  // byte
  int64_t line = 0;      // number of the line, from 0
};

// Names what to read of one attempt.
struct EventRequest {
  std::string token;               // of the attempt
  std::string directory;           // of the attempt
  int64_t number = 0;              // of this request; the answer carries it
  int first_rank = 0;              // the event files of the ranks before it have been read
  std::vector<EventPlace> places;  // of first_rank and the ranks after it
  std::optional<v1::FrameworkEnvironment> environment;  // of the attempt's engine
};

// The next part of what is left of an attempt's event files.
struct EventPart {
  std::vector<ParsedBatch> batches;  // one for each rank at most, in the order of ranks
  int next_rank = 0;                 // the event files of the ranks before it have been read to their ends
  std::string problem;               // why events of these ranks may be missing; empty if none are
  // With the last part: how the attempt ended on its first node, if the worker recorded that, and the software that its
  // ranks trained with.
  std::optional<v1::SynchronizeRequest::AttemptStatus> end;
  std::map<std::string, std::string> software;
};

// Reads event files after the processes that wrote them have ended.
class EventReader {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<EventPart>)>;

  virtual ~EventReader() = default;

  // Reads the next part, a bounded number of bytes, and passes it to `done`: on any thread, at most once. `done` is not
  // called while the filesystem blocks. An error may be temporary: the same request may be made again.
  virtual void Read(EventRequest request, Done done) = 0;
};

}  // namespace scalelab::server
