// Tests of calls from inside the process.
#include "server/web/bridge.h"

#include "server/rpc/web_metadata.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

class BridgeTest : public RpcServerTest {
 protected:
  const WebCaller caller_{"right-token", "127.0.0.9", "login"};
  absl::StatusCode Call(Bridge& bridge, const char* name, const std::string& json, const WebCaller& caller) {
    const WebMethod* method = FindWebMethod(name);
    auto done = std::make_shared<std::promise<absl::StatusCode>>();
    bridge.Call(*method, caller, *RequestOf(*method, json),
                [done](const absl::Status& status, const MessagePtr&) { done->set_value(status.code()); });
    return done->get_future().get();
  }
};

TEST_F(BridgeTest, ACallNeedsAToken) {
  Bridge bridge(rpc_->InProcessChannel(), auth_.SecretFor(kWebSecretName));
  EXPECT_EQ(Call(bridge, "ListStudies", "", caller_), absl::StatusCode::kOk);
  EXPECT_EQ(Call(bridge, "ListStudies", "", {"guess", "", ""}), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Call(bridge, "ListStudies", "", {"", "", ""}), absl::StatusCode::kUnauthenticated);
}

TEST_F(BridgeTest, HeavyCallsRunOneAtATime) {
  Submit();
  Bridge bridge(rpc_->InProcessChannel(), auth_.SecretFor(kWebSecretName));
  store_->HoldAfter(0);
  const WebMethod* method = FindWebMethod("GetCurve");
  std::atomic<int> done = 0;
  for (int i = 0; i < 5; ++i) {
    bridge.Call(*method, caller_, *RequestOf(*method, R"({"study": "studies/1"})"),
                [&done](const absl::Status& status, const MessagePtr&) { done += status.ok() ? 1 : 100; });
  }
  store_->WaitForHeldRead();
  // The other thread of the pool is free for a submission.
  store_->Release();
  for (int i = 0; i < 1000 && done < 5; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(done, 5);
}

TEST_F(BridgeTest, AStreamThatNobodyReadsEndsWithTheBridge) {
  Submit();
  auto bridge = std::make_unique<Bridge>(rpc_->InProcessChannel(), auth_.SecretFor(kWebSecretName));
  const WebMethod* method = FindWebMethod("WatchStudy");
  std::promise<void> first;
  std::atomic<bool> ended = false;
  const auto stream =
      bridge->Stream(*method, caller_, *RequestOf(*method, R"({"name": "studies/1"})"),
                     [&, got = false](const absl::Status&, const MessagePtr& message) mutable {
                       if (message == nullptr) ended = true;
                       if (!std::exchange(got, true)) first.set_value();
                     });
  first.get_future().get();
  bridge->Stop();
  EXPECT_TRUE(ended);
  EXPECT_EQ(Call(*bridge, "ListStudies", "", caller_), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace scalelab::server
