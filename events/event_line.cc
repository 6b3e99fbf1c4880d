#include "events/event_line.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/utf8.h"

namespace scalelab {
namespace {

using nlohmann::json;

constexpr size_t kMaxKeyBytes = 256;
constexpr int kMaxDepth = 32;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool IsNotFinite(std::string_view text) { return text == "NaN" || text == "Infinity" || text == "-Infinity"; }

// Fast scanner for the JSON of nearly every line: ASCII strings without escapes, numbers, flat objects. It
// fails on everything else, and then the complete parser decides.
class PlainScanner {
 public:
  explicit PlainScanner(absl::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  bool Take(char c) {
    SkipSpace();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool AtEnd() {
    SkipSpace();
    return at_ == end_;
  }
  bool String(std::string_view* text) {
    if (!Take('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"') {
      // Bytes that are not ASCII are negative. char is unsigned on some processors.
      if (static_cast<signed char>(*at_) < 0x20 || *at_ == '\\' || *at_ == 0x7f) return false;
      ++at_;
    }
    if (at_ == end_) return false;
    *text = {begin, static_cast<size_t>(at_++ - begin)};
    return true;
  }
  bool Number(double* value) {
    SkipSpace();
    // from_chars accepts more than JSON ("01", "1.", "inf"), so check the form first.
    const char* p = at_;
    if (p != end_ && *p == '-') ++p;
    if (p == end_ || *p < '0' || *p > '9') return false;
    if (*p == '0' && p + 1 != end_ && p[1] >= '0' && p[1] <= '9') return false;
    const auto [stop, error] = std::from_chars(at_, end_, *value);
    if (error != std::errc() || stop[-1] < '0' || stop[-1] > '9') return false;
    at_ = stop;
    return true;
  }
  bool Integer(int64_t* value) {
    SkipSpace();
    if (at_ == end_ || *at_ < '0' || *at_ > '9') return false;
    if (*at_ == '0' && at_ + 1 != end_ && at_[1] >= '0' && at_[1] <= '9') return false;
    const auto [stop, error] = std::from_chars(at_, end_, *value);
    if (error != std::errc() || (stop != end_ && (*stop == '.' || *stop == 'e' || *stop == 'E')))
      return false;
    at_ = stop;
    return true;
  }

 private:
  void SkipSpace() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  const char* at_;
  const char* end_;
};

// Reads the integer `name`, 0 to `limit`. Returns the error; empty on success.
std::string ReadCount(const json& line, const char* name, int64_t limit, int64_t* value) {
  auto it = line.find(name);
  if (it == line.end()) return absl::StrCat("has no \"", name, "\"");
  if (!it->is_number_integer() ||
      (it->is_number_unsigned() && it->get<uint64_t>() > static_cast<uint64_t>(limit))) {
    return absl::StrCat("\"", name, "\" is not a whole number");
  }
  *value = it->get<int64_t>();
  return *value < 0 ? absl::StrCat("\"", name, "\" is negative") : "";
}

std::string ReadText(const json& line, const char* name, std::string* text) {
  auto it = line.find(name);
  if (it == line.end()) return "";
  if (!it->is_string()) return absl::StrCat("\"", name, "\" is not a string");
  *text = it->get<std::string>();
  return "";
}

std::string ReadMetrics(const json& line, std::vector<std::pair<std::string, double>>* metrics) {
  auto it = line.find("metrics");
  if (it == line.end()) return "";
  if (!it->is_object()) return "\"metrics\" is not an object";
  for (const auto& [key, value] : it->items()) {
    if (key.empty() || key.size() > kMaxKeyBytes) return "a metric's name is empty or longer than 256 bytes";
    if (value.is_number()) {
      const double number = value.get<double>();
      metrics->emplace_back(key, std::isfinite(number) ? number : kNan);
    } else if (value.is_string() && IsNotFinite(value.get_ref<const std::string&>())) {
      metrics->emplace_back(key, kNan);
    } else {
      return absl::StrCat("metric \"", CutUtf8(key, 60), "\" is not a number");
    }
  }
  return "";
}

// Returns why the parser refuses a line. A number beyond the range of doubles is valid JSON, but
// it is refused.
std::string WhyNotJson(absl::string_view text) {
  try {
    if (json::parse(text.begin(), text.end()).is_discarded()) return "is not JSON";
  } catch (const json::out_of_range&) {
    return "has a number beyond 1.8e308";
  } catch (const json::exception&) {
  }
  return "is not JSON";
}

v1::Event::Kind KindOf(const std::string& name) {
  if (name == "start") return v1::Event::START;
  if (name == "epoch") return v1::Event::EPOCH;
  if (name == "finish") return v1::Event::FINISH;
  if (name == "error") return v1::Event::ERROR;
  if (name == "checkpoint") return v1::Event::CHECKPOINT;
  return v1::Event::KIND_UNSPECIFIED;
}

}  // namespace

void BatchBuilder::Add(absl::string_view line, int64_t number) {
  if (line.size() > kMaxLineBytes) return AddMalformed(number, "longer than 64 KiB");
  next_column_ = 0;
  if (AddPlainStep(line, number)) return;
  const std::string wrong = AddAny(line, number);
  if (!wrong.empty()) AddMalformed(number, wrong);
}

void BatchBuilder::AddMalformed(int64_t number, absl::string_view reason) {
  v1::MalformedLine* malformed = batch_.add_malformed();
  malformed->set_line(number);
  malformed->set_reason(std::string(reason));
  bytes_ += reason.size() + 20;
}

// Adds a plain step line. Returns false, having added nothing, if the line is of another form.
bool BatchBuilder::AddPlainStep(absl::string_view line, int64_t number) {
  PlainScanner scanner(line);
  double time = kNan;
  int64_t step = -1, epoch = 0;
  bool is_step = false;
  absl::InlinedVector<std::pair<std::string_view, double>, 16> metrics;
  if (!scanner.Take('{')) return false;
  do {
    std::string_view name, text;
    if (!scanner.String(&name) || !scanner.Take(':')) return false;
    if (name == "time") {
      if (!scanner.Number(&time)) return false;
    } else if (name == "event") {
      if (!scanner.String(&text) || text != "step") return false;
      is_step = true;
    } else if (name == "step") {
      if (!scanner.Integer(&step)) return false;
    } else if (name == "epoch") {
      if (!scanner.Integer(&epoch)) return false;
    } else if (name == "metrics" && metrics.empty()) {
      if (!scanner.Take('{')) return false;
      if (scanner.Take('}')) continue;
      do {
        double value = kNan;
        if (!scanner.String(&name) || name.empty() || name.size() > kMaxKeyBytes || !scanner.Take(':'))
          return false;
        if (!scanner.Number(&value) && !(scanner.String(&text) && IsNotFinite(text))) return false;
        metrics.emplace_back(name, value);
      } while (scanner.Take(','));
      if (!scanner.Take('}')) return false;
    } else {
      return false;
    }
  } while (scanner.Take(','));
  if (!scanner.Take('}') || !scanner.AtEnd() || !is_step || step < 0 || std::isnan(time)) return false;
  for (const auto& [key, value] : metrics) AddPoint({key.data(), key.size()}, number, step, time, value);
  return true;
}

// Parses any line and adds its event. Returns "", or the error if the line is malformed; then it adds nothing.
std::string BatchBuilder::AddAny(absl::string_view text, int64_t number) {
  bool deep = false;  // parsing is iterative, but copying and printing recurse
  const auto watch_depth = [&deep](int depth, json::parse_event_t, json&) {
    deep = deep || depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  const json line = json::parse(text.begin(), text.end(), watch_depth, false);
  if (deep) return "is nested too deeply";
  if (line.is_discarded()) return WhyNotJson(text);
  if (!line.is_object()) return "is not a JSON object";
  auto time = line.find("time");
  if (time == line.end() || !time->is_number()) return "has no \"time\" that is a number";
  std::string name;
  if (std::string wrong = ReadText(line, "event", &name); !wrong.empty()) return wrong;
  if (name.empty()) return "has no \"event\"";

  std::string wrong;
  v1::Event event;
  event.set_line(number);
  event.set_kind(KindOf(name));
  event.set_time(time->get<double>());
  int64_t step = -1;
  if (name == "step") {
    wrong = ReadCount(line, "step", std::numeric_limits<int64_t>::max(), &step);
  } else if (event.kind() == v1::Event::EPOCH) {
    wrong = ReadCount(line, "epoch", std::numeric_limits<int32_t>::max(), &step);
    event.set_epoch(static_cast<int32_t>(step));
  } else if (event.kind() == v1::Event::FINISH) {
    wrong = ReadText(line, "parameter_hash", event.mutable_parameter_hash());
  } else if (event.kind() == v1::Event::ERROR) {
    wrong = ReadText(line, "message", event.mutable_message());
    if (wrong.empty()) wrong = ReadText(line, "kind", event.mutable_error_kind());
  } else if (event.kind() == v1::Event::START) {
    json details = line;
    for (const char* known : {"time", "event", "metrics"}) details.erase(known);
    event.set_details(details.dump());
    int64_t resumed = 0;
    if (line.contains("resumed_step"))
      wrong = ReadCount(line, "resumed_step", std::numeric_limits<int64_t>::max(), &resumed);
    event.set_step(resumed);
  } else if (event.kind() == v1::Event::CHECKPOINT) {
    wrong = ReadCount(line, "step", std::numeric_limits<int64_t>::max(), &step);
    event.set_step(step);
  } else {
    return absl::StrCat("\"event\" is \"", CutUtf8(name, 40),
                        "\", not start, step, epoch, checkpoint, finish or error");
  }
  std::vector<std::pair<std::string, double>> metrics;
  if (wrong.empty()) wrong = ReadMetrics(line, &metrics);
  if (!wrong.empty()) return wrong;

  for (const auto& [key, value] : metrics) AddPoint(key, number, step, event.time(), value);
  if (name == "step") return "";
  for (const auto& [key, value] : metrics) (*event.mutable_metrics())[key] = value;
  if (event.kind() != v1::Event::START) urgent_ = true;
  bytes_ += event.ByteSizeLong() + 10;
  *batch_.add_events() = std::move(event);
  return "";
}

void BatchBuilder::AddPoint(absl::string_view key, int64_t line, int64_t step, double time, double value) {
  int index = next_column_;
  if (index >= batch_.columns_size() || batch_.columns(index).key() != key) {
    auto [it, added] = columns_.emplace(std::string(key), batch_.columns_size());
    index = it->second;
    if (added) {
      batch_.add_columns()->set_key(it->first);
      bytes_ += key.size() + 40;
    }
  }
  next_column_ = index + 1;
  v1::PointColumn& column = *batch_.mutable_columns(index);
  if (const int size = column.line_size(); size > 0 && column.line(size - 1) == line) {
    column.set_value(size - 1, value);  // duplicate key in one line: the last value counts, as in JSON
    return;
  }
  column.add_line(line);
  column.add_step(step);
  column.add_time(time);
  column.add_value(value);
  bytes_ += 36;  // two doubles and two varints
}

v1::EventBatch BatchBuilder::Take() {
  v1::EventBatch batch = std::move(batch_);
  *this = BatchBuilder();
  return batch;
}

}  // namespace scalelab
