#include "server/web/study_text.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/web/methods.h"
#include "study/file/study_file.h"

namespace scalelab::server {

absl::StatusOr<std::string> ParseStudyText(const std::string& json) {
  const nlohmann::json body = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("text") || !body["text"].is_string())
    return absl::InvalidArgumentError("the body is no object with a string \"text\"");
  const absl::StatusOr<StudyFile> file = ReadStudyText(body["text"].get<std::string>(), "study");
  if (!file.ok()) return file.status();
  return absl::StrCat("{\"spec\":", JsonOf(file->spec), "}");
}

}  // namespace scalelab::server
