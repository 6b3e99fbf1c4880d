// `scalelab admin drain [--reason TEXT]` and `scalelab admin undrain`: start and end drain mode.
#include "absl/strings/str_cat.h"
#include "client/commands/admin/admin.h"
#include "client/commands/sections.h"

namespace scalelab::client {
namespace {

struct AdminDrainOptions {
  std::string reason;
};

absl::StatusOr<ExitCode> ExecuteAdminDrain(bool drain, const std::string& reason, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  scalelab::v1::SetDrainRequest request;
  request.set_drain(drain);
  request.set_reason(reason);
  const auto response =
      (*server)->Call((*server)->admin(), &scalelab::v1::AdminService::Stub::SetDrain, request);
  if (!response.ok()) return response.status();
  const Answer answer{*response,
                      {Facts({{"drain mode", drain ? "on: no run begins and no job is submitted" : "off"},
                              {"reason", reason},
                              {"running attempts", absl::StrCat(response->live_attempts())}})}};
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddAdminDrain(CLI::App& admin, Action& chosen) {
  auto options = std::make_shared<AdminDrainOptions>();
  CLI::App* drain = admin.add_subcommand(
      "drain", "Begin no attempt and submit no job until `undrain`; running attempts continue");
  drain->add_option("--reason", options->reason, "Reason that users see")->option_text("TEXT");
  drain->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteAdminDrain(true, options->reason, session); };
  });
  admin.add_subcommand("undrain", "End `drain`")->callback([&chosen] {
    chosen = [](Session& session) { return ExecuteAdminDrain(false, "", session); };
  });
}

}  // namespace scalelab::client
