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
#include "google/protobuf/util/message_differencer.h"
#include "proto/status.h"

namespace scalelab::client {
namespace {

using google::protobuf::util::MessageDifferencer;
using scalelab::v1::RunCounts;
using scalelab::v1::Study;
using scalelab::v1::WatchStudyRequest;
using scalelab::v1::WatchStudyResponse;

std::string CsvRow(const Study& study) {
  const RunCounts& c = study.counts();
  return absl::StrCat(study.name(), ",", EnumText(Study::State_Name(study.state())), ",", c.queued(), ",",
                      c.running(), ",", c.succeeded(), ",", c.failed(), ",", c.cancelled(), ",", c.skipped());
}

// A paused study does not continue by itself.
bool IsOver(const WatchStudyResponse& look) {
  return IsFinal(look.study()) || (!look.study().pause_reason().empty() && look.running_size() == 0);
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
  std::optional<absl::Time> lost;  // when the connection was lost; empty while messages arrive
  for (absl::Duration pause = absl::Milliseconds(50);; pause = std::min(2 * pause, absl::Seconds(1))) {
    const auto context = connection.MakeContext(deadline);
    const auto reader = connection.studies().WatchStudy(context.get(), request);
    WatchStudyResponse look;
    while (reader->Read(&look)) {
      last = look;
      lost.reset();
      pause = absl::Milliseconds(50);
      request.set_name(look.study().name());  // "last" may mean another study when we reconnect
      on_look(look);
      if (IsOver(look)) context->TryCancel();  // the server does not end the stream of a paused study
    }
    const grpc::Status status = reader->Finish();
    if (last && IsOver(*last)) return last->study();
    const bool retry = status.error_code() == grpc::StatusCode::UNAVAILABLE || status.ok();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(absl::StrCat(last ? ProgressLine(*last) : name, "; not over after ",
                                                      absl::FormatDuration(limit), "; the study continues"));
    }
    if (!retry || (lost && absl::Now() - *lost > patience)) return connection.Explain(status);
    if (!lost) {
      lost = absl::Now();
      session.Say(
          absl::StrCat("lost the connection to ", connection.address().text, "; waiting for the server"));
      if (on_lost) on_lost();
    }
    absl::SleepFor(pause);
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
