// `scalelab run logs RUN`: prints the output of a rank, byte for byte.
#include <string>
#include <utility>

#include "client/commands/commands.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ReadRunLogRequest;
using scalelab::v1::ReadRunLogResponse;

struct RunLogsOptions {
  std::string run;
  int rank = 0;
  int attempt = 0;
  bool only_stdout = false;
  bool only_stderr = false;
  int tail = 0;  // 0: the whole log
};

// Keeps the last lines of what is added.
class LastLines {
 public:
  explicit LastLines(size_t lines) : lines_(lines) {}
  void Add(const std::string& data) {
    kept_ += data;
    // Cuts only now and then, so that each byte is moved a few times at most.
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

  // No default timeout, because a log can be large; --timeout limits the whole transfer.
  const auto context =
      (*server)->MakeContext(absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration()));
  const auto reader = (*server)->runs().ReadRunLog(context.get(), request);
  ReadRunLogResponse piece;
  LastLines last(static_cast<size_t>(options.tail));
  while (reader->Read(&piece)) {
    if (options.tail > 0) {
      last.Add(piece.data());
    } else {
      session.io().out << piece.data();
    }
  }
  session.io().out << last.Take();
  if (const grpc::Status status = reader->Finish(); !status.ok()) return (*server)->Explain(status);
  if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
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
  auto* only_stdout = command->add_flag("--stdout", options->only_stdout, "Standard output only");
  command->add_flag("--stderr", options->only_stderr, "Standard error only")->excludes(only_stdout);
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunLogs(*options, s); }; });
}

}  // namespace scalelab::client
