#include "catalog/installation.h"

#include <system_error>

namespace scalelab {

std::string CompanionProgram(const std::filesystem::path& program, const std::string& name) {
  const std::filesystem::path bin = program.parent_path();
  const std::filesystem::path beside = bin / name,
                              private_program = bin.parent_path() / "lib/scalelab" / name;
  std::error_code error;
  const bool only_private =
      !std::filesystem::exists(beside, error) && std::filesystem::exists(private_program, error);
  return only_private ? private_program.string() : beside.string();
}

std::string AdaptersDirectory(const std::filesystem::path& program) {
  return program.parent_path().parent_path() / "share/scalelab/adapters";
}

}  // namespace scalelab
