// `scalelab study keys`, which needs no server.
#include "catalog/run_parameters.h"
#include "nlohmann/json.hpp"
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using StudyKeysCommand = ClientTest;

TEST_F(StudyKeysCommand, PrintsTheTableOfRunParameters) {
  const Outcome table = RunAsIs({"study", "keys"});
  EXPECT_THAT(table, Exits(ExitCode::kOk));
  EXPECT_THAT(table.out, HasSubstr("bucket_cap_mib"));
  EXPECT_THAT(table.out, HasSubstr("1 to 4096"));
  EXPECT_THAT(table.out, HasSubstr(absl::StrCat(Engines().size(), " names")))
      << "a list of all engines would fill the table";
  EXPECT_THAT(table.out, Not(HasSubstr("communication_baseline"))) << "no study sets it";

  const auto json = nlohmann::json::parse(RunAsIs({"study", "keys", "-o", "json"}).out);
  ASSERT_EQ(json["keys"].size(), StudyKeyNames().size());
  EXPECT_EQ(json["keys"][0]["name"], "engine");
  EXPECT_THAT(std::string(json["keys"][0]["values"]), HasSubstr("native/horovod"));

  const Outcome csv = RunAsIs({"study", "keys", "-o", "csv"});
  EXPECT_THAT(csv.out, HasSubstr("key,type,default,values,unit,meaning\n"));
  EXPECT_THAT(csv.out, HasSubstr("comm_timeout_s,number,600,0.1 to 1000000,s,"));
}

TEST_F(StudyKeysCommand, ExplainsSingleKeys) {
  const Outcome one = RunAsIs({"study", "keys", "bucket_cap_mib"});
  EXPECT_THAT(one, Exits(ExitCode::kOk));
  EXPECT_THAT(one.out, AllOf(HasSubstr("bucket_cap_mib\ntype: "), HasSubstr("default:  25\n"),
                             HasSubstr("engines:  native/ddp"), Not(HasSubstr("momentum"))));
  const auto json = nlohmann::json::parse(RunAsIs({"study", "keys", "momentum", "engine", "-o", "json"}).out);
  EXPECT_EQ(json["keys"].size(), 2u);
  EXPECT_THAT(RunAsIs({"study", "keys", "momentun"}).err, HasSubstr("did you mean 'momentum'?"));
  const Outcome unknown = RunAsIs({"study", "keys", "scaling"});
  EXPECT_THAT(unknown, Exits(ExitCode::kUsage));
  EXPECT_THAT(unknown.err, HasSubstr("'scaling' is no key of fixed, matrix and zip"));
}

}  // namespace
}  // namespace scalelab::client
