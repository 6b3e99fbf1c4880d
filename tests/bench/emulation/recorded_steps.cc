#include "tests/bench/emulation/recorded_steps.h"

#include <fstream>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/bench/figure.h"

namespace scalelab::bench {
namespace {

double BytesOf(const std::vector<EmulatedBucket>& buckets) {
  double bytes = 0;
  for (const EmulatedBucket& bucket : buckets) bytes += bucket.bytes;
  return bytes;
}

// Adds a line to the steps of its model and batch. Returns false if the line is invalid.
bool AddLine(const std::string& line, std::vector<RecordedSteps>& all) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  int batch = 0;
  size_t number = 0;
  double first = 0, second = 0;
  if (fields.size() != 6 || !absl::SimpleAtoi(fields[1], &batch) || batch < 1 ||
      !absl::SimpleAtoi(fields[3], &number) || !absl::SimpleAtod(fields[4], &first) ||
      !absl::SimpleAtod(fields[5], &second) || !(first > 0) || !(second > 0))
    return false;
  if (all.empty() || all.back().model != fields[0] || all.back().batch != batch)
    all.push_back({fields[0], batch, {}, {}});
  RecordedSteps& steps = all.back();
  if (fields[2] == "bucket" && number == steps.buckets.size() && second <= 1) {
    steps.buckets.push_back({second, first});
    return true;
  }
  if (fields[2] != "step" || number != steps.seconds.size()) return false;
  steps.seconds.emplace_back(first, second);
  return true;
}

}  // namespace

std::vector<RecordedSteps> ReadRecordedSteps(const std::string& file) {
  std::ifstream in(file);
  std::vector<RecordedSteps> all;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#' || AddLine(line, all)) continue;
    std::cerr << file << ":" << number << ": this is no recorded step and no bucket\n";
    return {};
  }
  for (const RecordedSteps& steps : all) {
    if (!steps.buckets.empty() && !steps.seconds.empty()) continue;
    std::cerr << file << ": " << steps.model << " with batch " << steps.batch << " lacks buckets or steps\n";
    return {};
  }
  if (all.empty()) std::cerr << file << ": the file has no recorded steps\n";
  return all;
}

std::vector<RecordedSteps> ReadRecordedSteps() {
  return ReadRecordedSteps(SCALELAB_SOURCE_DIR "/tests/bench/emulation/recorded_steps.csv");
}

void UseRecordedSteps(const std::vector<RecordedSteps>& recorded, std::mt19937_64& random,
                      EmulatedConfiguration& c) {
  const RecordedSteps& steps =
      recorded[std::uniform_int_distribution<size_t>(0, recorded.size() - 1)(random)];
  std::vector<double> totals;
  for (const auto& [forward, backward] : steps.seconds) totals.push_back(forward + backward);
  const double usual = Median(totals);
  c.steps.clear();
  for (const auto& [forward, backward] : steps.seconds)
    c.steps.push_back({(forward + backward) / usual, forward / (forward + backward)});
  const double slower = usual / steps.batch / c.seconds_per_sample;
  const double by_bytes = slower * BytesOf(c.buckets) / BytesOf(steps.buckets);
  const double by_messages =
      slower * static_cast<double>(c.buckets.size()) / static_cast<double>(steps.buckets.size());
  c.seconds_per_sample *= slower;
  c.seconds_per_step *= slower;
  for (EmulatedLink* link : {&c.within, &c.between}) {
    link->seconds_per_byte *= by_bytes;
    link->latency *= by_messages;
  }
  c.buckets = steps.buckets;
  c.jitter = c.hiccups = 0;
  if (c.noise != "uneven" && c.noise != "days") c.noise = "recorded steps";
  c.repeats = 3;
}

}  // namespace scalelab::bench
