#pragma once

#include "server/config.h"

namespace scalelab::server {

// Logs go to stderr, as text or as one JSON object a line.
void SetUpLogging(const ServerConfig& config);

}  // namespace scalelab::server
