#include "worker/trainer/strategies/horovod/timeline.h"

#include "nlohmann/json.hpp"
#include "worker/trainer/errors.h"

namespace scalelab::trainer::horovod {

using nlohmann::json;

Timeline::Timeline(const std::string& path) : file_(path) {
  if (!file_) {
    throw TrainerError("cannot write the timeline " + path +
                       ": its directory must exist and be writable, or leave \"timeline\" out");
  }
  file_ << "[\n"
        << json{{"name", "process_name"},
                {"ph", "M"},
                {"pid", 0},
                {"args", {{"name", "native/horovod, rank 0"}}}};
}

Timeline::~Timeline() { file_ << "\n]\n"; }

void Timeline::Span(const std::string& tensor, std::string_view state, Time from, Time to) {
  const int row = Row(tensor);
  file_ << ",\n"
        << json{{"name", state},
                {"ph", "X"},
                {"pid", 0},
                {"tid", row},
                {"ts", Microseconds(from)},
                {"dur", Microseconds(to) - Microseconds(from)}};
}

void Timeline::Mark(std::string_view what, Time at) {
  file_ << ",\n"
        << json{{"name", what}, {"ph", "i"}, {"pid", 0}, {"tid", 0}, {"ts", Microseconds(at)}, {"s", "g"}};
}

int Timeline::Row(const std::string& tensor) {
  const auto [place, fresh] = rows_.try_emplace(tensor, static_cast<int>(rows_.size()) + 1);
  if (fresh) {
    file_ << ",\n"
          << json{{"name", "thread_name"},
                  {"ph", "M"},
                  {"pid", 0},
                  {"tid", place->second},
                  {"args", {{"name", tensor}}}};
  }
  return place->second;
}

double Timeline::Microseconds(Time at) const {
  return std::chrono::duration<double, std::micro>(at - start_).count();
}

}  // namespace scalelab::trainer::horovod
