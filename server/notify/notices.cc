#include "server/notify/notices.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "scalelab/v1/run.pb.h"

namespace scalelab::server {
namespace {

using Json = nlohmann::ordered_json;
using v1::Notify;

bool Requests(const Notify& notify, Notify::Event event) {
  return notify.on().empty() || std::find(notify.on().begin(), notify.on().end(), event) != notify.on().end();
}

std::string TimeText(db::Micros time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixMicros(time), absl::UTCTimeZone());
}

Json PayloadOf(const NoticedStudy& study, const char* event, db::Micros now) {
  Json payload = {{"event", event},
                  {"time", TimeText(now)},
                  {"study", absl::StrCat("studies/", study.row.id)},
                  {"display_name", study.row.name},
                  {"owner", study.row.owner},
                  {"state", v1::Study::State_Name(static_cast<v1::Study::State>(study.row.state))}};
  Json& counts = payload["runs"];
  for (int state = v1::Run::QUEUED; state <= v1::Run::SKIPPED; ++state) {
    counts[absl::AsciiStrToLower(v1::Run::State_Name(static_cast<v1::Run::State>(state)))] =
        study.counts[static_cast<size_t>(state)];
  }
  return payload;
}

// Adds a row for each channel. `occasion` distinguishes the ends of a study that was retried.
void Add(const NoticedStudy& study, const char* event, db::Micros occasion, db::Micros now, Json payload,
         db::WriteBatch& batch) {
  const Notify& notify = study.spec.notify();
  const std::pair<const char*, const std::string&> channels[] = {
      {"mail", notify.mail()}, {"webhook", notify.webhook()}, {"command", notify.command()}};
  for (const auto& [channel, target] : channels) {
    if (target.empty()) continue;
    db::NoticeRow& row = batch.notices.emplace_back();
    row.key = absl::StrCat("studies/", study.row.id, "/", study.row.created, "/", event, "/", occasion, "/",
                           channel);
    row.study_id = study.row.id;
    row.channel = channel;
    row.target = target;
    row.created = row.due = now;
    payload["id"] = row.key;
    // Replace bytes that are not UTF-8. They may come from the output of a program.
    row.payload = payload.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

}  // namespace

void AddEndNotices(const NoticedStudy& study, db::WriteBatch& batch) {
  if (!study.spec.has_notify() || !Requests(study.spec.notify(), Notify::END)) return;
  Add(study, "end", study.row.finished, study.row.finished, PayloadOf(study, "end", study.row.finished),
      batch);
}

void AddFailureNotices(const NoticedStudy& study, const db::RunRow& run, db::Micros now,
                       db::WriteBatch& batch) {
  if (!study.spec.has_notify() || !Requests(study.spec.notify(), Notify::FIRST_FAILURE)) return;
  Json payload = PayloadOf(study, "first_failure", now);
  payload["run"] = absl::StrCat("studies/", study.row.id, "/runs/", run.id);
  payload["cause"] =
      absl::AsciiStrToLower(v1::Attempt::Cause_Name(static_cast<v1::Attempt::Cause>(run.cause)));
  payload["message"] = run.message;
  Add(study, "first_failure", 0, now, std::move(payload), batch);
}

}  // namespace scalelab::server
