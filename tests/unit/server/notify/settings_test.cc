#include "server/notify/settings.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/status.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string At(const YAML::Mark& mark) { return absl::StrCat("line ", mark.line + 1); }

TEST(NotifySettings, TheSectionsAreRead) {
  NotifySettings settings;
  EXPECT_EQ(settings.sendmail, "/usr/sbin/sendmail");
  ASSERT_TRUE(
      ReadNotify(YAML::Load("{sendmail: /opt/send, from: a@b.c, private_addresses: true}"), At, &settings)
          .ok());
  EXPECT_EQ(settings.sendmail, "/opt/send");
  EXPECT_EQ(settings.from, "a@b.c");
  EXPECT_TRUE(settings.private_addresses);
  ASSERT_TRUE(
      ReadNotifyCommands(YAML::Load("{chat: [/bin/post, --room, x], log: [/bin/log]}"), At, &settings).ok());
  EXPECT_THAT(settings.commands["chat"], ElementsAre("/bin/post", "--room", "x"));
}

TEST(NotifySettings, AnErrorNamesThePlaceAndWhatToWrite) {
  NotifySettings settings;
  const auto error = [&](const char* yaml) {
    return std::string(ReadNotify(YAML::Load(yaml), At, &settings).message());
  };
  EXPECT_THAT(error("\nform: x"), HasSubstr("line 2: notify: unknown key 'form'; did you mean from?"));
  EXPECT_THAT(error("sendmail: sendmail"), HasSubstr("must be an absolute path"));
  EXPECT_THAT(error("from: -v"), HasSubstr("is not a mail address"));
  EXPECT_THAT(error("from: \"a@b\\nBcc: c@d\""), HasSubstr("is not a mail address"));
  EXPECT_THAT(error("private_addresses: yes"), HasSubstr("is not true or false"));
  EXPECT_THAT(error("[]"), HasSubstr("expected keys"));
  const auto commands = [&](const char* yaml) {
    return std::string(ReadNotifyCommands(YAML::Load(yaml), At, &settings).message());
  };
  EXPECT_THAT(commands("chat: /bin/post"), HasSubstr("needs a list that begins with an absolute path"));
  EXPECT_THAT(commands("chat: [post]"), HasSubstr("absolute path"));
  EXPECT_THAT(commands("chat: []"), HasSubstr("absolute path"));
}

TEST(NotifySettings, AStudyMayNameOnlyCommandsOfTheConfiguration) {
  v1::StudySpec spec;
  EXPECT_TRUE(CheckNotify(spec, {}).ok());
  spec.mutable_notify()->set_command("chat");
  EXPECT_TRUE(CheckNotify(spec, {"chat", "log"}).ok());
  const absl::Status unknown = CheckNotify(spec, {"log"});
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("known: log"));
  EXPECT_EQ(ViolationsOf(unknown).at(0).field, "notify.command");
  EXPECT_THAT(std::string(CheckNotify(spec, {}).message()), HasSubstr("has no notify_commands"));
}

}  // namespace
}  // namespace scalelab::server
