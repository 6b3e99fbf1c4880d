// The software that ranks of Python frameworks trained with, for an attempt's provenance.
#pragma once

#include <map>
#include <string>

#include "scalelab/v1/worker.pb.h"

namespace scalelab {

// Returns what a rank trained with. "framework" is taken from the start event in `event_file` ("pytorch
// 1.13.1"); "environment" is the directory name of the virtual environment with all symlinks resolved, the
// container and the modules. A part that is unknown is absent.
std::map<std::string, std::string> SoftwareOf(const v1::FrameworkEnvironment& environment,
                                              const std::string& event_file);

}  // namespace scalelab
