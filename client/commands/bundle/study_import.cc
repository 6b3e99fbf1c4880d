// `scalelab study import FILE`: stores the study of a bundle on the server.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/bundle/bundle_figures.h"
#include "client/bundle/bundle_file.h"
#include "client/commands/archive/transfer.h"
#include "client/commands/bundle/bundle.h"
#include "nlohmann/json.hpp"

namespace scalelab::client {
namespace {

constexpr size_t kImportPiece = 256 << 10;

absl::StatusOr<scalelab::v1::StudyOrigin> OriginOf(BundleReader& bundle) {
  const auto text = bundle.Read(kBundleManifest);
  if (!text.ok()) return text.status();
  const auto manifest = nlohmann::json::parse(*text, nullptr, false);
  if (!manifest.is_object()) return absl::DataLossError("manifest.json of the bundle is no JSON object");
  scalelab::v1::StudyOrigin origin;
  const auto text_of = [&manifest](const char* key) {
    const auto found = manifest.find(key);
    return found != manifest.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  origin.set_server(text_of("server"));
  origin.set_study(text_of("study"));
  origin.set_sha256(bundle.sha256());
  return origin;
}

absl::StatusOr<ExitCode> ExecuteStudyImport(const std::string& file, Session& session) {
  auto bundle = BundleReader::Open(file);
  if (!bundle.ok()) return bundle.status();
  const auto origin = OriginOf(*bundle);
  if (!origin.ok()) return origin.status();
  const auto entry = bundle->entries().find(kBundleArchive);
  if (entry == bundle->entries().end())
    return absl::DataLossError(absl::StrCat(file, " has no ", kBundleArchive));
  int64_t sent = 0;
  const auto response = UploadArchive(session, *origin, [&](std::string* piece) -> absl::StatusOr<bool> {
    const int64_t bytes = std::min<int64_t>(kImportPiece, entry->second.size - sent);
    if (bytes == 0) return false;
    auto read = bundle->ReadAt(entry->second.offset + sent, bytes);
    if (!read.ok()) return read.status();
    *piece = *std::move(read);
    sent += bytes;
    return true;
  });
  if (!response.ok()) return response.status();

  const auto& study = response->study();
  if (const absl::Status printed = PrintStored(session, *response); !printed.ok()) return printed;
  session.Say(absl::StrCat(response->existed() ? "the study was there already: " : "imported ",
                           study.display_name(), " of ", study.owner(), ", ", origin->study(), " of ",
                           origin->server(), ", as ", study.name()));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyImport(CLI::App& study, Action& chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = study.add_subcommand(
      "import", "Store the study of a bundle on the server, and print its name; no run starts");
  command->add_option("FILE", *file, "A file that `study bundle` has written")->required();
  command->callback(
      [file, &chosen] { chosen = [file](Session& s) { return ExecuteStudyImport(*file, s); }; });
}

}  // namespace scalelab::client
