// Compares output with files in tests/golden/client, and pictures with those that docs/users shows.
// SCALELAB_UPDATE_GOLDEN=1 rewrites the files; review the difference.
#pragma once

#include <string>

namespace scalelab::client {

void ExpectFile(const std::string& path, const std::string& text);
void ExpectGolden(const std::string& name, const std::string& text);
void ExpectDocumented(const std::string& name, const std::string& text);

}  // namespace scalelab::client
