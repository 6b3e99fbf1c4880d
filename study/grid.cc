#include "study/grid.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/engines.h"
#include "study/templates.h"

namespace scalelab {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using v1::StudySpec;

constexpr int kMaxExclude = 1000;

// Returns the entries of a mapping sorted by name: protobuf's order differs from process to process.
std::vector<std::pair<absl::string_view, const Value*>> Sorted(const Struct& values) {
  std::vector<std::pair<absl::string_view, const Value*>> out;
  for (const auto& [name, value] : values.fields()) out.emplace_back(name, &value);
  std::sort(out.begin(), out.end());
  return out;
}

class GridReader {
 public:
  GridReader(const StudySpec& spec, Violations* violations)
      : spec_(spec), violations_(violations), only_custom_(OnlyCustom()) {}

  Grid Read() {
    ReadFixed();
    for (const v1::Axis& axis : spec_.matrix()) {
      GridFactor factor{{ReadAxis(axis, "matrix")}, axis.values_size()};
      CheckDistinct(factor);
      grid_.factors.push_back(std::move(factor));
    }
    for (int i = 0; i < spec_.zip_size(); ++i) ReadZip(spec_.zip(i), absl::StrCat("zip[", i, "]"));
    CheckElsewhere();
    CheckTemplates(grid_, violations_);
    if (!grid_.Sets("ranks") && !grid_.unknown_keys) {
      violations_->Add(
          "matrix.ranks",
          "ranks is not set; write for example ranks: [1, 2, 4] in matrix, or ranks: 2 in fixed");
    }
    if (spec_.exclude_size() > kMaxExclude) {
      violations_->Add("exclude",
                       absl::StrCat("exclude has ", WithCommas(spec_.exclude_size()),
                                    " entries; at most 1,000 are allowed: name fewer keys in each"));
      grid_.sound = false;
    }
    for (int i = 0; i < spec_.exclude_size(); ++i) {
      std::string path = absl::StrCat("exclude[", i, "]");
      if (spec_.exclude(i).fields().empty()) {
        violations_->Add(path, "the entry has no keys and would exclude every cell; remove it");
      }
      CheckPattern(spec_.exclude(i), path);
    }
    CheckPattern(spec_.baseline(), "baseline");
    return std::move(grid_);
  }

 private:
  // In a study that uses only engine custom, models and data sets may have any names.
  bool OnlyCustom() const {
    auto custom = [](const Value& value) { return RunsOwnProgram(value.string_value()); };
    auto all_custom = [&](const v1::Axis& axis) {
      return axis.key() == "engine" && std::all_of(axis.values().begin(), axis.values().end(), custom);
    };
    auto fixed = spec_.fixed().fields().find("engine");
    if (fixed != spec_.fixed().fields().end()) return custom(fixed->second);
    if (std::any_of(spec_.matrix().begin(), spec_.matrix().end(), all_custom)) return true;
    for (const v1::ZipGroup& group : spec_.zip()) {
      if (std::any_of(group.axes().begin(), group.axes().end(), all_custom)) return true;
    }
    return false;
  }

  // Returns the key. If the key is not known, adds a violation and returns a key whose parameter is null.
  GridKey Find(absl::string_view name, const std::string& path) {
    GridKey key = FindGridKey(name);
    if (std::optional<std::string> problem = CheckKey(key)) {
      violations_->Add(path, *std::move(problem));
      grid_.unknown_keys = true;
      key.parameter = nullptr;
    }
    return key;
  }

  bool Check(const GridKey& key, const Value& value, std::string path) {
    if (key.parameter == nullptr) return false;
    bool any_choice = only_custom_ && (key.name == "model" || key.name == "dataset");
    std::optional<std::string> problem = CheckValue(key, value, any_choice);
    if (!problem) return true;
    violations_->Add(std::move(path), *std::move(problem));
    return false;
  }

  // Records that `section` sets `name`. Adds a violation if it is already set.
  void Claim(absl::string_view name, absl::string_view section, const std::string& path) {
    if (absl::StartsWith(name, "params.")) CheckVariable(name, path);
    auto [it, fresh] = home_.emplace(std::string(name), std::string(section));
    if (fresh) return;
    violations_->Add(path,
                     it->second == section
                         ? absl::StrCat(name, " is set twice in ", section, "; keep one")
                         : absl::StrCat(name, " is set in ", it->second, " and in ", section, "; keep one"));
    grid_.sound = false;
  }

  // Adds a violation if another parameter has the same environment variable.
  void CheckVariable(absl::string_view name, const std::string& path) {
    const auto [it, fresh] = variables_.emplace(absl::AsciiStrToUpper(name), std::string(name));
    if (fresh || it->second == name) return;
    violations_->Add(
        path, absl::StrCat(name, " and ", it->second, " differ only in upper and lower case; rename one"));
  }

  void ReadFixed() {
    for (const auto& [name, value] : Sorted(spec_.fixed())) {
      std::string path = absl::StrCat("fixed.", name);
      const GridKey key = Find(name, path);
      Claim(name, "fixed", path);
      Check(key, *value, path);
      if (key.parameter != nullptr) grid_.fixed.emplace_back(key, value);
    }
  }

  GridAxis ReadAxis(const v1::Axis& axis, const std::string& section) {
    GridAxis out{absl::StrCat(section, ".", axis.key()), axis.key(), {}, &axis.values()};
    out.key = Find(axis.key(), out.path);
    Claim(axis.key(), section, out.path);
    if (axis.values().empty()) {
      violations_->Add(out.path,
                       absl::StrCat(axis.key(), " has no values; give at least one, or remove the axis"));
      grid_.sound = false;
    }
    if (out.key.parameter != nullptr) {
      for (int i = 0; i < axis.values_size(); ++i)
        Check(out.key, axis.values(i), absl::StrCat(out.path, "[", i, "]"));
    }
    return out;
  }

  void ReadZip(const v1::ZipGroup& group, const std::string& path) {
    if (group.axes().empty()) {
      violations_->Add(
          path, "the zip group has no axes; write for example {ranks: [1, 2], global_batch: [64, 128]}");
      grid_.sound = false;
      return;
    }
    GridFactor factor;
    factor.length = group.axes(0).values_size();
    for (const v1::Axis& axis : group.axes()) {
      factor.axes.push_back(ReadAxis(axis, path));
      if (axis.values_size() == factor.length || axis.values().empty()) continue;
      violations_->Add(factor.axes.back().path,
                       absl::StrCat("all axes of a zip group must have the same number of values, but ",
                                    group.axes(0).key(), " has ", factor.length, " and ", axis.key(), " has ",
                                    axis.values_size()));
      grid_.sound = false;
    }
    if (grid_.sound) CheckDistinct(factor);
    grid_.factors.push_back(std::move(factor));
  }

  // Equal values in a factor would create the same cell twice.
  void CheckDistinct(const GridFactor& factor) {
    std::unordered_set<std::string> seen;
    for (int i = 0; i < factor.length; ++i) {
      std::string place;
      for (const GridAxis& axis : factor.axes) {
        std::string value = Fingerprint(axis.values->Get(i));
        absl::StrAppend(&place, value.size(), ":", value);
      }
      if (seen.insert(std::move(place)).second) continue;
      const GridAxis& axis = factor.axes.front();
      violations_->Add(absl::StrCat(axis.path, "[", i, "]"),
                       factor.axes.size() == 1
                           ? absl::StrCat(axis.name, " has the value ", Show(axis.values->Get(i)), " twice")
                           : absl::StrCat("the zip group repeats its values at index ", i));
    }
  }

  // Checks keys that can also be set in a section outside of the grid.
  void CheckElsewhere() {
    struct Home {
      absl::string_view key, other;
      bool set;
    };
    for (const Home& home : {
             Home{"global_batch", "scaling.global_batch", spec_.scaling().global_batch() != 0},
             Home{"batch_per_rank", "scaling.batch_per_rank", spec_.scaling().batch_per_rank() != 0},
             Home{"learning_rate", "lr.base", spec_.lr().base() != 0},
             Home{"cpus_per_rank", "resources.cpus_per_rank", spec_.resources().cpus_per_rank() != 0},
             Home{"gpus_per_rank", "resources.gpus_per_rank", spec_.resources().gpus_per_rank() != 0},
         }) {
      if (!home.set || !grid_.Sets(home.key)) continue;
      violations_->Add(PathOf(home.key),
                       absl::StrCat(home.key, " is also set as ", home.other, "; keep one"));
    }
    bool weak = spec_.scaling().mode() == v1::Scaling::WEAK;
    if (weak && grid_.Sets("global_batch")) {
      violations_->Add(PathOf("global_batch"),
                       "global_batch is for strong scaling; use batch_per_rank instead, or "
                       "scaling: {mode: strong}");
    }
    if (!weak && grid_.Sets("batch_per_rank")) {
      violations_->Add(PathOf("batch_per_rank"),
                       "batch_per_rank is for weak scaling; add scaling: {mode: weak}");
    }
  }

  std::string PathOf(absl::string_view name) const {
    size_t factor;
    const GridAxis* axis = grid_.FindAxis(name, &factor);
    return axis != nullptr ? axis->path : absl::StrCat("fixed.", name);
  }

  void CheckPattern(const Struct& pattern, const std::string& path) {
    for (const auto& [name, value] : Sorted(pattern)) {
      std::string field = absl::StrCat(path, ".", name);
      const GridKey key = FindGridKey(name);
      if (std::optional<std::string> problem = CheckKey(key)) {
        violations_->Add(field, *std::move(problem));
      } else {
        Check(key, *value, field);
      }
    }
  }

  const StudySpec& spec_;
  Violations* violations_;
  const bool only_custom_;
  Grid grid_;
  std::unordered_map<std::string, std::string> home_;       // key -> section
  std::unordered_map<std::string, std::string> variables_;  // upper-case name -> key
};

}  // namespace

const GridAxis* Grid::FindAxis(absl::string_view name, size_t* factor) const {
  for (size_t f = 0; f < factors.size(); ++f) {
    for (const GridAxis& axis : factors[f].axes) {
      if (axis.name != name) continue;
      *factor = f;
      return &axis;
    }
  }
  return nullptr;
}

bool Grid::Sets(absl::string_view name) const {
  size_t factor;
  return FindAxis(name, &factor) != nullptr ||
         std::any_of(fixed.begin(), fixed.end(), [&](const auto& entry) { return entry.first.name == name; });
}

std::string Grid::Where(absl::string_view name, const std::vector<int>& index,
                        absl::string_view otherwise) const {
  size_t factor;
  if (const GridAxis* axis = FindAxis(name, &factor))
    return absl::StrCat(axis->path, "[", index[factor], "]");
  return Sets(name) ? absl::StrCat("fixed.", name) : std::string(otherwise);
}

Grid ReadGrid(const StudySpec& spec, Violations* violations) { return GridReader(spec, violations).Read(); }

CellMatcher::CellMatcher(const Struct& entry, const Grid& grid) {
  for (const auto& [name, value] : Sorted(entry)) {
    size_t factor;
    const GridAxis* axis = grid.FindAxis(name, &factor);
    GridKey key = FindGridKey(name);
    if (axis != nullptr) {
      OnAxis on{factor, {}};
      for (const Value& v : *axis->values) on.matches.push_back(SameValue(v, *value));
      axes_.push_back(std::move(on));
    } else if (key.parameter != nullptr) {
      fields_.push_back({std::move(key), value});
    }
  }
}

bool CellMatcher::Matches(const std::vector<int>& index, const v1::RunSpec& spec) const {
  return std::all_of(axes_.begin(), axes_.end(),
                     [&](const OnAxis& on) { return on.matches[index[on.factor]]; }) &&
         MatchesFields(spec);
}

bool CellMatcher::HasAxisOf(size_t factor) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const OnAxis& on) { return on.factor == factor; });
}

bool CellMatcher::MatchesValue(size_t factor, int index) const {
  return std::all_of(axes_.begin(), axes_.end(),
                     [&](const OnAxis& on) { return on.factor != factor || on.matches[index]; });
}

bool CellMatcher::MatchesFields(const v1::RunSpec& spec) const {
  return std::all_of(fields_.begin(), fields_.end(),
                     [&](const OnField& on) { return FieldEquals(on.key, *on.value, spec); });
}

namespace {

constexpr size_t kWordBits = 64;

void SetBit(std::vector<uint64_t>& bits, size_t i) { bits[i / kWordBits] |= uint64_t{1} << (i % kWordBits); }
void ClearBit(std::vector<uint64_t>& bits, size_t i) {
  bits[i / kWordBits] &= ~(uint64_t{1} << (i % kWordBits));
}

}  // namespace

int64_t ExcludeIndex::Cost(const StudySpec& spec, const Grid& grid, int64_t cells) {
  int64_t cost = 0;
  for (const Struct& entry : spec.exclude()) {
    for (const auto& [name, value] : entry.fields()) {
      size_t factor;
      const GridAxis* axis = grid.FindAxis(name, &factor);
      cost += axis != nullptr ? axis->values->size() : cells;
    }
  }
  return cost;
}

ExcludeIndex::ExcludeIndex(const StudySpec& spec, const Grid& grid) {
  entries_.reserve(spec.exclude_size());
  for (const Struct& entry : spec.exclude()) entries_.emplace_back(entry, grid);
  const Bits none((entries_.size() + kWordBits - 1) / kWordBits);
  on_fields_ = all_ = used_ = matches_ = none;
  for (size_t i = 0; i < entries_.size(); ++i) {
    SetBit(all_, i);
    if (entries_[i].HasFields()) SetBit(on_fields_, i);
  }
  for (size_t f = 0; f < grid.factors.size(); ++f) {
    auto& by_value = possible_.emplace_back(grid.factors[f].length, all_);
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].HasAxisOf(f)) continue;
      for (int v = 0; v < grid.factors[f].length; ++v) {
        if (!entries_[i].MatchesValue(f, v)) ClearBit(by_value[v], i);
      }
    }
  }
}

bool ExcludeIndex::Matches(const std::vector<int>& index, const v1::RunSpec& spec) {
  matches_ = all_;
  bool any = false;
  for (size_t w = 0; w < matches_.size(); ++w) {
    for (size_t f = 0; f < possible_.size(); ++f) matches_[w] &= possible_[f][index[f]][w];
    for (uint64_t left = matches_[w] & on_fields_[w]; left != 0; left &= left - 1) {
      const uint64_t bit = left & -left;
      const size_t i = w * kWordBits + static_cast<size_t>(__builtin_ctzll(left));
      if (!entries_[i].MatchesFields(spec)) matches_[w] &= ~bit;
    }
    used_[w] |= matches_[w];
    any = any || matches_[w] != 0;
  }
  return any;
}

std::vector<int> ExcludeIndex::Unused() const {
  std::vector<int> unused;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if ((used_[i / kWordBits] >> (i % kWordBits) & 1) == 0) unused.push_back(static_cast<int>(i));
  }
  return unused;
}

}  // namespace scalelab
