#include "agent/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "agent/user_files.h"
#include "proto/utf8.h"

namespace scalelab::agent {
namespace {

// Limit of the output of a program. The answer must fit into a message, and the coordinator accepts messages
// of at most 4 MiB.
constexpr size_t kMaxOutput = 3 << 20;
constexpr size_t kMaxErrors = 64 << 10;
constexpr int64_t kMaxTimeoutMs = 300'000;
constexpr int kMaxCalls = 4;  // at the same time
// Requests to read files wait for a removal, and the coordinator disconnects an agent that does not answer them within 15 s.
constexpr absl::Duration kRemoveFor = absl::Seconds(2);

v1::ServeRequest::Answer Refusal(const absl::Status& why) {
  v1::ServeRequest::Answer answer;
  answer.set_error(ValidUtf8(why.message()));  // names of files may be any bytes
  answer.set_not_found(absl::IsNotFound(why));
  return answer;
}

v1::ServeRequest::Answer AnswerOf(server::CommandResult result) {
  v1::ServeRequest::Answer answer;
  answer.set_exit_status(result.signal != 0 ? 128 + result.signal : result.exit_code);
  if (result.err.size() > kMaxErrors) result.err.resize(kMaxErrors);
  if (result.truncated || result.out.size() > kMaxOutput) {
    result.out.clear();
    result.err = absl::StrCat("error: it wrote more than ", kMaxOutput >> 20, " MiB\n", result.err);
    answer.set_exit_status(-1);
  }
  if (result.timed_out) answer.set_exit_status(-1);
  answer.set_standard_output(std::move(result.out));
  answer.set_standard_error(std::move(result.err));
  return answer;
}

// Returns why a program was not started. `why` is the error of the system.
absl::Status NotStarted(const std::string& program, const absl::Status& why) {
  if (server::MissingProgram({program}).empty()) return why;
  const char* path = std::getenv("PATH");
  return absl::FailedPreconditionError(absl::StrCat(
      program, " is not on PATH of the agent (", path == nullptr ? "which is not set" : path,
      "); restart the agent with the directory of Slurm's programs on PATH, or, if systemd starts it, add "
      "Environment=PATH=... with `systemctl --user edit scalelab-agent`"));
}

// Calls `work`, which reads or removes files. A call that hangs continues when its connection has ended (serve.cc), so the
// number of calls in this process is limited.
absl::StatusOr<std::string> WithFiles(const std::function<absl::StatusOr<std::string>()>& work) {
  static std::atomic<int> calls = 0;
  absl::StatusOr<std::string> data = absl::UnavailableError(absl::StrCat(
      "the filesystem has not answered ", kMaxCalls, " earlier requests; check it on the login node"));
  if (++calls <= kMaxCalls) data = work();
  --calls;
  return data;
}

// Removes files, and returns a serialized message.
absl::StatusOr<std::string> Remove(const User& user, const v1::ServeResponse::RemoveFiles& remove) {
  using Files = v1::ServeResponse::RemoveFiles;
  v1::ServeRequest::Removed answer;
  if (remove.kind() == Files::EMPTY_STUDY) {
    const absl::StatusOr<bool> present =
        RemoveEmptyStudy(user.directory, remove.directory(), remove.dry_run());
    if (!present.ok()) return present.status();
    answer.set_has_study(*present);
    return answer.SerializeAsString();
  }
  if (remove.kind() != Files::LOGS && remove.kind() != Files::EVERYTHING)
    return absl::UnimplementedError(
        "this version of the agent does not know which files to remove; install the version of the "
        "coordinator and restart the agent");
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(kRemoveFor);
  const absl::StatusOr<UserFilesRemoved> removed =
      RemoveUserFiles(user.directory, remove.directory(),
                      remove.kind() == Files::LOGS ? FilesOf::kLogs : FilesOf::kEverything, remove.dry_run(),
                      [end] { return std::chrono::steady_clock::now() > end; });
  if (!removed.ok()) return removed.status();
  answer.set_directories(removed->files.directories);
  answer.set_files(removed->files.files);
  answer.set_bytes(removed->files.bytes);
  answer.set_why_left(ValidUtf8(removed->files.why_left));
  answer.set_incomplete(!removed->complete);
  return answer.SerializeAsString();
}

}  // namespace

v1::ServeRequest::Answer Executor::Execute(const v1::ServeResponse::Execute& execute) const {
  const absl::StatusOr<Command> command = CheckCommand(execute, user_);
  if (!command.ok()) return Refusal(command.status());
  if (!command->job.empty()) {
    if (auto s = MakeUserDirectory(user_.directory); !s.ok()) return Refusal(s);
    if (auto s = PrepareJob(user_.directory, command->job, execute.standard_input()); !s.ok())
      return Refusal(absl::FailedPreconditionError(s.message()));
  }
  const int64_t timeout = std::clamp<int64_t>(execute.timeout_ms(), 1000, kMaxTimeoutMs);
  absl::StatusOr<server::CommandResult> result =
      runner_.Run(command->argv, execute.standard_input(), command->variables, absl::Milliseconds(timeout));
  return result.ok() ? AnswerOf(*std::move(result)) : Refusal(NotStarted(command->argv[0], result.status()));
}

v1::ServeRequest::Answer Executor::Answer(const v1::ServeResponse& request) const {
  v1::ServeRequest::Answer answer;
  if (request.has_execute()) {
    answer = Execute(request.execute());
  } else if (request.has_read_file() || request.has_remove_files()) {
    absl::StatusOr<std::string> data = WithFiles([&]() -> absl::StatusOr<std::string> {
      if (request.has_remove_files()) return Remove(user_, request.remove_files());
      const v1::ServeResponse::ReadFile& read = request.read_file();
      return ReadUserFile(user_.directory, read.directory(), read.name(), read.offset(), read.length());
    });
    if (data.ok())
      answer.set_standard_output(*std::move(data));
    else
      answer = Refusal(data.status());
  } else {
    answer = Refusal(absl::UnimplementedError("this version of the agent does not know the request"));
  }
  answer.set_id(request.id());
  return answer;
}

std::string Describe(const v1::ServeResponse& request) {
  if (request.has_remove_files()) {
    const v1::ServeResponse::RemoveFiles& remove = request.remove_files();
    return absl::StrCat("remove ",
                        absl::AsciiStrToLower(v1::ServeResponse::RemoveFiles::Kind_Name(remove.kind())),
                        " of ", remove.directory());
  }
  if (request.has_read_file())
    return absl::StrCat("read ", request.read_file().directory(), "/", request.read_file().name());
  std::string text =
      absl::AsciiStrToLower(v1::ServeResponse::Execute::Program_Name(request.execute().program()));
  for (const std::string& argument : request.execute().arguments()) absl::StrAppend(&text, " ", argument);
  if (text.size() > 300) text = absl::StrCat(text.substr(0, 300), "...");
  return text;
}

}  // namespace scalelab::agent
