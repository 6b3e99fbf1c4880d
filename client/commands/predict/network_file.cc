#include "client/commands/predict/network_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace scalelab::client {
namespace {

using scalelab::v1::MeasuredAllReduce;

// Limit of the size of the file. The output of `scalelab-bench allreduce` has some kilobytes.
constexpr std::streamsize kMostBytes = std::streamsize{16} << 20;

// A line such as {"name":"allreduce/mpi/4_ranks/1024_bytes/time","value":1.1,"unit":"us",...}.
struct Line {
  std::string contender;
  MeasuredAllReduce measured;
};

// Parses a line. Returns false if it does not contain the time of an all-reduce.
bool ParseLine(absl::string_view text, Line& line) {
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string() || !json.contains("value") ||
      !json["value"].is_number() || !json.contains("unit") || json["unit"] != "us")
    return false;
  const std::string name = json["name"];
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  int ranks = 0;
  double bytes = 0;
  if (parts.size() != 5 || parts[0] != "allreduce" || parts[4] != "time" ||
      !absl::SimpleAtoi(absl::StripSuffix(parts[2], "_ranks"), &ranks) ||
      !absl::SimpleAtod(absl::StripSuffix(parts[3], "_bytes"), &bytes))
    return false;
  line.contender = std::string(parts[1]);
  line.measured.set_ranks(ranks);
  line.measured.set_bytes(bytes);
  line.measured.set_seconds(json["value"].get<double>() / 1e6);
  return true;
}

}  // namespace

absl::StatusOr<std::vector<MeasuredAllReduce>> ParseAllReduces(const std::string& text,
                                                               const std::string& file,
                                                               const std::string& contender) {
  std::vector<MeasuredAllReduce> measured;
  std::set<std::string> contenders;
  for (const absl::string_view of_file : absl::StrSplit(text, '\n')) {
    Line line;
    if (!ParseLine(of_file, line)) continue;
    contenders.insert(line.contender);
    if (line.contender == contender) measured.push_back(line.measured);
  }
  if (contenders.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(file, " has no times of all-reduces; write it with `scalelab-bench allreduce`"));
  if (measured.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(file, " has no all-reduces of ", contender,
                     "; choose one of its contenders with --all-reduce: ", absl::StrJoin(contenders, ", ")));
  return measured;
}

absl::StatusOr<std::vector<MeasuredAllReduce>> ReadAllReduces(const std::string& file,
                                                              const std::string& contender) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), std::ssize(text));
  if (in.bad() || !in.is_open())
    return absl::NotFoundError(absl::StrCat("cannot read ", file, ": ", std::strerror(errno)));
  if (in.gcount() > kMostBytes)
    return absl::InvalidArgumentError(absl::StrCat(file, " has more than ", kMostBytes >> 20,
                                                   " MiB, so it is no output of `scalelab-bench allreduce`"));
  text.resize(static_cast<size_t>(in.gcount()));
  return ParseAllReduces(text, file, contender);
}

}  // namespace scalelab::client
