// `scalelab run logs RUN`: prints the output of a rank, byte for byte.
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

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
using scalelab::v1::RunService;

constexpr absl::Duration kFollowPause = absl::Seconds(1);
// Where the worker has cut an output (worker/process/output_limit.h), a line begins with this mark.
constexpr char kCutMark[] = "[scalelab-worker cut this file here";
// After a cut, at most this number of bytes is read from the end of the output.
constexpr int64_t kAfterCut = 256 << 10;

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
    // Before the line break of the last line, if there is one.
    size_t end = kept_.size();
    if (end > 0 && kept_[end - 1] == '\n') --end;
    size_t begin = kept_.size();
    for (size_t line = 0; line < lines_ && begin > 0; ++line) {
      const size_t line_break = end == 0 ? std::string::npos : kept_.rfind('\n', end - 1);
      begin = line_break == std::string::npos ? 0 : line_break + 1;
      end = line_break;
    }
    kept_.erase(0, begin);
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

int64_t EndOf(const ReadRunLogResponse& piece) {
  return piece.offset() + static_cast<int64_t>(piece.data().size());
}

// Returns the position from which `end`, the last bytes of an output, contains only what was written after a
// cut. Without a mark, all of it was written later, and the position is that of the first line break.
// `whole`: the output has no other bytes.
size_t PlaceOfCut(const std::string& end, bool whole) {
  const size_t mark = end.find(kCutMark);
  if (mark != std::string::npos) return mark == 0 ? 0 : mark - 1;  // of the line break before the mark
  const size_t line_break = whole ? std::string::npos : end.find('\n');
  return line_break == std::string::npos ? 0 : line_break;
}

// Prints what the rank has written to an output since the worker cut it, at most kAfterCut bytes.
grpc::Status PrintAfterCut(ReadRunLogRequest request, Followed& output, absl::Time deadline,
                           const Session& session, const Connection& server) {
  request.set_offset(-kAfterCut);
  output.shown = 0;
  std::string end;
  const grpc::Status status =
      server.Read(server.runs(), &RunService::Stub::ReadRunLog, request, deadline, [&](const auto& piece) {
        output.shown = EndOf(piece);
        end += piece.data();
        return true;
      });
  if (!status.ok()) return status;
  session.Say(absl::StrCat("the worker cut the standard ",
                           output.stream == ReadRunLogRequest::STDOUT ? "output" : "error",
                           ", which was too long; a part of it is missing here"));
  session.io().out << end.substr(PlaceOfCut(end, output.shown == static_cast<int64_t>(end.size())));
  return status;
}

// Prints the bytes that were added to an output. A log that does not exist yet counts as empty.
absl::Status PrintNew(ReadRunLogRequest request, Followed& output, LastLines* last, absl::Time deadline,
                      const Session& session, const Connection& server) {
  request.set_stream(output.stream);
  request.set_offset(output.shown);
  std::ostream& out = session.io().out;
  grpc::Status status =
      server.Read(server.runs(), &RunService::Stub::ReadRunLog, request, deadline, [&](const auto& piece) {
        output.shown = EndOf(piece);
        if (last != nullptr) {
          last->Add(piece.data());
        } else {
          out << piece.data();
        }
        return out.good();
      });
  if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE)
    status = PrintAfterCut(request, output, deadline, session, server);
  if (absl::Status written = CheckWritten(out); !written.ok()) return written;
  if (!status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND) return server.Explain(status);
  return Flush(out);
}

// Returns an error that names the ranks of the run if this one is not among them.
absl::Status CheckRank(const Run& run, int rank) {
  const int ranks = run.spec().ranks();
  if (ranks == 0 || rank < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(run.name(), " has no rank ", rank, "; it has ",
                   ranks == 1 ? "rank 0" : absl::StrCat("ranks 0 to ", ranks - 1)));
}

// Prints the outputs of one attempt, or of the last attempt and of all later ones, until the run is final.
// Reads the run's state before its outputs, so that no output is missed.
absl::StatusOr<ExitCode> FollowLogs(const RunLogsOptions& options, ReadRunLogRequest request,
                                    Session& session, Connection& server) {
  SetInterruptWords("stopped following; the run continues");
  const absl::Time deadline = absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration());
  std::vector<Followed> outputs;
  if (!options.only_stderr) outputs.push_back({ReadRunLogRequest::STDOUT});
  if (!options.only_stdout) outputs.push_back({ReadRunLogRequest::STDERR});
  scalelab::v1::GetRunRequest get;
  get.set_name(request.name());
  // Prints what was added to the outputs. `tail` is the number of lines to print; 0 means all.
  const auto print = [&](int tail) {
    for (Followed& output : outputs) {
      LastLines last(static_cast<size_t>(tail));
      const absl::Status status =
          PrintNew(request, output, tail > 0 ? &last : nullptr, deadline, session, server);
      if (!status.ok()) return status;
      if (tail > 0) session.io().out << last.Take() << std::flush;
    }
    return absl::OkStatus();
  };
  int attempt = options.attempt;
  for (bool first = true;; first = false) {
    const auto run = server.Call(server.runs(), &RunService::Stub::GetRun, get);
    if (!run.ok()) return run.status();
    if (const absl::Status known = CheckRank(run->run(), options.rank); !known.ok()) return known;
    request.set_name(run->run().name());
    const int tail = first ? options.tail : 0;
    // The attempt may have written more before it ended, so it is read before newer ones.
    if (attempt > 0) {
      if (const absl::Status status = print(tail); !status.ok()) return status;
    }
    std::vector<int> newer_attempts;
    for (const auto& known : run->run().attempts()) {
      if (options.attempt > 0 || known.number() <= attempt) continue;
      if (first) newer_attempts.clear();  // begins with the last attempt
      newer_attempts.push_back(known.number());
    }
    for (const int newer : newer_attempts) {
      if (attempt > 0) session.Say(absl::StrCat("attempt ", newer, " follows"));
      attempt = newer;
      request.set_attempt(attempt);
      for (Followed& output : outputs) output.shown = 0;
      if (const absl::Status status = print(tail); !status.ok()) return status;
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
  const absl::Time deadline = absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration());
  std::ostream& out = session.io().out;
  LastLines last(static_cast<size_t>(options.tail));
  bool empty = true;
  const grpc::Status status = (*server)->Read((*server)->runs(), &RunService::Stub::ReadRunLog, request,
                                              deadline, [&](const auto& piece) {
                                                empty = empty && piece.data().empty();
                                                if (options.tail > 0) {
                                                  last.Add(piece.data());
                                                } else {
                                                  out << piece.data();
                                                }
                                                return out.good();
                                              });
  out << last.Take();
  if (const absl::Status written = Flush(out); !written.ok()) return written;
  if (!status.ok()) return (*server)->Explain(status);
  if (!empty) return ExitCode::kOk;
  scalelab::v1::GetRunRequest get;
  get.set_name(*name);
  const auto run = (*server)->Call((*server)->runs(), &RunService::Stub::GetRun, get);
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
