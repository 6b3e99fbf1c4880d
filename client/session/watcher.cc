#include "client/session/watcher.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/output/json_printer.h"
#include "client/output/text.h"
#include "client/session/interrupt.h"
#include "client/session/progress.h"
#include "google/protobuf/util/field_comparator.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/status.h"

namespace scalelab::client {
namespace {

using google::protobuf::util::MessageDifferencer;
using scalelab::v1::RunCounts;
using scalelab::v1::Study;
using scalelab::v1::WatchStudyRequest;
using scalelab::v1::WatchStudyResponse;

// The pauses before a stream is opened again.
constexpr absl::Duration kFirstPause = absl::Milliseconds(50), kLastPause = absl::Seconds(5);
// A stream that was open for this time counts as news.
constexpr absl::Duration kSteady = absl::Seconds(10);

std::string CsvRow(const Study& study) {
  const RunCounts& c = study.counts();
  return absl::StrCat(study.name(), ",", EnumText(Study::State_Name(study.state())), ",", c.queued(), ",",
                      c.running(), ",", c.succeeded(), ",", c.failed(), ",", c.cancelled(), ",", c.skipped());
}

// A paused study does not continue by itself.
bool IsOver(const WatchStudyResponse& look) {
  return IsFinal(look.study()) || (!look.study().pause_reason().empty() && look.running_size() == 0);
}

// Returns whether the messages have the same content. Ignores the specification, which only the first message
// of a stream has, and the reason for waiting, whose text may contain times.
bool IsRepeated(WatchStudyResponse before, WatchStudyResponse look) {
  for (WatchStudyResponse* message : {&before, &look}) {
    message->clear_waiting_reason();
    message->mutable_study()->clear_spec();
  }
  google::protobuf::util::DefaultFieldComparator comparator;
  comparator.set_treat_nan_as_equal(true);  // a loss may be NaN
  MessageDifferencer differencer;
  differencer.set_field_comparator(&comparator);
  return differencer.Compare(before, look);
}

// Reads the batch of cells from the server, once for each cell.
class Batches {
 public:
  explicit Batches(Session& session) : session_(session) {}
  int64_t Of(const WatchStudyResponse::Progress& attempt) {
    const auto [known, is_new] = batches_.try_emplace(KeyText(attempt.key()), 0);
    if (!is_new) return known->second;
    const auto server = session_.Server();
    if (!server.ok()) return 0;
    scalelab::v1::GetRunRequest request;
    request.set_name(attempt.run());
    const auto response =
        (*server)->Call((*server)->runs(), &scalelab::v1::RunService::Stub::GetRun, request);
    if (response.ok()) known->second = response->run().spec().global_batch();
    return known->second;
  }

 private:
  Session& session_;
  std::map<std::string, int64_t> batches_;  // by cell; 0 if unknown
};

}  // namespace

absl::StatusOr<Study> FollowStudy(Session& session, const std::string& name,
                                  const std::function<void(const WatchStudyResponse&)>& on_look,
                                  const std::function<void()>& on_lost, absl::Duration patience) {
  const absl::Duration limit = session.options().timeout.value_or(absl::InfiniteDuration());
  const absl::Time deadline = absl::Now() + limit;
  auto server = session.Server();
  if (!server.ok()) return server.status();
  Connection& connection = **server;

  WatchStudyRequest request;
  request.set_name(name);
  std::optional<WatchStudyResponse> last;
  std::optional<absl::Time> lost;  // when the first of the streams without news ended
  int ended = 0;                   // streams without news that the server has ended
  absl::Duration pause = kFirstPause;
  for (;;) {
    const absl::Time opened = absl::Now();
    const std::optional<WatchStudyResponse> before = last;
    bool answered = false;
    const grpc::Status status =
        connection.Read(connection.studies(), &scalelab::v1::StudyService::Stub::WatchStudy, request,
                        deadline, [&](const WatchStudyResponse& look) {
                          last = look;
                          answered = true;
                          on_look(look);
                          return !IsOver(look);  // the server does not end the stream of a paused study
                        });
    if (last) request.set_name(last->study().name());  // "last" may mean another study when we reconnect
    if (last && IsOver(*last)) return last->study();
    answered = answered || status.ok();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(absl::StrCat(last ? ProgressLine(*last) : name, "; not over after ",
                                                      absl::FormatDuration(limit), "; the study continues"));
    }
    if (!status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE)
      return connection.Explain(status);
    const absl::Time now = absl::Now();
    const bool steady = now - opened > kSteady;
    const bool news = last && (!before || !IsRepeated(*before, *last));
    if (!lost || steady || news) {
      lost = now;
      ended = 0;
      session.Say(
          absl::StrCat("lost the connection to ", connection.address().text, "; waiting for the server"));
      if (on_lost) on_lost();
    } else if (answered) {
      ++ended;
    }
    if (now - *lost > patience) {
      if (!answered) return connection.Explain(status);
      return absl::UnavailableError(absl::StrCat(
          "the server at ", connection.address().text, " ended the stream ", ended, " times in ",
          absl::FormatDuration(absl::Trunc(now - *lost, absl::Seconds(1))),
          " without anything new; read the server's log, and check proxies between this machine and it"));
    }
    if (steady) pause = kFirstPause;
    absl::SleepFor(std::min(pause, deadline - now));
    pause = std::min(2 * pause, kLastPause);
    if (!connection.WaitForServer(std::min(deadline, *lost + patience)) && absl::Now() < deadline) {
      return connection.Explain(grpc::Status(grpc::StatusCode::UNAVAILABLE, ""));
    }
  }
}

absl::StatusOr<ExitCode> WatchStudy(Session& session, const std::string& name, std::ostream& out,
                                    const Terminal& terminal) {
  SetInterruptWords("stopped watching; the study continues (`scalelab study cancel` cancels it)");
  const OutputFormat format = session.options().output;
  const bool live = terminal.tty && session.tables();
  std::optional<RunCounts> shown;
  size_t lines_drawn = 0;
  PaceEstimate pace;
  Batches batches(session);
  RunPaces paces([&batches](const auto& attempt) { return batches.Of(attempt); });

  const auto final = FollowStudy(
      session, name,
      [&](const WatchStudyResponse& look) {
        if (live) {
          pace.Add(DoneShare(look), absl::Now());
          paces.Add(look, absl::Now());
          const Study& study = look.study();
          const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
          const double start = study.has_start_time() ? Seconds(study.start_time()) : now;
          const double end = study.has_finish_time() ? Seconds(study.finish_time()) : now;
          const auto lines =
              ProgressDisplay(look, absl::Seconds(std::max(0.0, end - start)), pace.Left(), terminal, paces);
          if (lines_drawn > 0) out << "\033[" << lines_drawn << "A\r\033[J";
          out << absl::StrJoin(lines, "\n") << std::endl;
          lines_drawn = lines.size();
          return;
        }
        const bool first = !shown;
        if (!first && MessageDifferencer::Equals(*shown, look.study().counts()) && !IsFinal(look.study()))
          return;
        shown = look.study().counts();
        if (format == OutputFormat::kJson) {
          out << ToJson(look, false) << std::endl;
        } else if (format == OutputFormat::kCsv) {
          if (first) out << "name,state,queued,running,succeeded,failed,cancelled,skipped\n";
          out << CsvRow(look.study()) << std::endl;
        } else {
          out << ProgressLine(look) << std::endl;
        }
      },
      // The message was printed below the display, so draw the next display below it.
      [&lines_drawn] { lines_drawn = 0; });
  SetInterruptWords(nullptr);
  if (!final.ok()) return final.status();
  if (const absl::Status status = Flush(out); !status.ok()) return status;
  return OutcomeOf(*final);
}

ExitCode OutcomeOf(const Study& study) {
  return study.state() == Study::SUCCEEDED ? ExitCode::kOk : ExitCode::kRunsFailed;
}

}  // namespace scalelab::client
