// scalelab-manual TEMPLATES DIR: writes the man pages to DIR/man1, DIR/man5 and DIR/man8.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/program.h"
#include "manual/roff.h"
#include "server/config.h"
#include "server/version.h"
#include "worker/options.h"

namespace {

using namespace scalelab;  // NOLINT: only names of this project

// The placeholders that a template may contain in addition to the version.
struct Parts {
  std::string options, commands, keys;
};

Parts PartsOf(void (*visit_command_line)(const std::function<void(const CLI::App&)>&)) {
  Parts parts;
  visit_command_line([&parts](const CLI::App& app) {
    parts.options = manual::Options(app);
    parts.commands = manual::Commands(app);
  });
  return parts;
}

Parts Keys() {
  std::vector<std::pair<std::string, std::string>> terms;
  for (const server::ConfigKey& key : server::ConfigKeys()) {
    terms.emplace_back(absl::StrCat(key.name, ": ", key.value),
                       absl::StrCat(key.help, key.repeats ? ". One value, or a list of values" : ""));
  }
  return {"", "", manual::TermList(terms)};
}

bool WritePage(const std::filesystem::path& templates, const std::filesystem::path& directory,
               const std::string& name, const Parts& parts) {
  std::ifstream input(templates / (name + ".in"));
  std::stringstream text;
  text << input.rdbuf();
  std::string page = manual::ReplaceLine(text.str(), "@OPTIONS@", parts.options);
  page = manual::ReplaceLine(page, "@COMMANDS@", parts.commands);
  page = manual::ReplaceLine(page, "@KEYS@", parts.keys);
  page = absl::StrReplaceAll(page, {{"@VERSION@", server::kVersion}});
  const std::filesystem::path section = directory / ("man" + name.substr(name.rfind('.') + 1));
  std::error_code error;
  std::filesystem::create_directories(section, error);
  std::ofstream output(section / name);
  output << page << std::flush;
  if (input.good() && output.good()) return true;
  std::cerr << "scalelab-manual: cannot make " << (section / name).string() << " from "
            << (templates / (name + ".in")).string() << "\n";
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: scalelab-manual TEMPLATES DIR\n";
    return 2;
  }
  bool ok = WritePage(argv[1], argv[2], "scalelab.1", PartsOf(client::VisitCommandLine));
  ok = WritePage(argv[1], argv[2], "scalelabd.8", PartsOf(server::VisitCommandLine)) && ok;
  ok = WritePage(argv[1], argv[2], "scalelab-worker.8", PartsOf(worker::VisitCommandLine)) && ok;
  ok = WritePage(argv[1], argv[2], "scalelabd.yaml.5", Keys()) && ok;
  return ok ? 0 : 1;
}
