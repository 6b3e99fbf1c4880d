#include "worker/trainer/training_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/lr_milestones.h"
#include "catalog/run_parameters.h"
#include "nlohmann/json.hpp"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using nlohmann::json;

// Reads the fields of one JSON object and checks them by the table of run parameters. Every error names file and field.
class FieldReader {
 public:
  FieldReader(const json& object, const std::string& source) : object_(object), source_(source) {}

  void Read(const RunParameter& parameter, std::string& out) const {
    const json* value = Find(parameter);
    if (value == nullptr) return;
    if (!value->is_string()) Fail(parameter.name, "is not a string", *value);
    if (value->get_ref<const std::string&>().empty()) return;
    out = value->get<std::string>();
    const auto& choices = parameter.choices;
    if (choices.empty() || std::find(choices.begin(), choices.end(), out) != choices.end()) return;
    Fail(parameter.name, "must be one of \"" + absl::StrJoin(choices, "\", \"") + "\", it is", *value);
  }

  void Read(const RunParameter& parameter, bool& out) const {
    const json* value = Find(parameter);
    if (value == nullptr) return;
    if (!value->is_boolean()) Fail(parameter.name, "is neither true nor false", *value);
    out = value->get<bool>();
  }

  void Read(const RunParameter& parameter, int64_t& out) const {
    const json* value = Find(parameter);
    if (value == nullptr) return;
    const int64_t usual = out;
    if (value->is_number_integer()) {
      out = value->get<int64_t>();
    } else if (value->is_number_float() && value->get<double>() == std::floor(value->get<double>()) &&
               std::abs(value->get<double>()) < 9e15) {
      out = static_cast<int64_t>(value->get<double>());
    } else if (!value->is_string() || !FromText(value->get_ref<const std::string&>(), out)) {
      Fail(parameter.name, "is not an integer", *value);
    }
    if (out != usual) CheckRange(parameter, static_cast<double>(out), *value);
  }

  void Read(const RunParameter& parameter, double& out) const {
    const json* value = Find(parameter);
    if (value == nullptr) return;
    const double usual = out;
    if (value->is_number()) {
      out = value->get<double>();
    } else if (!value->is_string() || !FromText(value->get_ref<const std::string&>(), out)) {
      Fail(parameter.name, "is not a number", *value);
    }
    if (!std::isfinite(out)) Fail(parameter.name, "is not a finite number", *value);
    if (out != usual) CheckRange(parameter, out, *value);
  }

  void Read(const RunParameter& parameter, std::vector<std::string>& out) const {
    const json* value = Find(parameter);
    if (value == nullptr) return;
    const bool texts = value->is_array() && std::all_of(value->begin(), value->end(),
                                                        [](const json& item) { return item.is_string(); });
    if (!texts) Fail(parameter.name, "is not a list of strings", *value);
    out = value->get<std::vector<std::string>>();
  }

  void Read(const RunParameter& parameter, std::map<std::string, std::string>& out) const {
    const json* value = Find(parameter);
    if (value == nullptr) return;
    if (!value->is_object()) Fail(parameter.name, "is not an object", *value);
    for (const auto& [name, member] : value->items()) out[name] = member.dump();
  }

  [[noreturn]] void Fail(absl::string_view name, const std::string& what, const json& value) const {
    throw TrainerError(
        absl::StrCat(source_, ": field \"", name, "\" ", what, ": ", value.dump().substr(0, 100)));
  }

 private:
  const json* Find(const RunParameter& parameter) const {
    auto it = object_.find(std::string(parameter.name));
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  void CheckRange(const RunParameter& parameter, double number, const json& value) const {
    // The table has no range for some integers. They may have any value of 64 bits.
    if (ValuesText(parameter).empty() || (number >= parameter.min && number <= parameter.max)) return;
    Fail(parameter.name,
         absl::StrCat("must be between ", ShowNumber(parameter.min), " and ", ShowNumber(parameter.max),
                      ", it is"),
         value);
  }

  template <typename T>
  static bool FromText(const std::string& text, T& out) {
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
  }

  const json& object_;
  const std::string& source_;
};

void CompleteBatches(const FieldReader& in, TrainingSpec& s) {
  if (s.global_batch == 0 && s.batch_per_rank == 0) s.batch_per_rank = kDefaultBatch;
  if (s.batch_per_rank == 0) {
    if (s.global_batch % s.ranks != 0) {
      in.Fail("global_batch", "does not divide evenly by " + std::to_string(s.ranks) + " ranks",
              s.global_batch);
    }
    s.batch_per_rank = s.global_batch / s.ranks;
  }
  if (s.global_batch == 0) s.global_batch = s.batch_per_rank * s.ranks;
  if (s.global_batch != s.batch_per_rank * s.ranks) {
    in.Fail("global_batch",
            "must equal batch_per_rank (" + std::to_string(s.batch_per_rank) + ") times ranks (" +
                std::to_string(s.ranks) + "), it is",
            s.global_batch);
  }
  if (s.cuda_graph && s.last_batch == "keep") {
    in.Fail("cuda_graph", "records a step of one size, but last_batch is \"keep\": remove one of them, it is",
            true);
  }
  if (s.accumulation_steps > s.batch_per_rank) {
    in.Fail("accumulation_steps",
            "must not exceed batch_per_rank (" + std::to_string(s.batch_per_rank) + "), it is",
            s.accumulation_steps);
  }
}

}  // namespace

TrainingSpec ParseTrainingSpec(const std::string& text, const std::string& source) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw TrainerError(source + ": not a JSON object; it must hold a RunSpec as protobuf JSON");
  }
  const FieldReader in(object, source);
  TrainingSpec s;
  size_t row = 0;
#define PARAMETER(number, name, ...) in.Read(RunParameters()[row++], s.name);
#include "catalog/run_parameters.def"
#undef PARAMETER
  CompleteBatches(in, s);
  const std::string mistake =
      LrMilestonesMistake(s.lr_milestones, s.lr_schedule, static_cast<double>(s.epochs));
  if (!mistake.empty()) throw TrainerError(absl::StrCat(source, ": ", mistake));
  return s;
}

TrainingSpec ReadTrainingSpec(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw TrainerError("cannot read the run's specification " + path +
                       ": SCALELAB_SPEC or the first argument must name a readable, non-empty JSON file");
  }
  return ParseTrainingSpec(text.str(), path);
}

}  // namespace scalelab::trainer
