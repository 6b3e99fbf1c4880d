// The cells of a study in little memory: a value is stored once, however many cells have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "google/protobuf/struct.pb.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab {

// One point of the grid.
struct Cell {
  google::protobuf::Struct key;  // values of the axes only, including ranks if it is an axis
  scalelab::v1::RunSpec spec;    // complete; the seed is that of repeat 0
};

// The values that the cells of a study have, numbered from 1.
class CellValues {
 public:
  // `common` has the parameters of a cell that lists no values.
  explicit CellValues(scalelab::v1::RunSpec common);

  void SetCommon(scalelab::v1::RunSpec common);
  const scalelab::v1::RunSpec& common() const { return common_; }
  // Returns `common` without the command, which may be long.
  const scalelab::v1::RunSpec& short_common() const { return short_common_; }
  // Returns the number of a value of parameter `name`; adds the value unless an equal one was added before.
  int NumberOf(absl::string_view name, const google::protobuf::Value& value);
  // Frees the memory that only NumberOf needs.
  void Finish() { numbers_.clear(); }

  int size() const { return static_cast<int>(entries_.size()); }  // also the largest number
  const std::string& name(int number) const { return entries_[number - 1].name; }
  const google::protobuf::Value& value(int number) const { return entries_[number - 1].value; }
  // Returns the field of RunSpec for the value's parameter; null if this version has no such parameter.
  const google::protobuf::FieldDescriptor* field(int number) const { return entries_[number - 1].field; }
  // Returns the name within a field that is a map: "dropout" for "params.dropout"; empty for other fields.
  const std::string& member(int number) const { return entries_[number - 1].member; }

 private:
  struct Entry {
    std::string name;
    google::protobuf::Value value;
    const google::protobuf::FieldDescriptor* field;
    std::string member;
  };
  scalelab::v1::RunSpec common_, short_common_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, int> numbers_;  // by name and fingerprint of the value
};

// A list of cells. Several lists can share their values.
class CellList {
 public:
  CellList() : CellList(std::make_shared<CellValues>(scalelab::v1::RunSpec())) {}
  explicit CellList(std::shared_ptr<CellValues> values) : values_(std::move(values)) {}

  void Reserve(size_t cells, size_t numbers_each);
  // Adds a cell by the numbers of its values: those of its axes, and those in which it differs from the common ones.
  void Add(absl::Span<const int> key, absl::Span<const int> spec);
  void Add(const Cell& cell);

  size_t size() const { return ends_.size() / 2; }
  bool empty() const { return ends_.empty(); }
  CellValues& values() { return *values_; }
  const CellValues& values() const { return *values_; }
  // The numbers of a cell's values.
  absl::Span<const int> key(size_t i) const { return Numbers(2 * i); }
  absl::Span<const int> spec(size_t i) const { return Numbers(2 * i + 1); }

  // The following functions make a new message in each call.
  google::protobuf::Struct Key(size_t i) const;
  scalelab::v1::RunSpec Spec(size_t i) const;
  // Returns the specification without `command`, which may be long and does not determine how
  // the cell trains.
  scalelab::v1::RunSpec SpecWithoutCommand(size_t i) const;
  Cell operator[](size_t i) const { return {Key(i), Spec(i)}; }
  Cell back() const { return (*this)[size() - 1]; }

  // Return the value of a field of RunSpec, by the field's number, which must be of type string or int32.
  std::string Text(size_t i, int field) const;
  int32_t Int(size_t i, int field) const;
  // The resources that a cell needs on nodes.
  struct Needs {
    int ranks = 1, cpus_per_rank = 1, gpus_per_rank = 0;
  };
  Needs NeedsOf(size_t i) const;

  class Iterator {
   public:
    using value_type = Cell;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;
    Iterator() = default;
    Iterator(const CellList* list, size_t i) : list_(list), i_(i) {}
    Cell operator*() const { return (*list_)[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    Iterator operator++(int) { return {list_, i_++}; }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

   private:
    const CellList* list_ = nullptr;
    size_t i_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  void AddMembers(const google::protobuf::FieldDescriptor* field, const scalelab::v1::RunSpec& from,
                  std::vector<int>* numbers);
  // Returns the value that the cell lists for the field; null if it lists none.
  const google::protobuf::Value* Listed(size_t i, int field) const;
  absl::Span<const int> Numbers(size_t range) const {
    const size_t begin = range == 0 ? 0 : ends_[range - 1];
    return absl::MakeConstSpan(numbers_).subspan(begin, ends_[range] - begin);
  }

  std::shared_ptr<CellValues> values_;
  std::vector<int> numbers_;    // for each cell: the numbers of the key, then those of the specification
  std::vector<uint32_t> ends_;  // two for each cell: where its ranges of numbers_ end
};

}  // namespace scalelab
