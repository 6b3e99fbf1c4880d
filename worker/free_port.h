// A free TCP port for the rendezvous of an attempt's ranks.
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab::worker {

// Returns a port of this machine on which no program listens: the first one from a place that follows from `token`, so that
// attempts that are prepared at the same time get different ones. It lies below the ports that Linux uses by default for
// outgoing connections. Returns 0 if none is free.
int FreePort(absl::string_view token);

}  // namespace scalelab::worker
