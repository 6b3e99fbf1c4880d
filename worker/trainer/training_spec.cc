#include "worker/trainer/training_spec.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "nlohmann/json.hpp"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using nlohmann::json;

// Reads the fields of one JSON object; every complaint names file and field.
class FieldReader {
 public:
  FieldReader(const json& object, const std::string& source) : object_(object), source_(source) {}

  void Read(const char* name, std::string& out) const {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) Fail(name, "is not a string", *value);
    if (!value->get_ref<const std::string&>().empty()) out = value->get<std::string>();
  }

  void Read(const char* name, bool& out) const {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) Fail(name, "is neither true nor false", *value);
    out = value->get<bool>();
  }

  void Read(const char* name, int64_t& out) const {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (value->is_number_integer()) {
      out = value->get<int64_t>();
    } else if (value->is_number_float() && value->get<double>() == std::floor(value->get<double>()) &&
               std::abs(value->get<double>()) < 9e15) {
      out = static_cast<int64_t>(value->get<double>());
    } else if (!value->is_string() || !FromText(value->get_ref<const std::string&>(), out)) {
      Fail(name, "is not an integer", *value);
    }
  }

  void Read(const char* name, double& out) const {
    const json* value = Find(name);
    if (value == nullptr) return;
    if (value->is_number()) {
      out = value->get<double>();
    } else if (!value->is_string() || !FromText(value->get_ref<const std::string&>(), out)) {
      Fail(name, "is not a number", *value);
    }
    if (!std::isfinite(out)) Fail(name, "is not a finite number", *value);
  }

  [[noreturn]] void Fail(const char* name, const std::string& what, const json& value) const {
    throw TrainerError(source_ + ": field \"" + name + "\" " + what + ": " + value.dump().substr(0, 100));
  }

  void CheckRange(const char* name, double value, double low, double high) const {
    if (value < low || value > high) {
      std::ostringstream range;
      range << "must lie between " << low << " and " << high << ", it is";
      Fail(name, range.str(), value);
    }
  }

  void CheckChoice(const char* name, const std::string& value,
                   std::initializer_list<std::string_view> choices) const {
    std::string list;
    for (std::string_view choice : choices) {
      if (value == choice) return;
      list += (list.empty() ? "\"" : ", \"") + std::string(choice) + "\"";
    }
    Fail(name, "must be one of " + list + ", it is", value);
  }

 private:
  const json* Find(const char* name) const {
    auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
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
  if (s.global_batch == 0 && s.batch_per_rank == 0) s.batch_per_rank = 128;
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
    in.Fail("cuda_graph",
            "records a step of one size, but last_batch is \"keep\": leave one of them out, it is", true);
  }
  if (s.accumulation_steps == 0) s.accumulation_steps = 1;
  if (s.accumulation_steps > s.batch_per_rank) {
    in.Fail("accumulation_steps",
            "must not exceed batch_per_rank (" + std::to_string(s.batch_per_rank) + "), it is",
            s.accumulation_steps);
  }
}

void Check(const FieldReader& in, const TrainingSpec& s) {
  in.CheckRange("ranks", s.ranks, 1, 1 << 20);
  in.CheckRange("epochs", s.epochs, 1, 1'000'000);
  in.CheckRange("max_steps", s.max_steps, 0, 1e15);
  in.CheckRange("global_batch", s.global_batch, 0, 1 << 30);
  in.CheckRange("batch_per_rank", s.batch_per_rank, 0, 1 << 24);
  in.CheckRange("learning_rate", s.learning_rate, 0, 1e6);
  in.CheckRange("warmup_start_rate", s.warmup_start_rate, 0, 1e6);
  in.CheckRange("warmup_epochs", s.warmup_epochs, 0, 1e6);
  in.CheckRange("momentum", s.momentum, 0, 1);
  in.CheckRange("weight_decay", s.weight_decay, 0, 1e3);
  in.CheckRange("warmup_steps", s.warmup_steps, 0, 1e15);
  in.CheckRange("target_accuracy", s.target_accuracy, 0, 1);
  in.CheckRange("cpus_per_rank", s.cpus_per_rank, 1, 4096);
  in.CheckRange("bucket_cap_mib", s.bucket_cap_mib, 1, 1 << 16);
  in.CheckRange("comm_timeout_s", s.comm_timeout_s, 0.1, 1e6);
  in.CheckRange("train_samples", s.train_samples, 0, 1e12);
  in.CheckRange("accumulation_steps", s.accumulation_steps, 0, 1 << 24);
  in.CheckRange("first_bucket_cap_mib", s.first_bucket_cap_mib, 0, 1 << 16);
  in.CheckRange("fusion_threshold_mib", s.fusion_threshold_mib, 0, 1 << 16);
  in.CheckRange("cycle_time_ms", s.cycle_time_ms, 0, 1000);
  in.CheckRange("cache_capacity", s.cache_capacity, 0, 1 << 20);
  in.CheckRange("stall_warning_s", s.stall_warning_s, 0, 1e6);
  in.CheckChoice("gradient_compression", s.gradient_compression, {"none", "fp16"});
  in.CheckRange("image_size", s.image_size, 0, 1024);
  in.CheckRange("classes", s.classes, 0, 1000);
  in.CheckChoice("all_reduce", s.all_reduce, {"library", "ring", "hierarchical"});
  in.CheckChoice("last_batch", s.last_batch, {"drop", "keep"});
  in.CheckChoice("precision", s.precision, {"fp32", "tf32", "amp-bf16", "amp-fp16"});
  in.CheckChoice("lr_schedule", s.lr_schedule, {"constant", "step", "cosine"});
  in.CheckChoice("batch_norm", s.batch_norm, {"train", "sync", "eval"});
  in.CheckChoice("memory_format", s.memory_format, {"auto", "contiguous", "channels_last"});
  in.CheckChoice("device", s.device, {"auto", "cpu", "cuda"});
}

}  // namespace

TrainingSpec ParseTrainingSpec(const std::string& text, const std::string& source) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw TrainerError(source + ": not a JSON object; it must hold a RunSpec as protobuf JSON");
  }
  const FieldReader in(object, source);
  TrainingSpec s;
  in.Read("engine", s.engine);
  in.Read("model", s.model);
  in.Read("dataset", s.dataset);
  in.Read("data_dir", s.data_dir);
  in.Read("precision", s.precision);
  in.Read("backend", s.backend);
  in.Read("device", s.device);
  in.Read("ranks", s.ranks);
  in.Read("epochs", s.epochs);
  in.Read("max_steps", s.max_steps);
  in.Read("global_batch", s.global_batch);
  in.Read("batch_per_rank", s.batch_per_rank);
  in.Read("learning_rate", s.learning_rate);
  in.Read("warmup_start_rate", s.warmup_start_rate);
  in.Read("warmup_epochs", s.warmup_epochs);
  in.Read("lr_schedule", s.lr_schedule);
  in.Read("momentum", s.momentum);
  in.Read("weight_decay", s.weight_decay);
  in.Read("decay_norm", s.decay_norm);
  in.Read("augment", s.augment);
  in.Read("batch_norm", s.batch_norm);
  in.Read("seed", s.seed);
  in.Read("warmup_steps", s.warmup_steps);
  in.Read("evaluate", s.evaluate);
  in.Read("target_accuracy", s.target_accuracy);
  in.Read("cpus_per_rank", s.cpus_per_rank);
  in.Read("gpus_per_rank", s.gpus_per_rank);
  in.Read("memory_format", s.memory_format);
  in.Read("bucket_cap_mib", s.bucket_cap_mib);
  in.Read("train_samples", s.train_samples);
  in.Read("accumulation_steps", s.accumulation_steps);
  in.Read("first_bucket_cap_mib", s.first_bucket_cap_mib);
  in.Read("find_unused_parameters", s.find_unused_parameters);
  in.Read("static_graph", s.static_graph);
  in.Read("fusion_threshold_mib", s.fusion_threshold_mib);
  in.Read("cycle_time_ms", s.cycle_time_ms);
  in.Read("cache_capacity", s.cache_capacity);
  in.Read("gradient_compression", s.gradient_compression);
  in.Read("autotune", s.autotune);
  in.Read("stall_warning_s", s.stall_warning_s);
  in.Read("timeline", s.timeline);
  in.Read("all_reduce", s.all_reduce);
  in.Read("image_size", s.image_size);
  in.Read("classes", s.classes);
  in.Read("last_batch", s.last_batch);
  in.Read("cuda_graph", s.cuda_graph);
  in.Read("save_parameters", s.save_parameters);
  in.Read("comm_timeout_s", s.comm_timeout_s);
  Check(in, s);
  CompleteBatches(in, s);
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
