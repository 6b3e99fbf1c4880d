#include "study/measure.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "catalog/enum_word.h"
#include "extract/pattern.h"

namespace scalelab {
namespace {

using v1::Extract;
using v1::Measure;

constexpr int kMostMetrics = 100;
constexpr size_t kLongestMetric = 100, kLongestRegex = 1000;

bool IsMetricName(absl::string_view name) {
  return !name.empty() && name.size() <= kLongestMetric &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isgraph(c) && c != '"'; });
}

void CheckExtract(const Extract& extract, const std::string& path, Violations* violations) {
  if (!IsMetricName(extract.metric())) {
    violations->Add(
        absl::StrCat(path, ".metric"),
        absl::StrCat("metric ", Quote(extract.metric()),
                     " must be a name without spaces, for example run/throughput, 100 characters at most"));
  }
  if (extract.regex().empty()) {
    violations->Add(absl::StrCat(path, ".regex"),
                    "regex is missing; write for example regex: 'loss=([0-9.]+)'");
  } else if (extract.regex().size() > kLongestRegex) {
    violations->Add(absl::StrCat(path, ".regex"), "regex has more than 1,000 characters");
  } else if (auto pattern = Pattern::Compile(extract.regex()); !pattern.ok()) {
    violations->Add(
        absl::StrCat(path, ".regex"),
        absl::StrCat("regex ", Quote(extract.regex()), " is not valid: ", pattern.status().message()));
  } else if (pattern->has_step() && extract.per() != Extract::STEP) {
    violations->Add(absl::StrCat(path, ".per"), "regex has a group named step; write per: step");
  }
  if (!Extract::Per_IsValid(extract.per()))
    violations->Add(absl::StrCat(path, ".per"),
                    absl::StrCat("unknown per ", static_cast<int>(extract.per())));
  if (!Extract::Take_IsValid(extract.take()))
    violations->Add(absl::StrCat(path, ".take"),
                    absl::StrCat("unknown take ", static_cast<int>(extract.take())));
  if (extract.per() == Extract::STEP && extract.take() != Extract::TAKE_UNSPECIFIED)
    violations->Add(absl::StrCat(path, ".take"), "take is for per: run; with per: step every match counts");
}

}  // namespace

void CheckMeasure(const Measure& measure, Violations* violations) {
  if (measure.has_warmup_steps()) {
    violations->CheckRange("measure.warmup_steps", "warmup_steps", measure.warmup_steps(), 0,
                           std::numeric_limits<int32_t>::max());
  }
  violations->CheckRange("measure.target_accuracy", "target_accuracy", measure.target_accuracy(), 0, 1);
  if (!Measure::Success_IsValid(measure.success()))
    violations->Add("measure.success", absl::StrCat("unknown success ", static_cast<int>(measure.success())));
  if (measure.extract_size() == 0) return;
  if (measure.success() == Measure::FINISH) {
    violations->Add(
        "measure.success",
        "extract is for programs that write no events; write success: exit_status, or remove extract");
  }
  if (measure.extract_size() > kMostMetrics)
    return violations->Add("measure.extract", absl::StrCat("extract has ", measure.extract_size(),
                                                           " metrics; at most 100 are allowed"));
  std::unordered_set<std::string> seen;
  for (int i = 0; i < measure.extract_size(); ++i) {
    const std::string path = absl::StrCat("measure.extract[", i, "]");
    CheckExtract(measure.extract(i), path, violations);
    if (!seen.insert(measure.extract(i).metric()).second)
      violations->Add(
          absl::StrCat(path, ".metric"),
          absl::StrCat("metric ", Quote(measure.extract(i).metric()), " is extracted twice; keep one"));
  }
}

void SetMeasure(const Measure& measure, v1::RunSpec* run) {
  run->set_warmup_steps(measure.warmup_steps());
  run->set_evaluate(measure.evaluate());
  run->set_target_accuracy(measure.target_accuracy());
  if (measure.success() == Measure::EXIT_STATUS) run->set_success("exit_status");
  for (const Extract& extract : measure.extract()) {
    const auto per = extract.per() == Extract::PER_UNSPECIFIED ? Extract::RUN : extract.per();
    auto& fields = *(*run->mutable_extract()->mutable_fields())[extract.metric()]
                        .mutable_struct_value()
                        ->mutable_fields();
    fields["regex"].set_string_value(extract.regex());
    fields["per"].set_string_value(EnumWord(Extract::Per_Name(per)));
    if (per == Extract::STEP) continue;
    const auto take = extract.take() == Extract::TAKE_UNSPECIFIED ? Extract::LAST : extract.take();
    fields["take"].set_string_value(EnumWord(Extract::Take_Name(take)));
  }
}

}  // namespace scalelab
