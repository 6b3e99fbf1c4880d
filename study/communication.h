// What "measure: {communication: true}" compares a run with: itself without synchronisation, and with
// synchronisation that only starts after backward. The same rule adds these runs to a study and finds them
// for its curve.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab {

// Engines that communicate while backward runs: those whose communication can be measured this way.
bool OverlapsCommunication(absl::string_view engine);
// Whether the engine is one of the two that others are compared with: UnsynchronisedEngine() and SerialEngine().
bool IsBaselineEngine(absl::string_view engine);

// Whether this engine reads the setting, a study key: not those of another engine's way to synchronise.
bool EngineReads(absl::string_view engine, absl::string_view key);

// Equal for two runs that are the same to this engine, and for no others: everything but their engines, what
// the engine does not read, and which of them was added as a baseline.
std::string ComparisonKey(const scalelab::v1::RunSpec& run, absl::string_view engine);

}  // namespace scalelab
