#include "server/core/ingest.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

std::map<std::string, double> ToMap(const google::protobuf::Map<std::string, double>& from) {
  return {from.begin(), from.end()};
}

constexpr int64_t kMaxLine = int64_t{1} << 32;  // the store keeps 32-bit line numbers

// Returns "total_steps" from the details of a start event, if it is present.
std::optional<int64_t> TotalSteps(const std::string& details) {
  const auto json = nlohmann::json::parse(details, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find("total_steps");
  if (it == json.end() || !it->is_number_integer()) return std::nullopt;
  return it->get<int64_t>();
}

}  // namespace

size_t PointsOf(const std::vector<ParsedBatch>& batches) {
  size_t points = 0;
  for (const ParsedBatch& batch : batches) {
    for (const db::PointColumn& column : batch.append.columns) points += column.value.size();
  }
  return points;
}

absl::StatusOr<ParsedBatch> ParseBatch(const v1::EventBatch& batch) {
  if (batch.begin_position() < 0 || batch.end_position() < batch.begin_position() || batch.begin_line() < 0 ||
      batch.end_line() < batch.begin_line() || batch.end_line() >= kMaxLine) {
    return absl::InvalidArgumentError(absl::StrCat(
        "event batch of rank ", batch.rank(), ": invalid range of bytes ", batch.begin_position(), " to ",
        batch.end_position(), " or lines ", batch.begin_line(), " to ", batch.end_line()));
  }
  ParsedBatch parsed;
  parsed.token = batch.token();
  db::StreamAppend& append = parsed.append;
  append.rank = batch.rank();
  append.begin_position = batch.begin_position();
  append.end_position = batch.end_position();
  append.begin_line = batch.begin_line();
  append.end_line = batch.end_line();
  append.malformed = batch.malformed_size();
  if (batch.malformed_size() > 0) {
    // Batches count lines from 0; messages for users count lines from 1.
    append.first_malformed =
        absl::StrCat("line ", batch.malformed(0).line() + 1, ": ", batch.malformed(0).reason());
  }
  append.columns.reserve(batch.columns_size());
  std::set<std::string> keys;
  for (const v1::PointColumn& column : batch.columns()) {
    const int n = column.value_size();
    if (column.line_size() != n || column.step_size() != n || column.time_size() != n) {
      return absl::InvalidArgumentError(absl::StrCat("column '", column.key(), "' of rank ", batch.rank(),
                                                     " has members of unequal length"));
    }
    // If the store refused a batch, the whole commit would fail, including the batches of other workers.
    int64_t before = batch.begin_line() - 1;
    for (const int64_t line : column.line()) {
      if (line <= before || line >= batch.end_line()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "column '", column.key(), "' of rank ", batch.rank(), ": lines must rise from ",
            batch.begin_line(), " to below ", batch.end_line(), ", found ", line, " after ", before));
      }
      before = line;
    }
    if (!keys.insert(column.key()).second || column.key().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("column '", column.key(), "' of rank ", batch.rank(),
                                                     " is a duplicate or has an empty name"));
    }
    append.columns.push_back({column.key(),
                              {column.line().begin(), column.line().end()},
                              {column.step().begin(), column.step().end()},
                              {column.time().begin(), column.time().end()},
                              {column.value().begin(), column.value().end()}});
    if (n > 0 && column.key() == "train/loss") parsed.last_loss = column.value(n - 1);
    if (n == 0 || column.key() != "step/total_s") continue;
    parsed.last_step = column.step(n - 1);
    if (batch.rank() == 0) parsed.steps = StepsOf(column.step(), column.value());
  }
  for (const v1::Event& event : batch.events()) {
    switch (event.kind()) {
      case v1::Event::START:
        if (const auto total = TotalSteps(event.details())) parsed.total_steps = total;
        parsed.resumed_step = event.step();
        break;
      case v1::Event::CHECKPOINT:
        parsed.checkpoint_step = event.step();
        break;
      case v1::Event::EPOCH:
        parsed.epochs.push_back({0, batch.rank(), event.epoch(), event.time(), ToMap(event.metrics())});
        break;
      case v1::Event::FINISH:
        append.finished = true;
        append.parameter_hash = event.parameter_hash();
        parsed.finish_metrics = ToMap(event.metrics());
        break;
      case v1::Event::ERROR:
        if (!append.error_message.empty()) break;  // later errors are usually consequences of the first one
        append.error_kind = event.error_kind();
        append.error_message =
            event.message().empty() ? "the trainer reported an error without a message" : event.message();
        break;
      default:
        break;
    }
  }
  return parsed;
}

}  // namespace scalelab::server
