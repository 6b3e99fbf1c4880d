// The sections `notify` and `notify_commands` of the configuration file.
//
//   notify:
//     sendmail: /usr/sbin/sendmail
//     from: scalelab@cluster.example
//     private_addresses: true
//   notify_commands:
//     chat: [/usr/local/bin/post-to-chat, --room, training]
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scalelab/v1/study.pb.h"
#include "server/notify/sendmail.h"

namespace YAML {
class Node;
struct Mark;
}  // namespace YAML

namespace scalelab::server {

struct NotifySettings {
  std::string sendmail = kDefaultSendmail;  // program that sends mail
  std::string from;                         // sender of mail; empty: sendmail chooses
  bool private_addresses = false;           // webhooks may be on private and loopback addresses
  // Programs that studies may name, with their arguments.
  std::map<std::string, std::vector<std::string>> commands;
};

absl::Status ReadNotify(const YAML::Node& node, const std::function<std::string(const YAML::Mark&)>& at,
                        NotifySettings* settings);
absl::Status ReadNotifyCommands(const YAML::Node& node,
                                const std::function<std::string(const YAML::Mark&)>& at,
                                NotifySettings* settings);

// Returns INVALID_ARGUMENT, with the field, if the specification names a command that the configuration does
// not have.
absl::Status CheckNotify(const v1::StudySpec& spec, const std::vector<std::string>& commands);

}  // namespace scalelab::server
