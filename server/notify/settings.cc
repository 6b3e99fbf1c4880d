#include "server/notify/settings.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/nearest.h"
#include "proto/status.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

using At = std::function<std::string(const YAML::Mark&)>;

absl::Status Invalid(const At& at, const YAML::Node& node, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat(at(node.Mark()), ": ", sentence));
}

std::string Text(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }

bool IsLine(const std::string& text) {
  return !text.empty() &&
         std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

}  // namespace

absl::Status ReadNotify(const YAML::Node& node, const At& at, NotifySettings* settings) {
  if (!node.IsMap())
    return Invalid(at, node, "notify: expected keys, for example {from: scalelab@cluster.example}");
  for (const auto& entry : node) {
    const std::string key = Text(entry.first), value = Text(entry.second);
    if (key == "sendmail") {
      if (value.empty() || value[0] != '/' || !IsLine(value))
        return Invalid(at, entry.second,
                       absl::StrCat("notify: sendmail '", value, "' must be an absolute path"));
      settings->sendmail = value;
    } else if (key == "from") {
      if (!IsLine(value) || value[0] == '-')
        return Invalid(at, entry.second, absl::StrCat("notify: from '", value, "' is not a mail address"));
      settings->from = value;
    } else if (key == "private_addresses") {
      if (value != "true" && value != "false")
        return Invalid(at, entry.second,
                       absl::StrCat("notify: private_addresses '", value, "' is not true or false"));
      settings->private_addresses = value == "true";
    } else {
      const std::string nearest = Nearest(key, {"sendmail", "from", "private_addresses"});
      return Invalid(at, entry.first,
                     absl::StrCat("notify: unknown key '", key, "'; ",
                                  nearest.empty() ? "known: sendmail, from, private_addresses"
                                                  : absl::StrCat("did you mean ", nearest, "?")));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadNotifyCommands(const YAML::Node& node, const At& at, NotifySettings* settings) {
  if (!node.IsMap())
    return Invalid(at, node,
                   "notify_commands: expected names, for example {chat: [/usr/local/bin/post, --room, x]}");
  for (const auto& entry : node) {
    const std::string name = Text(entry.first);
    std::vector<std::string> argv;
    for (size_t i = 0; entry.second.IsSequence() && i < entry.second.size(); ++i)
      argv.push_back(Text(entry.second[i]));
    if (!IsLine(name) || argv.empty() || argv[0].empty() || argv[0][0] != '/') {
      return Invalid(at, entry.first,
                     absl::StrCat("notify_commands: ", name,
                                  " needs a list that begins with an absolute path, for example [",
                                  "/usr/local/bin/post, --room, x]"));
    }
    if (!settings->commands.emplace(name, std::move(argv)).second)
      return Invalid(at, entry.first,
                     absl::StrCat("notify_commands: duplicate key \"", name, "\"; remove one"));
  }
  return absl::OkStatus();
}

absl::Status CheckNotify(const v1::StudySpec& spec, const std::vector<std::string>& commands) {
  const std::string& name = spec.notify().command();
  if (name.empty() || std::find(commands.begin(), commands.end(), name) != commands.end())
    return absl::OkStatus();
  return InvalidFields(
      {{"notify.command",
        absl::StrCat("unknown command \"", name, "\"; ",
                     commands.empty() ? "the configuration of the server has no notify_commands"
                                      : absl::StrCat("known: ", absl::StrJoin(commands, ", ")))}});
}

}  // namespace scalelab::server
