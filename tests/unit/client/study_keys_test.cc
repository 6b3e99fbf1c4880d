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
  const Outcome unknown = RunAsIs({"study", "keys", "xylophone"});
  EXPECT_THAT(unknown, Exits(ExitCode::kUsage));
  EXPECT_THAT(unknown.err, HasSubstr("neither a parameter of fixed, matrix and zip nor a section"));
}

TEST_F(StudyKeysCommand, ExplainsTheKeysOfSections) {
  const Outcome scaling = RunAsIs({"study", "keys", "scaling"});
  EXPECT_THAT(scaling, Exits(ExitCode::kOk));
  EXPECT_THAT(scaling.out,
              AllOf(HasSubstr("scaling.mode"), HasSubstr("strong, weak"), HasSubstr("scaling.batch_per_rank"),
                    HasSubstr("whole number"), HasSubstr("0 means 128"), Not(HasSubstr("measure"))));
  const Outcome measure = RunAsIs({"study", "keys", "measure.extract"});
  EXPECT_THAT(measure.out, AllOf(HasSubstr("measure.extract[].regex"), HasSubstr("list of mappings"),
                                 Not(HasSubstr("warmup_steps"))));
  EXPECT_THAT(RunAsIs({"study", "keys", "repeats"}).out,
              AllOf(HasSubstr("whole number or mapping"), HasSubstr("repeats.until.half_width")));
  EXPECT_THAT(RunAsIs({"study", "keys", "checkpoint"}).out,
              AllOf(HasSubstr("checkpoint.every"), HasSubstr("text or whole number"),
                    HasSubstr("checkpoint.keep"), HasSubstr("Default: 2")));
  EXPECT_THAT(RunAsIs({"study", "keys", "fixed"}).out,
              HasSubstr("Its keys are those that `scalelab study keys` lists"));
  EXPECT_THAT(RunAsIs({"study", "keys", "resorces"}).err, HasSubstr("did you mean 'resources'?"));
  EXPECT_THAT(RunAsIs({"study", "keys", "scal"}), Exits(ExitCode::kUsage)) << "a part of a name";
  const auto json =
      nlohmann::json::parse(RunAsIs({"study", "keys", "scaling", "momentum", "-o", "json"}).out);
  ASSERT_EQ(json["keys"].size(), 5u);
  EXPECT_EQ(json["keys"][1]["name"], "scaling.mode");
  EXPECT_EQ(json["keys"][4]["name"], "momentum");
  EXPECT_THAT(RunAsIs({"study", "keys", "scaling", "-o", "csv"}).out,
              HasSubstr("scaling.mode,text,,\"strong, weak\",,Strong or weak\n"));
}

}  // namespace
}  // namespace scalelab::client
