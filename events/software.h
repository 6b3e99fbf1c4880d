// Determines the device and the software of ranks, for an attempt's provenance.
#pragma once

#include <map>
#include <string>

#include "scalelab/v1/worker.pb.h"

namespace scalelab {

// Returns the device and the software with which a rank trained. "device" is taken from the start event in
// `event_file` ("NVIDIA H100 80GB HBM3"). Attempts of Python frameworks have an environment; for them
// "framework" comes from the start event too ("pytorch 1.13.1"), and "environment" is the directory name
// of the virtual environment with all symlinks resolved, the container and the modules. A part that is
// unknown is absent.
std::map<std::string, std::string> SoftwareOf(const v1::FrameworkEnvironment* environment,
                                              const std::string& event_file);

}  // namespace scalelab
