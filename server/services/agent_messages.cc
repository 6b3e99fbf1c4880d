#include "server/services/agent_messages.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace scalelab::server {

void FillRequest(const AgentRequest& from, v1::ServeResponse* to) {
  using Remove = v1::ServeResponse::RemoveFiles;
  if (from.argv.empty() && from.files != AgentRequest::Files::kRead) {
    Remove& remove = *to->mutable_remove_files();
    remove.set_kind(from.files == AgentRequest::Files::kRemoveLogs         ? Remove::LOGS
                    : from.files == AgentRequest::Files::kRemoveEverything ? Remove::EVERYTHING
                                                                           : Remove::EMPTY_STUDY);
    remove.set_directory(from.directory);
    remove.set_dry_run(from.dry_run);
    return;
  }
  if (from.argv.empty()) {
    v1::ServeResponse::ReadFile& read = *to->mutable_read_file();
    read.set_directory(from.directory);
    read.set_name(from.file);
    read.set_offset(from.offset);
    read.set_length(from.length);
    return;
  }
  using Execute = v1::ServeResponse::Execute;
  Execute& execute = *to->mutable_execute();
  Execute::Program program = Execute::PROGRAM_UNSPECIFIED;
  Execute::Program_Parse(absl::AsciiStrToUpper(from.argv[0]), &program);
  execute.set_program(program);
  for (size_t i = 1; i < from.argv.size(); ++i) execute.add_arguments(from.argv[i]);
  execute.set_standard_input(from.input);
  for (const std::string& variable : from.variables) {
    const size_t equals = variable.find('=');
    (*execute.mutable_environment())[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  execute.set_timeout_ms(absl::ToInt64Milliseconds(from.timeout));
}

absl::StatusOr<CommandResult> ResultOf(v1::ServeRequest::Answer& answer) {
  if (answer.not_found()) return absl::NotFoundError(answer.error());
  if (!answer.error().empty())
    return absl::FailedPreconditionError(absl::StrCat("the agent refuses: ", answer.error()));
  CommandResult result;
  result.exit_code = answer.exit_status();
  result.timed_out = answer.exit_status() < 0;
  result.out = std::move(*answer.mutable_standard_output());
  result.err = std::move(*answer.mutable_standard_error());
  return result;
}

}  // namespace scalelab::server
