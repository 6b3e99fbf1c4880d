// What LibTorch 1.13 lacks and later ones have: the only place that asks for a version.
#pragma once

#include <torch/version.h>

#define SCALELAB_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
