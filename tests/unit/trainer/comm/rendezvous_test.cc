#include "worker/trainer/comm/peers/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "worker/trainer/comm/peers/network.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

class RendezvousTest : public testing::TestWithParam<const char*> {
 protected:
  RendezvousTest() {
    if (std::string(GetParam()) == "directory") {
      place_.directory = testing::TempDir() + "/rendezvous-" + std::to_string(getpid());
    } else {
      place_.host = "127.0.0.1";
      Listen(place_.host, place_.port);  // sets a free port
    }
  }
  RendezvousAddress place_;
};

TEST_P(RendezvousTest, EveryRankGetsTheLinesOfAll) {
  std::vector<std::unique_ptr<KeyStore>> stores(3);  // keeps every store alive while other ranks read
  std::vector<std::vector<std::string>> lines(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      stores[r] = OpenStore(place_, r, 3, milliseconds(20'000));
      const std::string mine = std::string("with \0 and \n ", 13) + std::to_string(r);
      Deadline deadline(milliseconds(20'000));
      lines[r] = GatherThrough(*stores[r], "a/b%", r, 3, mine, deadline);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  stores.clear();
  for (int r = 0; r < 3; ++r) {
    ASSERT_EQ(lines[r].size(), 3u);
    for (int other = 0; other < 3; ++other) {
      EXPECT_EQ(lines[r][other], std::string("with \0 and \n ", 13) + std::to_string(other));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(place_.directory)) << "the last rank removes the directory";
}

TEST_P(RendezvousTest, NamesMissingRanks) {
  const auto store = OpenStore(place_, 0, 4, milliseconds(20'000));
  store->Set("here/2", "");
  Deadline deadline(milliseconds(30));
  try {
    GatherThrough(*store, "here/", 0, 4, "", deadline);
    FAIL() << "two ranks are missing";
  } catch (const TrainerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("timed out waiting for rank 1, 3 of 4"));
  }
}

TEST_P(RendezvousTest, AKeyIsFoundOnceItIsSet) {
  const auto store = OpenStore(place_, 0, 1, milliseconds(20'000));
  EXPECT_EQ(store->Find("key"), std::nullopt);
  Deadline soon(milliseconds(1)), late(milliseconds(20'000));
  EXPECT_EQ(WaitForKey(*store, "key", soon), std::nullopt);
  std::thread other([&] { store->Set("key", "value"); });
  EXPECT_EQ(WaitForKey(*store, "key", late), "value");
  other.join();
}

INSTANTIATE_TEST_SUITE_P(In, RendezvousTest, testing::Values("directory", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RendezvousAddress, NamesBackendAndVariablesIfNoneIsSet) {
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "SCALELAB_ATTEMPT_DIR"}) unsetenv(name);
  try {
    RendezvousOfRun("nccl");
    FAIL() << "no rendezvous is given";
  } catch (const TrainerError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("\"nccl\""), HasSubstr("SCALELAB_ATTEMPT_DIR"),
                                         HasSubstr("MASTER_ADDR")));
  }
}

}  // namespace
}  // namespace scalelab::trainer
