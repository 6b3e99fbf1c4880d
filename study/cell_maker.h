// Makes the cells of a grid. Internal to this library.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/cell_list.h"
#include "study/grid.h"

namespace scalelab {

// Iterates over the cells of a grid, and computes the fields that are derived from a cell's other values.
// Keeps one RunSpec, so that a cell costs only the fields that differ from those of the cell before it.
class CellMaker {
 public:
  // `raw` is the specification as written, `spec` the one with defaults; they and `grid` must outlive the maker.
  CellMaker(const scalelab::v1::StudySpec& raw, const scalelab::v1::StudySpec& spec, const Grid& grid);

  // Goes to the cell with these indexes of values, one for each factor.
  void MoveTo(const std::vector<int>& index);
  // Returns the specification of this cell. If `command` is an axis, the specification has an empty command,
  // because copying a long command for each cell would take long.
  const scalelab::v1::RunSpec& spec() const { return run_; }
  // Adds this cell to the list, which must share values().
  void AddTo(CellList* list);
  const std::shared_ptr<CellValues>& values() const { return values_; }

 private:
  struct Place {
    size_t factor;
    const GridAxis* axis;
    std::vector<int> numbers;  // of its values
    bool derived;              // the cell's value may differ from the axis' one
  };

  void SetAxis(const Place& place, int index);
  void ResetDerived();
  void Derive();
  template <class T>
  void AddDerived(const char* name, const T& value, const T& common);

  const scalelab::v1::StudySpec& spec_;
  const bool dataset_set_, augment_set_, epochs_set_, warmup_set_, cores_set_;
  scalelab::v1::RunSpec base_;  // the values with which all cells begin
  std::vector<Place> places_;   // by name of the axis
  std::vector<int> index_;      // of this cell
  scalelab::v1::RunSpec run_;
  std::shared_ptr<CellValues> values_;
  std::vector<int> key_, listed_;  // buffers of AddTo, which are reused
};

}  // namespace scalelab
