#include "worker/trainer/comm/peers/network.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr char kSlash16[] = " 4294901760", kSlash24[] = " 4294967040";

std::string At(const std::string& name, const std::string& address, const char* mask) {
  return name + " " + address + mask;
}

TEST(ChooseAddress, IsLoopbackWhereAllRanksShareAMachine) {
  const std::string host = At("a", "10.0.0.1", kSlash24);
  EXPECT_EQ(ChooseAddress({host, host, host}, 1), "127.0.0.1");
}

// Other programs may create and remove virtual networks during the test.
TEST(ChooseAddress, IsLoopbackOnOneMachineWhoseInterfacesChange) {
  const std::string before = "a@boot/7", after = before + At("", "10.0.0.1", kSlash24);
  EXPECT_EQ(ChooseAddress({before, after}, 0), "127.0.0.1");
  EXPECT_EQ(ChooseAddress({before, after}, 1), "127.0.0.1");
  EXPECT_NE(ChooseAddress({after, "a@boot/8" + At("", "10.0.0.2", kSlash24)}, 0), "127.0.0.1");
}

TEST(ChooseAddress, IsInANetworkThatIsSharedWithAnotherMachine) {
  const std::string a = At("a", "192.168.7.1", kSlash24) + At("", "10.1.0.1", kSlash16);
  const std::string b = At("b", "192.168.8.1", kSlash24) + At("", "10.1.9.2", kSlash16);
  EXPECT_EQ(ChooseAddress({a, a, b}, 0), "10.1.0.1");
  EXPECT_EQ(ChooseAddress({a, a, b}, 2), "10.1.9.2");
}

TEST(ChooseAddress, IsNotABridgeWithTheSameAddressOnEveryMachine) {
  const std::string bridge = At("", "172.17.0.1", kSlash16);
  const std::string a = "a" + bridge + At("", "10.0.0.1", kSlash24);
  const std::string b = "b" + bridge + At("", "10.0.0.2", kSlash24);
  EXPECT_EQ(ChooseAddress({a, b}, 0), "10.0.0.1");
  EXPECT_EQ(ChooseAddress({a, b}, 1), "10.0.0.2");
}

TEST(ChooseAddress, NamesTheVariableToSetIfNoNetworkFits) {
  try {
    ChooseAddress({"a", At("b", "10.0.0.2", kSlash24)}, 0);
    FAIL() << "machine a has no address";
  } catch (const TrainerError& e) {
    EXPECT_NE(std::string(e.what()).find("GLOO_SOCKET_IFNAME"), std::string::npos) << e.what();
  }
}

TEST(DescribeHost, RefusesAMissingInterface) {
  setenv("GLOO_SOCKET_IFNAME", "nowhere0", 1);
  EXPECT_THROW(DescribeHost(), TrainerError);
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  EXPECT_EQ(DescribeHost().rfind(HostName() + "@", 0), 0u);
  EXPECT_NE(DescribeHost().find(" 127.0.0.1 4278190080"), std::string::npos);
  EXPECT_EQ(ChooseAddress({DescribeHost()}, 0), "127.0.0.1");
  unsetenv("GLOO_SOCKET_IFNAME");
}

}  // namespace
}  // namespace scalelab::trainer
