// The files of the dashboard's page, which the build puts into the program.
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab::server {

struct Asset {
  absl::string_view path;  // of the URL, for example "/assets/app.css"
  absl::string_view type;  // of the content
  absl::string_view tag;   // changes with the content
  absl::string_view content;
};

// Returns null if there is no such file.
const Asset* FindAsset(absl::string_view path);

}  // namespace scalelab::server
