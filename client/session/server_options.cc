#include "client/session/server_options.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/session/server_trust.h"

namespace scalelab::client {
namespace {

constexpr size_t kLongestSocketPath = 107;  // size of sockaddr_un.sun_path without the terminating zero

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string XdgDirectory(const char* variable, absl::string_view below_home) {
  const std::string value = Env(variable);
  return value.empty() ? absl::StrCat(Env("HOME"), "/", below_home) : value;
}

struct ConfiguredValue {
  std::string text;
  std::string place;  // "PATH:LINE"
};
using Values = std::map<std::string, ConfiguredValue>;

// Adds the values of the configuration file; those that are already in `values` stay. A file that does not
// exist adds nothing.
absl::Status ReadConfig(const std::string& path, Values* values) {
  Values of_file;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view text =
        absl::StripAsciiWhitespace(absl::string_view(line).substr(0, line.find('#')));
    if (text.empty()) continue;
    const size_t separator = text.find_first_of(":=");
    const std::string key(absl::StripAsciiWhitespace(text.substr(0, separator)));
    if (separator == absl::string_view::npos || (key != "server" && key != "token_file" && key != "notify")) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": '", text,
                                                     "' is not a setting: write \"server: ADDRESS\", "
                                                     "\"token_file: PATH\" or \"notify: {mail: ADDRESS}\""));
    }
    const std::string place = absl::StrCat(path, ":", number);
    if (key == "notify") {
      // YAML, in which a # may be part of a URL.
      of_file[key] = {line.substr(line.find_first_of(":=") + 1), place};
      continue;
    }
    absl::string_view value = absl::StripAsciiWhitespace(text.substr(separator + 1));
    if (value.size() >= 2 && value.front() == value.back() &&
        (value.front() == '"' || value.front() == '\'')) {
      value = value.substr(1, value.size() - 2);
    }
    of_file[key] = {std::string(value), place};
  }
  values->merge(of_file);
  return absl::OkStatus();
}

// Returns the values of the user's configuration file. For keys that it does not set, returns those of
// the machine's files.
absl::StatusOr<Values> ReadConfigs() {
  Values values;
  const std::string user = XdgDirectory("XDG_CONFIG_HOME", ".config") + "/scalelab/config";
  if (const absl::Status status = ReadConfig(user, &values); !status.ok()) return status;
  const std::string directories = Env("XDG_CONFIG_DIRS").empty() ? "/etc/xdg" : Env("XDG_CONFIG_DIRS");
  for (const absl::string_view directory : absl::StrSplit(directories, ':', absl::SkipEmpty())) {
    const absl::Status status = ReadConfig(absl::StrCat(directory, "/scalelab/config"), &values);
    if (!status.ok()) return status;
  }
  return values;
}

}  // namespace

std::string ConfigDirectory() { return XdgDirectory("XDG_CONFIG_HOME", ".config") + "/scalelab"; }

std::string CacheDirectory() { return XdgDirectory("XDG_CACHE_HOME", ".cache") + "/scalelab"; }

absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view text) {
  ServerAddress address;
  address.text = std::string(text);
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (absl::StartsWith(rest, "//")) rest.remove_prefix(2);
    if (rest.empty())
      return absl::InvalidArgumentError("the server address 'unix:' has no socket path: write unix:PATH");
    if (rest.size() > kLongestSocketPath) {
      return absl::InvalidArgumentError(absl::StrCat("the socket path ", rest, " has ", rest.size(),
                                                     " bytes, more than ", kLongestSocketPath,
                                                     ": use a shorter or a relative path"));
    }
    address.socket_path = std::string(rest);
    address.target = absl::StrCat("unix:", rest);
    return address;
  }
  address.encrypted = !absl::ConsumePrefix(&rest, "insecure:");
  const size_t colon = rest.rfind(':');
  int port = 0;
  const bool fits = colon != absl::string_view::npos && colon > 0 &&
                    rest.find_first_of("/ ") == absl::string_view::npos &&
                    absl::SimpleAtoi(rest.substr(colon + 1), &port) && port > 0 && port < 65536;
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("the server address '", text, "' is neither unix:PATH nor HOST:PORT"));
  }
  address.target = absl::StrCat("dns:///", rest);
  address.host = std::string(rest.substr(0, colon));
  address.port = std::string(rest.substr(colon + 1));
  return address;
}

absl::StatusOr<ServerOptions> ResolveServer(const std::string& server_flag,
                                            const std::string& token_file_flag) {
  const auto config = ReadConfigs();
  if (!config.ok()) return config.status();
  const auto first_set = [&config](const std::string& flag, const char* variable, const std::string& key,
                                   const std::string& fallback) {
    if (!flag.empty()) return flag;
    if (const std::string value = Env(variable); !value.empty()) return value;
    const auto it = config->find(key);
    return it != config->end() && !it->second.text.empty() ? it->second.text : fallback;
  };
  const std::string socket = XdgDirectory("XDG_DATA_HOME", ".local/share") + "/scalelab/scalelab.sock";
  const auto address =
      ParseServerAddress(first_set(server_flag, "SCALELAB_SERVER", "server", absl::StrCat("unix:", socket)));
  if (!address.ok()) return address.status();
  const auto certificate = address->encrypted ? KnownCertificate(address->text) : "";
  if (!certificate.ok()) return certificate.status();
  return ServerOptions{*address, first_set(token_file_flag, "SCALELAB_TOKEN_FILE", "token_file", ""),
                       *certificate};
}

absl::StatusOr<std::vector<DefaultSection>> StudyDefaults() {
  const auto config = ReadConfigs();
  if (!config.ok()) return config.status();
  std::vector<DefaultSection> sections;
  if (const auto it = config->find("notify"); it != config->end())
    sections.push_back({"notify", it->second.text, absl::StrCat(it->second.place, ": notify")});
  return sections;
}

}  // namespace scalelab::client
