#include "study/cell_list.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Struct;
using google::protobuf::Value;
using v1::RunSpec;

bool IsMap(const FieldDescriptor* field) { return field->message_type() == Struct::descriptor(); }

const Struct& MapOf(const FieldDescriptor* field, const RunSpec& spec) {
  return static_cast<const Struct&>(RunSpec::GetReflection()->GetMessage(spec, field));
}

template <class Integer>
Integer Whole(double number) {
  constexpr double kLeast = static_cast<double>(std::numeric_limits<Integer>::min());
  return number >= kLeast && number < -kLeast ? static_cast<Integer>(number) : 0;
}

// Sets a field. Unlike SetField of values.h, it accepts values outside of the ranges of this version, because
// an older version may have stored them.
void Set(const FieldDescriptor* field, const std::string& member, const Value& value, RunSpec* spec) {
  const auto* reflection = RunSpec::GetReflection();
  if (IsMap(field)) {
    auto& map = static_cast<Struct&>(*reflection->MutableMessage(spec, field));
    (*map.mutable_fields())[member] = value;
    return;
  }
  if (field->is_repeated()) {
    reflection->ClearField(spec, field);
    for (const Value& v : value.list_value().values()) reflection->AddString(spec, field, v.string_value());
    return;
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(spec, field, value.string_value());
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(spec, field, Whole<int32_t>(value.number_value()));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(spec, field, Whole<int64_t>(value.number_value()));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(spec, field, value.number_value());
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(spec, field, value.bool_value());
    default:
      return;  // RunSpec has no other types
  }
}

Value Get(const FieldDescriptor* field, const RunSpec& spec) {
  const auto* reflection = RunSpec::GetReflection();
  Value value;
  if (field->is_repeated()) {
    auto& list = *value.mutable_list_value();
    for (int i = 0; i < reflection->FieldSize(spec, field); ++i)
      list.add_values()->set_string_value(reflection->GetRepeatedString(spec, field, i));
    return value;
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      value.set_string_value(reflection->GetString(spec, field));
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      value.set_number_value(reflection->GetInt32(spec, field));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      value.set_number_value(static_cast<double>(reflection->GetInt64(spec, field)));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      value.set_number_value(reflection->GetDouble(spec, field));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      value.set_bool_value(reflection->GetBool(spec, field));
      break;
    default:
      break;
  }
  return value;
}

}  // namespace

CellValues::CellValues(RunSpec common) { SetCommon(std::move(common)); }

void CellValues::SetCommon(RunSpec common) {
  common_ = std::move(common);
  google::protobuf::RepeatedPtrField<std::string> command;
  command.Swap(common_.mutable_command());
  short_common_ = common_;
  command.Swap(common_.mutable_command());
}

int CellValues::NumberOf(absl::string_view name, const Value& value) {
  const auto [it, is_new] = numbers_.try_emplace(absl::StrCat(name, "=", Fingerprint(value)),
                                                 static_cast<int>(entries_.size()) + 1);
  if (is_new) {
    const std::string field(name.substr(0, name.find('.')));
    const std::string member(field.size() == name.size() ? "" : name.substr(field.size() + 1));
    entries_.push_back({std::string(name), value, RunSpec::descriptor()->FindFieldByName(field), member});
  }
  return it->second;
}

void CellList::Reserve(size_t cells, size_t numbers_each) {
  ends_.reserve(2 * cells);
  numbers_.reserve(cells * numbers_each);
}

void CellList::Add(absl::Span<const int> key, absl::Span<const int> spec) {
  for (const absl::Span<const int> range : {key, spec}) {
    numbers_.insert(numbers_.end(), range.begin(), range.end());
    ends_.push_back(static_cast<uint32_t>(numbers_.size()));
  }
}

void CellList::Add(const Cell& cell) {
  std::vector<std::pair<absl::string_view, const Value*>> axes;
  for (const auto& [name, value] : cell.key.fields()) axes.emplace_back(name, &value);
  std::sort(axes.begin(), axes.end());  // protobuf's order differs from process to process
  std::vector<int> key, spec;
  for (const auto& [name, value] : axes) key.push_back(values_->NumberOf(name, *value));
  const auto* descriptor = RunSpec::descriptor();
  for (int f = 0; f < descriptor->field_count(); ++f) {
    if (IsMap(descriptor->field(f))) {
      AddMembers(descriptor->field(f), cell.spec, &spec);
      continue;
    }
    const Value value = Get(descriptor->field(f), cell.spec);
    if (SameValue(value, Get(descriptor->field(f), values_->common()))) continue;
    spec.push_back(values_->NumberOf(descriptor->field(f)->name(), value));
  }
  Add(key, spec);
}

// Appends the numbers of those members of a map that differ from the common ones.
void CellList::AddMembers(const FieldDescriptor* field, const RunSpec& from, std::vector<int>* numbers) {
  const auto& common = MapOf(field, values_->common()).fields();
  std::vector<std::pair<absl::string_view, const Value*>> members;
  for (const auto& [name, value] : MapOf(field, from).fields()) {
    const auto same = common.find(name);
    if (same == common.end() || !SameValue(same->second, value)) members.emplace_back(name, &value);
  }
  std::sort(members.begin(), members.end());
  for (const auto& [name, value] : members)
    numbers->push_back(values_->NumberOf(absl::StrCat(field->name(), ".", name), *value));
}

Struct CellList::Key(size_t i) const {
  Struct key;
  for (const int number : this->key(i))
    (*key.mutable_fields())[values_->name(number)] = values_->value(number);
  return key;
}

RunSpec CellList::Spec(size_t i) const {
  RunSpec spec = values_->common();
  for (const int number : this->spec(i)) {
    if (const FieldDescriptor* field = values_->field(number))
      Set(field, values_->member(number), values_->value(number), &spec);
  }
  return spec;
}

RunSpec CellList::SpecWithoutCommand(size_t i) const {
  RunSpec spec = values_->short_common();
  for (const int number : this->spec(i)) {
    const FieldDescriptor* field = values_->field(number);
    if (field != nullptr && field->number() != RunSpec::kCommandFieldNumber)
      Set(field, values_->member(number), values_->value(number), &spec);
  }
  return spec;
}

const Value* CellList::Listed(size_t i, int field) const {
  for (const int number : spec(i)) {
    const FieldDescriptor* of_value = values_->field(number);
    if (of_value != nullptr && of_value->number() == field) return &values_->value(number);
  }
  return nullptr;
}

std::string CellList::Text(size_t i, int field) const {
  if (const Value* listed = Listed(i, field)) return listed->string_value();
  return RunSpec::GetReflection()->GetString(values_->short_common(),
                                             RunSpec::descriptor()->FindFieldByNumber(field));
}

int32_t CellList::Int(size_t i, int field) const {
  if (const Value* listed = Listed(i, field)) return Whole<int32_t>(listed->number_value());
  return RunSpec::GetReflection()->GetInt32(values_->short_common(),
                                            RunSpec::descriptor()->FindFieldByNumber(field));
}

CellList::Needs CellList::NeedsOf(size_t i) const {
  return {Int(i, RunSpec::kRanksFieldNumber), Int(i, RunSpec::kCpusPerRankFieldNumber),
          Int(i, RunSpec::kGpusPerRankFieldNumber)};
}

}  // namespace scalelab
