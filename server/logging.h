// Sets up the log of scalelabd.
#pragma once

#include "server/config.h"

namespace scalelab::server {

// Directs the log to stderr, as text or as one JSON object per line.
void SetUpLogging(const ServerConfig& config);

}  // namespace scalelab::server
