#include "server/cells/cells.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/cells/message_json.h"
#include "server/cells/parsed_messages.h"

namespace scalelab::server {
namespace {

using google::protobuf::Value;
using nlohmann::json;

json JsonOf(const Value& value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  switch (value.kind_case()) {
    case Value::kStringValue:
      return value.string_value();
    case Value::kBoolValue:
      return value.bool_value();
    case Value::kNumberValue: {
      const double number = value.number_value();
      if (number == std::floor(number) && std::abs(number) < kExact) return static_cast<int64_t>(number);
      return number;
    }
    case Value::kListValue: {
      json list = json::array();
      for (const Value& v : value.list_value().values()) list.push_back(JsonOf(v));
      return list;
    }
    default:
      return nullptr;  // validation refuses the others
  }
}

std::string Text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

bool ReadValue(const json& from, Value* value) {
  if (from.is_string()) {
    value->set_string_value(from.get<std::string>());
  } else if (from.is_boolean()) {
    value->set_bool_value(from.get<bool>());
  } else if (from.is_number()) {
    value->set_number_value(from.get<double>());
  } else if (from.is_array()) {
    auto& list = *value->mutable_list_value();
    return std::all_of(from.begin(), from.end(),
                       [&](const json& v) { return ReadValue(v, list.add_values()); });
  } else {
    return false;
  }
  return true;
}

std::string Array(absl::Span<const int> numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ","), "]");
}

// Returns whether a column of a row is a JSON object that an older version has stored.
bool IsWhole(const std::string& column) { return !column.empty() && column.front() == '{'; }

// Appends the numbers of "[3,17]" to `numbers`. Returns false if the text is something else.
bool ReadNumbers(absl::string_view text, std::vector<int>* numbers) {
  if (!absl::ConsumePrefix(&text, "[") || !absl::ConsumeSuffix(&text, "]")) return false;
  if (text.empty()) return true;
  while (true) {
    const size_t comma = text.find(',');
    if (!absl::SimpleAtoi(text.substr(0, comma), &numbers->emplace_back())) return false;
    if (comma == absl::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

class Reader {
 public:
  // Adds the values of the rows to the list of cells. NumberOf returns the number that a value gets there.
  absl::Status Values(absl::Span<const db::CellValueRow> rows) {
    for (const db::CellValueRow& row : rows) {
      absl::Status status = row.number == 0 ? Common(row) : OneValue(row);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Cell(const db::CellRow& row) {
    if (IsWhole(row.spec)) return WholeCell(row);
    key_.clear();
    spec_.clear();
    if (!ReadNumbers(row.key, &key_) || !ReadNumbers(row.spec, &spec_))
      return Damaged(row, "cannot be parsed");
    for (std::vector<int>* numbers : {&key_, &spec_}) {
      for (int& number : *numbers) {
        if (number < 1 || number >= static_cast<int>(numbers_.size()) || numbers_[number] == 0)
          return Damaged(row, absl::StrCat("lacks its value ", number));
        number = numbers_[number];
      }
    }
    if (!has_common_) return Damaged(row, "lacks its value 0");
    list_.Add(key_, spec_);
    return absl::OkStatus();
  }

  CellList Take() {
    values_->Finish();
    return std::move(list_);
  }
  void Reserve(size_t cells) { list_.Reserve(cells, 4); }

 private:
  static absl::Status Damaged(const db::CellRow& row, absl::string_view what) {
    return absl::DataLossError(absl::StrCat("cell ", row.id, " in the database ", what,
                                            "; restore a backup, see docs/operators/backup.md"));
  }

  absl::Status Common(const db::CellValueRow& row) {
    const auto common = MessagesOfProcess<v1::RunSpec>().Get(row.value);
    if (!common.ok()) return Unreadable(row);
    values_->SetCommon(**common);
    has_common_ = true;
    return absl::OkStatus();
  }

  absl::Status OneValue(const db::CellValueRow& row) {
    Value value;
    constexpr int kLargestNumber = 10'000'000;
    if (row.number < 0 || row.number > kLargestNumber ||
        !ReadValue(json::parse(row.value, nullptr, false), &value))
      return Unreadable(row);
    if (row.number >= static_cast<int>(numbers_.size())) numbers_.resize(row.number + 1);
    numbers_[row.number] = values_->NumberOf(row.name, value);
    return absl::OkStatus();
  }

  static absl::Status Unreadable(const db::CellValueRow& row) {
    return absl::DataLossError(absl::StrCat("value ", row.number, " of the cells of studies/", row.study_id,
                                            " in the database cannot be parsed; restore a backup, see "
                                            "docs/operators/backup.md"));
  }

  absl::Status WholeCell(const db::CellRow& row) {
    scalelab::Cell cell;
    if (!FromJson(row.spec, &cell.spec).ok() || !FromJson(row.key, &cell.key).ok())
      return Damaged(row, "cannot be parsed");
    if (!has_common_) values_->SetCommon(cell.spec);
    has_common_ = true;
    list_.Add(cell);
    return absl::OkStatus();
  }

  const std::shared_ptr<CellValues> values_ = std::make_shared<CellValues>(v1::RunSpec());
  CellList list_{values_};
  bool has_common_ = false;
  std::vector<int> numbers_;  // maps numbers in the database to numbers in values_; 0: none
  std::vector<int> key_, spec_;
};

}  // namespace

std::vector<db::CellValueRow> ToRows(const CellValues& values, int64_t study_id) {
  std::vector<db::CellValueRow> rows;
  rows.reserve(static_cast<size_t>(values.size()) + 1);
  rows.push_back({study_id, 0, "", ToFullJson(values.common())});
  for (int number = 1; number <= values.size(); ++number)
    rows.push_back({study_id, number, values.name(number), Text(JsonOf(values.value(number)))});
  return rows;
}

db::CellRow ToRow(const CellList& cells, size_t i) {
  using v1::RunSpec;
  db::CellRow row;
  row.engine = cells.Text(i, RunSpec::kEngineFieldNumber);
  row.model = cells.Text(i, RunSpec::kModelFieldNumber);
  row.precision = cells.Text(i, RunSpec::kPrecisionFieldNumber);
  row.backend = cells.Text(i, RunSpec::kBackendFieldNumber);
  row.ranks = cells.Int(i, RunSpec::kRanksFieldNumber);
  row.global_batch = cells.Int(i, RunSpec::kGlobalBatchFieldNumber);
  row.key = Array(cells.key(i));
  row.spec = Array(cells.spec(i));
  return row;
}

std::vector<int> NumbersOf(absl::Span<const db::CellRow> rows) {
  std::vector<int> numbers{0};
  for (const db::CellRow& row : rows) {
    if (IsWhole(row.spec)) continue;
    (void)ReadNumbers(row.key, &numbers);  // ReadCells reports an error
    (void)ReadNumbers(row.spec, &numbers);
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

absl::StatusOr<CellList> ReadCells(absl::Span<const db::CellValueRow> values,
                                   absl::Span<const db::CellRow> rows) {
  Reader reader;
  reader.Reserve(rows.size());
  if (absl::Status status = reader.Values(values); !status.ok()) return status;
  for (const db::CellRow& row : rows) {
    if (absl::Status status = reader.Cell(row); !status.ok()) return status;
  }
  return reader.Take();
}

}  // namespace scalelab::server
