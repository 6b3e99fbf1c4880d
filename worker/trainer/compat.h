// Version checks for features that LibTorch 1.13 lacks. No other file compares versions.
#pragma once

#include <torch/version.h>

#define SCALELAB_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
