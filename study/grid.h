// The grid of a study: fixed values, axes, and the cells that an entry of "exclude" or "baseline" selects.
// Internal to this library.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/values.h"

namespace scalelab {

struct GridAxis {
  std::string path;  // "matrix.engine", "zip[0].params.dropout"
  std::string name;  // "engine", "params.dropout"
  GridKey key;       // its parameter is null for a key that a study cannot use
  const google::protobuf::RepeatedPtrField<google::protobuf::Value>* values;
};

// Axes that vary together. They form one factor of the grid's product. An axis of `matrix` forms a factor
// alone.
struct GridFactor {
  std::vector<GridAxis> axes;
  int length = 0;
};

// The grid of a specification. It refers to the specification.
struct Grid {
  std::vector<std::pair<GridKey, const google::protobuf::Value*>> fixed;
  std::vector<GridFactor> factors;  // matrix, then zip; the first one varies slowest
  bool sound = true;                // can be expanded, even if some values are invalid
  bool unknown_keys = false;        // if true, a key that seems to be missing may only be misspelt

  const GridAxis* FindAxis(absl::string_view name, size_t* factor) const;
  // Returns whether the key is fixed or an axis.
  bool Sets(absl::string_view name) const;
  // Returns the field path of the key's value in the cell at `index`: the path of its axis or its path in
  // "fixed"; `otherwise` if the study does not set the key.
  std::string Where(absl::string_view name, const std::vector<int>& index, absl::string_view otherwise) const;
};

// Reads fixed, matrix and zip. Checks them, exclude and baseline: their keys, their values, and that each key
// is set in only one section.
Grid ReadGrid(const scalelab::v1::StudySpec& spec, Violations* violations);

// Selects the cells that have the same values as `entry` in all of its keys.
class CellMatcher {
 public:
  CellMatcher(const google::protobuf::Struct& entry, const Grid& grid);
  // `index` has the index of the cell's value in each factor.
  bool Matches(const std::vector<int>& index, const scalelab::v1::RunSpec& spec) const;
  // The parts of Matches.
  bool HasAxisOf(size_t factor) const;
  bool MatchesValue(size_t factor, int index) const;
  bool HasFields() const { return !fields_.empty(); }
  bool MatchesFields(const scalelab::v1::RunSpec& spec) const;

 private:
  // An axis is compared by the index of its value, which costs one look-up per cell. Other keys are compared
  // with the finished cell.
  struct OnAxis {
    size_t factor;
    std::vector<bool> matches;
  };
  struct OnField {
    GridKey key;
    const google::protobuf::Value* value;
  };
  std::vector<OnAxis> axes_;
  std::vector<OnField> fields_;
};

// The entries of "exclude", indexed by the values of the axes: a cell is compared with all entries at once.
class ExcludeIndex {
 public:
  // `spec` must outlive the index.
  ExcludeIndex(const scalelab::v1::StudySpec& spec, const Grid& grid);
  // Returns whether an entry selects the cell.
  bool Matches(const std::vector<int>& index, const scalelab::v1::RunSpec& spec);
  // Returns the entries that have selected no cell so far.
  std::vector<int> Unused() const;
  // Returns the number of comparisons of values that building and using an index takes.
  static int64_t Cost(const scalelab::v1::StudySpec& spec, const Grid& grid, int64_t cells);

 private:
  using Bits = std::vector<uint64_t>;        // one for each entry
  std::vector<std::vector<Bits>> possible_;  // by factor and index of its value: entries that may match
  std::vector<CellMatcher> entries_;
  Bits on_fields_;  // entries with keys that are not axes
  Bits all_;
  Bits used_;
  Bits matches_;
};

}  // namespace scalelab
