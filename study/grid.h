// The grid of a study: what is fixed, what the axes are, and which cells an entry of "exclude" or "baseline"
// means. Internal to this room.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "study/values.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab {

struct GridAxis {
  std::string path;     // "matrix.engine", "zip[0].ranks"
  std::string name;     // "engine"
  const RunParameter* key;  // null when there is no such key
  const google::protobuf::RepeatedPtrField<google::protobuf::Value>* values;
};

// Axes that move together (one, if it is of the matrix): one factor of the product.
struct GridFactor {
  std::vector<GridAxis> axes;
  int length = 0;
};

// Points into the specification it was read from.
struct Grid {
  std::vector<std::pair<const RunParameter*, const google::protobuf::Value*>> fixed;
  std::vector<GridFactor> factors;  // matrix, then zip; the first varies slowest
  bool sound = true;                // can be expanded, even if some of its values are wrong
  bool unknown_keys = false;        // then a key that seems to be missing may only be misspelt

  const GridAxis* FindAxis(absl::string_view name, size_t* factor) const;
  // Whether the key is fixed or an axis.
  bool Sets(absl::string_view name) const;
  // The field path of the key's value in the cell at `index`: of its axis, of "fixed", or `otherwise`.
  std::string Where(absl::string_view name, const std::vector<int>& index, absl::string_view otherwise) const;
};

// Reads fixed, matrix and zip, and checks them, exclude and baseline: keys, values, and that each key has one
// home.
Grid ReadGrid(const scalelab::v1::StudySpec& spec, Violations* violations);

// Cells that equal `entry` in every key it names.
class CellMatcher {
 public:
  CellMatcher(const google::protobuf::Struct& entry, const Grid& grid);
  // `index`: of the cell's value on each factor.
  bool Matches(const std::vector<int>& index, const scalelab::v1::RunSpec& spec) const;

 private:
  // An axis is matched by the place of its value, which costs a look-up a cell; anything else by the finished
  // cell.
  struct OnAxis {
    size_t factor;
    std::vector<bool> matches;
  };
  struct OnField {
    const RunParameter* key;
    const google::protobuf::Value* value;
  };
  std::vector<OnAxis> axes_;
  std::vector<OnField> fields_;
};

}  // namespace scalelab
