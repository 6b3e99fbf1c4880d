// The baselines of "measure: {communication: true}". A run is compared with the same run without
// synchronisation (native/none), and with the same run whose synchronisation starts only after backward
// (native/serial). These functions both add the baseline runs to a study and find them for its curve.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab {

// Returns whether the engine communicates while backward runs. Only such engines can be measured this way.
bool OverlapsCommunication(absl::string_view engine);
// Returns whether the engine is one of the two baselines of other engines:
// UnsynchronisedEngine() and SerialEngine().
bool IsBaselineEngine(absl::string_view engine);

// Returns whether the engine uses the setting `key`, a study key. An engine ignores the synchronisation
// settings of other engines.
bool EngineReads(absl::string_view engine, absl::string_view key);

// Returns a key that is equal for two runs exactly if they differ at most in their engine, in settings that
// `engine` ignores, and in whether they were added as a baseline.
std::string ComparisonKey(const scalelab::v1::RunSpec& run, absl::string_view engine);

}  // namespace scalelab
