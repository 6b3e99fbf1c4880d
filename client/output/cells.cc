#include "client/output/cells.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/text.h"

namespace scalelab::client {

using scalelab::v1::Estimate;

std::string AxisText(const google::protobuf::Struct& key, const std::string& axis,
                     absl::string_view missing) {
  const auto it = key.fields().find(axis);
  return it == key.fields().end() ? std::string(missing) : ValueText(it->second);
}

std::string WithInterval(const Estimate& estimate, absl::FunctionRef<std::string(double)> text) {
  if (!estimate.has_low() || !estimate.has_high()) return text(estimate.mean());
  return absl::StrCat(text(estimate.mean()), " [", text(estimate.low()), ", ", text(estimate.high()), "]");
}

std::string DifferenceText(const Estimate& difference) {
  return WithInterval(difference, [](double share) { return absl::StrFormat("%+.1f", 100 * share); });
}

std::string UsedRepeats(int n, int asked) {
  return asked == 0 ? absl::StrCat(n) : absl::StrCat(n, "/", asked);
}

void AddEstimateColumns(absl::string_view name, Section& section) {
  for (const char* part : {"_mean", "_low", "_high"})
    section.columns.push_back({absl::StrCat(name, part), Column::In::kCsv});
}

void AddEstimateCells(const Estimate* estimate, std::vector<Cell>& row) {
  row.emplace_back(estimate == nullptr ? "" : Exact(estimate->mean()));
  row.emplace_back(estimate == nullptr || !estimate->has_low() ? "" : Exact(estimate->low()));
  row.emplace_back(estimate == nullptr || !estimate->has_high() ? "" : Exact(estimate->high()));
}

}  // namespace scalelab::client
