// Reads the event files of attempts whose workers are gone, on threads of its own.
#pragma once

#include "server/core/event_reader.h"
#include "server/services/call_pool.h"

namespace scalelab::server {

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
