// `scalelab run logs RUN`: prints the output of a rank, byte for byte.
#include "client/commands/commands.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ReadRunLogRequest;
using scalelab::v1::ReadRunLogResponse;

struct Options {
  std::string run;
  int rank = 0;
  int attempt = 0;
  bool only_stdout = false;
  bool only_stderr = false;
};

absl::StatusOr<ExitCode> RunCommand(const Options& options, Session& session) {
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
  while (reader->Read(&piece)) session.io().out << piece.data();
  if (const grpc::Status status = reader->Finish(); !status.ok()) return (*server)->Explain(status);
  if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddRunLogs(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      run.add_subcommand("logs", "Print the output of a rank of a run: standard output, then standard error");
  command->add_option("RUN", options->run, "Number, runs/NUMBER, or studies/NUMBER/runs/NUMBER")->required();
  command->add_option("--rank", options->rank, "Rank, from 0")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--attempt", options->attempt, "Attempt, from 1; the last one if not given")
      ->check(CLI::PositiveNumber);
  auto* only_stdout = command->add_flag("--stdout", options->only_stdout, "Standard output only");
  command->add_flag("--stderr", options->only_stderr, "Standard error only")->excludes(only_stdout);
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return RunCommand(*options, s); }; });
}

}  // namespace scalelab::client
