// `scalelab run logs RUN`: prints the output of a rank, byte for byte.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands/commands.h"
#include "client/session/interrupt.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ReadRunLogRequest;
using scalelab::v1::ReadRunLogResponse;
using scalelab::v1::Run;

constexpr absl::Duration kFollowPause = absl::Seconds(1);

struct RunLogsOptions {
  std::string run;
  int rank = 0;
  int attempt = 0;
  bool only_stdout = false;
  bool only_stderr = false;
  int tail = 0;  // 0: the whole log
  bool follow = false;
};

// Keeps the last lines of the added bytes.
class LastLines {
 public:
  explicit LastLines(size_t lines) : lines_(lines) {}
  void Add(const std::string& data) {
    kept_ += data;
    // Cut rarely, so that each byte is moved only a few times.
    if (kept_.size() > 2 * cut_ + (1U << 16)) Cut();
  }
  std::string Take() {
    Cut();
    return std::move(kept_);
  }

 private:
  void Cut() {
    size_t at = kept_.size();
    if (at > 0 && kept_[at - 1] == '\n') --at;
    for (size_t line = 0; line < lines_; ++line) {
      if (at == 0) break;
      const size_t end = kept_.rfind('\n', at - 1);
      at = end == std::string::npos ? 0 : end;
    }
    if (at > 0) kept_.erase(0, at + 1);
    cut_ = kept_.size();
  }

  const size_t lines_;
  std::string kept_;
  size_t cut_ = 0;
};

// One output of a rank, and the position up to which it has been printed.
struct Followed {
  ReadRunLogRequest::Stream stream;
  int64_t shown = 0;
};

// Prints the bytes that were added to an output. A log that does not exist yet counts as empty.
absl::Status PrintNew(ReadRunLogRequest request, Followed& output, LastLines* last, absl::Time deadline,
                      Session& session, Connection& server) {
  request.set_stream(output.stream);
  request.set_offset(output.shown);
  const auto context = server.MakeContext(deadline);
  const auto reader = server.runs().ReadRunLog(context.get(), request);
  ReadRunLogResponse piece;
  while (session.io().out.good() && reader->Read(&piece)) {
    output.shown += static_cast<int64_t>(piece.data().size());
    if (last != nullptr) {
      last->Add(piece.data());
    } else {
      session.io().out << piece.data();
    }
  }
  if (absl::Status written = CheckWritten(session.io().out); !written.ok()) {
    context->TryCancel();
    (void)reader->Finish();
    return written;
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND) return server.Explain(status);
  return Flush(session.io().out);
}

// Returns an error that names the ranks of the run if this one is not among them.
absl::Status CheckRank(const Run& run, int rank) {
  const int ranks = run.spec().ranks();
  if (ranks == 0 || rank < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(run.name(), " has no rank ", rank, "; it has ",
                   ranks == 1 ? "rank 0" : absl::StrCat("ranks 0 to ", ranks - 1)));
}

// Prints the outputs until the run is final. Reads the run's state before its outputs, so that no
// output is missed.
absl::StatusOr<ExitCode> FollowLogs(const RunLogsOptions& options, ReadRunLogRequest request,
                                    Session& session, Connection& server) {
  SetInterruptWords("stopped following; the run continues");
  const absl::Time deadline = absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration());
  std::vector<Followed> outputs;
  if (!options.only_stderr) outputs.push_back({ReadRunLogRequest::STDOUT});
  if (!options.only_stdout) outputs.push_back({ReadRunLogRequest::STDERR});
  scalelab::v1::GetRunRequest get;
  get.set_name(request.name());
  int attempt = 0;
  for (bool first = true;; first = false) {
    const auto run = server.Call(server.runs(), &scalelab::v1::RunService::Stub::GetRun, get);
    if (!run.ok()) return run.status();
    if (const absl::Status known = CheckRank(run->run(), options.rank); !known.ok()) return known;
    request.set_name(run->run().name());
    const int newest = run->run().attempts().empty() ? 0 : run->run().attempts().rbegin()->number();
    if (options.attempt == 0 && newest != attempt) {
      for (Followed& output : outputs) {
        // The attempt may have written more before it ended.
        if (attempt > 0) {
          const absl::Status status = PrintNew(request, output, nullptr, deadline, session, server);
          if (!status.ok()) return status;
        }
        output.shown = 0;
      }
      if (attempt > 0) session.Say(absl::StrCat("attempt ", newest, " follows"));
      attempt = newest;
      request.set_attempt(attempt);  // a newer attempt is read after this one
    }
    for (Followed& output : outputs) {
      LastLines last(static_cast<size_t>(options.tail));
      const bool cut = first && options.tail > 0;
      const absl::Status status = PrintNew(request, output, cut ? &last : nullptr, deadline, session, server);
      if (!status.ok()) return status;
      if (cut) session.io().out << last.Take() << std::flush;
    }
    const auto state = run->run().state();
    if (state == Run::SUCCEEDED) return ExitCode::kOk;
    if (state == Run::FAILED || state == Run::CANCELLED || state == Run::SKIPPED)
      return ExitCode::kRunsFailed;
    if (absl::Now() + kFollowPause > deadline)
      return absl::DeadlineExceededError(absl::StrCat(run->run().name(), " is not over; it continues"));
    absl::SleepFor(kFollowPause);
  }
}

absl::StatusOr<ExitCode> ExecuteRunLogs(const RunLogsOptions& options, Session& session) {
  const auto name = RunName(options.run);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ReadRunLogRequest request;
  request.set_name(*name);
  request.set_attempt(options.attempt);
  request.set_rank(options.rank);
  if (options.only_stdout) request.set_stream(ReadRunLogRequest::STDOUT);
  if (options.only_stderr) request.set_stream(ReadRunLogRequest::STDERR);

  if (options.follow) {
    auto outcome = FollowLogs(options, request, session, **server);
    SetInterruptWords(nullptr);
    return outcome;
  }
  // There is no default timeout, because a log may be large; --timeout limits the whole transfer.
  const auto context =
      (*server)->MakeContext(absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration()));
  const auto reader = (*server)->runs().ReadRunLog(context.get(), request);
  ReadRunLogResponse piece;
  LastLines last(static_cast<size_t>(options.tail));
  bool empty = true;
  while (session.io().out.good() && reader->Read(&piece)) {
    empty = empty && piece.data().empty();
    if (options.tail > 0) {
      last.Add(piece.data());
    } else {
      session.io().out << piece.data();
    }
  }
  session.io().out << last.Take();
  const absl::Status written = Flush(session.io().out);
  if (!written.ok()) context->TryCancel();
  const grpc::Status status = reader->Finish();
  if (!written.ok()) return written;
  if (!status.ok()) return (*server)->Explain(status);
  if (!empty) return ExitCode::kOk;
  scalelab::v1::GetRunRequest get;
  get.set_name(*name);
  const auto run = (*server)->Call((*server)->runs(), &scalelab::v1::RunService::Stub::GetRun, get);
  if (!run.ok()) return run.status();
  if (const absl::Status known = CheckRank(run->run(), options.rank); !known.ok()) return known;
  const char* output = options.only_stdout   ? " to its standard output"
                       : options.only_stderr ? " to its standard error"
                                             : "";
  session.Say(absl::StrCat("rank ", options.rank, " of ", run->run().name(), " has written nothing", output));
  return ExitCode::kOk;
}

}  // namespace

void AddRunLogs(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunLogsOptions>();
  CLI::App* command =
      run.add_subcommand("logs", "Print the output of a rank of a run: standard output, then standard error");
  command->add_option("RUN", options->run, "Number, runs/NUMBER, or studies/NUMBER/runs/NUMBER")->required();
  command->add_option("--rank", options->rank, "Rank, from 0")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--attempt", options->attempt, "Attempt, from 1; the last one if not given")
      ->check(CLI::PositiveNumber);
  command->add_option("--tail", options->tail, "Only the last lines, this number of them")
      ->check(CLI::PositiveNumber);
  command->add_flag("-f,--follow", options->follow,
                    "Print what the rank adds until the run is over; exits with 5 if it did not succeed");
  auto* only_stdout = command->add_flag("--stdout", options->only_stdout, "Standard output only");
  command->add_flag("--stderr", options->only_stderr, "Standard error only")->excludes(only_stdout);
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunLogs(*options, s); }; });
}

}  // namespace scalelab::client
