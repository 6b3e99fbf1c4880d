// Reads the event files of attempts whose workers are gone, on threads of its own.
#pragma once

#include "server/core/event_reader.h"
#include "server/rpc/call_pool.h"

namespace scalelab::server {

// Reads the next part of the files in the directory of the request, as EventReader::Read. May block.
absl::StatusOr<EventPart> ReadEventPart(const EventRequest& request);

// A filesystem that hangs blocks threads of this reader only. When all of them are blocked, requests are not answered:
// the coordinator then ends their attempts without the rest.
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
