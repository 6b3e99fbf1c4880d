#include "worker/trainer/comm/device_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

// A GPU whose transfers end when the test ends them.
class DeviceChannelTest : public testing::Test {
 protected:
  struct Kernel {
    float first;  // first element of the tensor
    bool over = false;
    int blocked = 0;  // number of streams that wait for the transfer
  };

  DeviceChannelTest() { watch_.Join({watch_.endpoint()}, "token"); }

  std::unique_ptr<DeviceChannel> Open(milliseconds timeout = seconds(60)) {
    return std::make_unique<DeviceChannel>(
        watchdog_, at::kCPU, /*send=*/true, 0, timeout,
        DeviceChannel::Hooks{.on_stream = [](const std::function<void()>& body) { body(); },
                             .connect = [this](const DeviceChannel::Check& check) { connect_(check); },
                             .enqueue = [this](const at::Tensor& tensor,
                                               const DeviceChannel::Check&) { return Enqueue(tensor); },
                             .finish = [this] { finished_ = true; }});
  }
  DeviceChannel::Transfer Enqueue(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    if (fails_) throw std::runtime_error("the cable is cut");
    auto kernel = std::make_shared<Kernel>(Kernel{tensor[0].item<float>()});
    kernels_.push_back(kernel);
    changed_.notify_all();
    return {.over =
                [this, kernel] {
                  std::lock_guard looking(mutex_);
                  return kernel->over;
                },
            .block =
                [this, kernel] {
                  std::lock_guard waiting(mutex_);
                  ++kernel->blocked;
                }};
  }
  // Returns whether `count` transfers are enqueued within 20 seconds.
  bool Enqueued(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(20), [&] { return kernels_.size() >= count; });
  }
  void End(size_t index) {
    std::lock_guard lock(mutex_);
    kernels_[index]->over = true;
  }
  static bool Ends(Work& work) {
    const auto limit = std::chrono::steady_clock::now() + seconds(20);
    while (!work.Done()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }
  static std::string Error(Work& work) {
    try {
      work.Wait();
      return "no error";
    } catch (const TrainerError& error) {
      return error.what();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Kernel>> kernels_;
  bool fails_ = false;
  std::atomic<bool> finished_ = false;
  std::function<void(const DeviceChannel::Check&)> connect_ = [](const DeviceChannel::Check&) {};
  PeerWatch watch_{0, 1, "127.0.0.1"};
  NcclWatchdog watchdog_{
      watch_, seconds(60), {.select_gpu = [] {}, .trouble = [] { return std::string(); }, .abort = [] {}}};
};

TEST_F(DeviceChannelTest, WaitBlocksTheStreamAndNotTheHost) {
  const auto channel = Open();
  const auto work = channel->Start(at::full({2}, 7.0f));
  work->Wait();
  EXPECT_FALSE(work->Done()) << "the transfer has not ended";
  ASSERT_EQ(kernels_.size(), 1u);
  EXPECT_EQ(kernels_[0]->first, 7);
  EXPECT_EQ(kernels_[0]->blocked, 1);
  End(0);
  EXPECT_TRUE(Ends(*work));
  work->Wait();
}

TEST_F(DeviceChannelTest, EnqueuesInOrderAlthoughEarlierTransfersHaveNotEnded) {
  const auto channel = Open();
  std::vector<std::unique_ptr<Work>> works;
  for (const float value : {1.0f, 2.0f, 3.0f}) works.push_back(channel->Start(at::full({1}, value)));
  ASSERT_TRUE(Enqueued(3));
  std::vector<float> order;
  for (const auto& kernel : kernels_) order.push_back(kernel->first);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  for (size_t i = 0; i < 3; ++i) {
    End(i);
    EXPECT_TRUE(Ends(*works[i]));
  }
}

TEST_F(DeviceChannelTest, TheFirstMessageWaitsForTheConnection) {
  std::promise<void> connected;
  connect_ = [&](const DeviceChannel::Check&) { connected.get_future().wait(); };
  const auto channel = Open();
  const auto work = channel->Start(at::ones({1}));
  auto wait = std::async(std::launch::async, [&] { work->Wait(); });
  EXPECT_EQ(wait.wait_for(milliseconds(30)), std::future_status::timeout);
  connected.set_value();
  ASSERT_EQ(wait.wait_for(seconds(20)), std::future_status::ready);
  End(0);
}

TEST_F(DeviceChannelTest, ATransferThatDoesNotEndInTimeFailsAll) {
  const auto channel = Open(milliseconds(50));
  const auto late = channel->Start(at::ones({1}));
  EXPECT_TRUE(Ends(*late));
  EXPECT_THAT(Error(*late), HasSubstr("send timed out after 0.05 s"));
  EXPECT_THROW(watchdog_.ThrowIfFailed(), TrainerError) << "collective operations fail too";
  EXPECT_THROW(channel->Start(at::ones({1}))->Wait(), TrainerError);
}

TEST_F(DeviceChannelTest, AFailureHasAMessage) {
  fails_ = true;
  const auto channel = Open();
  EXPECT_THAT(Error(*channel->Start(at::ones({1}))), HasSubstr("send failed (the cable is cut)"));
}

TEST_F(DeviceChannelTest, ClosesAfterTheTransfersThatAreEnqueued) {
  auto channel = Open();
  channel->Start(at::ones({1}))->Wait();
  auto close = std::async(std::launch::async, [&] { channel.reset(); });
  EXPECT_EQ(close.wait_for(milliseconds(30)), std::future_status::timeout);
  EXPECT_FALSE(finished_);
  End(0);
  ASSERT_EQ(close.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_TRUE(finished_);
}

TEST_F(DeviceChannelTest, MessagesThatWereNotEnqueuedFailWhenItCloses) {
  connect_ = [](const DeviceChannel::Check& check) {
    for (;; std::this_thread::sleep_for(milliseconds(1))) check();
  };
  auto channel = Open();
  const auto first = channel->Start(at::ones({1})), second = channel->Start(at::ones({1}));
  channel.reset();
  EXPECT_THAT(Error(*first), HasSubstr("the communicator was closed"));
  EXPECT_THAT(Error(*second), HasSubstr("the communicator was closed"));
  EXPECT_FALSE(finished_);
}

}  // namespace
}  // namespace scalelab::trainer
