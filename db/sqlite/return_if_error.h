// A macro for functions that return absl::Status.
#pragma once

#include "absl/status/status.h"

#define SCALELAB_RETURN_IF_ERROR(expression) \
  if (absl::Status status_ = (expression); !status_.ok()) return status_
