// `scalelab data index DIR`: writes the list of a folder's images once, so that runs need not search the
// folder. Needs no server.
#include "absl/strings/str_cat.h"
#include "catalog/image_folder.h"
#include "client/commands/commands.h"
#include "client/session/exit_code.h"

namespace scalelab::client {
namespace {

absl::StatusOr<ExitCode> ExecuteDataIndex(const std::string& dir, Session& session) {
  const absl::StatusOr<int64_t> images = WriteImageIndex(dir);
  if (!images.ok()) return images.status();
  session.Say(absl::StrCat(dir, "/train.index and val.index list ", *images,
                           " images; run this command again when images are added or removed"));
  return ExitCode::kOk;
}

}  // namespace

void AddDataIndex(CLI::App& data, Action& chosen) {
  auto dir = std::make_shared<std::string>();
  CLI::App* command = data.add_subcommand(
      "index", "Write the list of a folder's images, so that runs start sooner; needs no server");
  command->add_option("DIR", *dir, "Directory with train and val (data set imagefolder)")->required();
  command->callback(
      [dir, &chosen] { chosen = [dir](Session& session) { return ExecuteDataIndex(*dir, session); }; });
}

}  // namespace scalelab::client
