// Reads the event files of attempts whose workers have ended, on threads of its own.
#pragma once

#include "server/core/event_reader.h"
#include "server/rpc/call_pool.h"

namespace scalelab::server {

// Reads the next part of the files in the directory of the request, like EventReader::Read. May block.
absl::StatusOr<EventPart> ReadEventPart(const EventRequest& request);

// A filesystem that hangs blocks only threads of this reader, at most half of them. Requests on this filesystem are then not
// answered, and the coordinator ends the attempts without the rest of their events.
class FileEventReader final : public EventReader {
 public:
  FileEventReader();

  void Read(EventRequest request, Done done) override;

  // As CallPool::Stop.
  bool Stop(absl::Duration grace) { return pool_.Stop(grace); }

 private:
  CallPool pool_;
};

}  // namespace scalelab::server
