#include "worker/trainer/loop/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace scalelab::trainer {
namespace {

TEST(StopSignalDeathTest, ASignalIsRecordedAndEndsTheProcessOnlyOnRequest) {
  EXPECT_EXIT(
      {
        const StopSignal recorder;
        raise(SIGUSR1);
        StopSignal::EndProcess(StopSignal::number());
      },
      testing::KilledBySignal(SIGUSR1), "");
}

// A run that has finished has removed its checkpoints, so it must not look like one that was interrupted.
TEST(StopSignalDeathTest, ASignalAfterTheEndOfTrainingChangesNothing) {
  EXPECT_EXIT(
      {
        { const StopSignal recorder; }
        raise(SIGUSR1);
        raise(SIGTERM);
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace scalelab::trainer
