// Tests of whoami, token and admin audit.
#include <nlohmann/json.hpp>

#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class AccessCommands : public ClientTest {
 protected:
  static scalelab::v1::Token Token(int number, int expires) {
    scalelab::v1::Token token;
    token.set_name("tokens/" + std::to_string(number));
    token.set_user("alice");
    token.set_scope(scalelab::v1::SUBMIT_SCOPE);
    token.set_description("laptop");
    token.mutable_create_time()->set_seconds(1'795'000'000);
    token.mutable_expire_time()->set_seconds(expires);
    return token;
  }
};

TEST_F(AccessCommands, WhoamiShowsTheIdentity) {
  server_.identity.set_user("alice");
  server_.identity.set_role(scalelab::v1::USER);
  server_.identity.set_scope(scalelab::v1::READ_SCOPE);
  server_.identity.set_source("token 3");
  Start();
  EXPECT_EQ(Run({"whoami", "-o", "csv"}).out,
            "user,role,scope,source,expire_time\nalice,user,read,token 3,\n");
  EXPECT_THAT(Run({"whoami"}).out, HasSubstr("token 3"));
}

TEST_F(AccessCommands, CreatePrintsTheSecretAndNothingElseOnStdout) {
  server_.tokens = {Token(3, 1'797'000'000)};
  Start();
  const Outcome created =
      Run({"token", "create", "--expires", "2d", "--scope", "read", "--description", "laptop"});
  EXPECT_THAT(created, Exits(ExitCode::kOk));
  EXPECT_EQ(created.out, "slt_secret\n");
  EXPECT_THAT(created.err, AllOf(HasSubstr("tokens/3 of alice"), Not(HasSubstr("slt_secret"))));
  ASSERT_THAT(server_.tokens_created, SizeIs(1));
  EXPECT_EQ(server_.tokens_created[0].lifetime().seconds(), 2 * 24 * 3600);
  EXPECT_EQ(server_.tokens_created[0].scope(), scalelab::v1::READ_SCOPE);
  EXPECT_EQ(server_.tokens_created[0].description(), "laptop");
}

TEST_F(AccessCommands, AWrongTimeIsExplained) {
  Start();
  for (const char* wrong : {"30", "d", "-1d", "0d", "nand", "infd", "1w"}) {
    const Outcome refused = Run({"token", "create", std::string("--expires=") + wrong});
    EXPECT_THAT(refused, Exits(ExitCode::kUsage)) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("write for example 30d")) << wrong;
  }
  EXPECT_THAT(server_.tokens_created, IsEmpty());
}

TEST_F(AccessCommands, TokensHaveAState) {
  server_.tokens = {Token(3, 1'797'000'000), Token(2, 1'795'000'100), Token(1, 1'797'000'000)};
  server_.tokens[2].mutable_revoke_time()->set_seconds(1'795'000'050);
  Start();
  EXPECT_EQ(Run({"token", "list", "-o", "csv"}).out,
            "name,user,scope,state,description,create_time,expire_time,last_use_time\n"
            "tokens/3,alice,submit,valid,laptop,2026-11-18T11:06:40Z,2026-12-11T14:40:00Z,\n"
            "tokens/2,alice,submit,expired,laptop,2026-11-18T11:06:40Z,2026-11-18T11:08:20Z,\n"
            "tokens/1,alice,submit,revoked,laptop,2026-11-18T11:06:40Z,2026-12-11T14:40:00Z,\n");
  EXPECT_THAT(Run({"token", "revoke", "3", "tokens/2"}).out,
              AllOf(HasSubstr("tokens/3"), HasSubstr("tokens/2")));
  EXPECT_THAT(Run({"token", "revoke", "9"}), Exits(ExitCode::kFailure));
}

TEST_F(AccessCommands, AuditShowsAllPages) {
  for (int i = 0; i < 5; ++i) {
    scalelab::v1::ListAuditEntriesResponse::Entry entry;
    entry.mutable_time()->set_seconds(1'795'000'000 + i);
    entry.set_user("bob");
    entry.set_source("unix socket");
    entry.set_address("local");
    entry.set_action("CancelStudy");
    entry.set_target("studies/" + std::to_string(i));
    entry.set_result("OK");
    entry.set_count(1);
    server_.audit.push_back(entry);
  }
  Start();
  const Outcome list = Run({"admin", "audit", "--user", "bob", "--since", "7d", "--refused", "-o", "csv"});
  EXPECT_THAT(list.out,
              AllOf(StartsWith("time,user,source,address,action,target,result,count,detail\n"),
                    HasSubstr("2026-11-18T11:06:40Z,bob,unix socket,local,CancelStudy,studies/0,OK,1,"),
                    HasSubstr("studies/4")));
  ASSERT_THAT(server_.audit_asked, SizeIs(3));
  EXPECT_EQ(server_.audit_asked[0].user(), "bob");
  EXPECT_TRUE(server_.audit_asked[0].refused_only());
  EXPECT_EQ(server_.audit_asked[0].since().seconds(), 1'795'000'200 - 7 * 24 * 3600);
  EXPECT_THAT(nlohmann::json::parse(Run({"admin", "audit", "-o", "json"}).out)["entries"], SizeIs(5));
}

}  // namespace
}  // namespace scalelab::client
