#include "proto/study_communication.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"

namespace scalelab {
namespace {

using Names = std::vector<absl::string_view>;

// Settings that control how native/ddp and native/serial synchronise.
const Names& BucketKeys() {
  static const auto& names =
      *new Names{"bucket_cap_mib", "first_bucket_cap_mib", "find_unused_parameters", "static_graph"};
  return names;
}

const Names& HorovodKeys() {
  static const auto& names = *new Names{
      "fusion_threshold_mib", "cycle_time_ms", "cache_capacity", "gradient_compression", "autotune",
      "stall_warning_s",      "timeline",      "all_reduce"};
  return names;
}

bool Has(const Names& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool OverlapsCommunication(absl::string_view engine) {
  return engine == "native/ddp" || engine == "native/horovod";
}

bool EngineReads(absl::string_view engine, absl::string_view key) {
  if (Has(HorovodKeys(), key)) return engine == "native/horovod" || absl::StartsWith(engine, "horovod/");
  if (Has(BucketKeys(), key))
    return engine == "native/ddp" || engine == kSerialEngine || engine == "pytorch/ddp" ||
           engine == "keras/pytorch";
  return true;
}

std::string ComparisonKey(const v1::RunSpec& run, absl::string_view engine) {
  v1::RunSpec same = run;
  same.set_engine(std::string(engine));
  same.clear_communication_baseline();
  for (const Names* names : {&BucketKeys(), &HorovodKeys()}) {
    for (absl::string_view name : *names) {
      if (EngineReads(engine, name)) continue;
      same.GetReflection()->ClearField(&same, same.GetDescriptor()->FindFieldByName(std::string(name)));
    }
  }
  return same.SerializeAsString();
}

}  // namespace scalelab
