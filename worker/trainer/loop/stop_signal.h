// Requests to end this process: SIGTERM, and SIGUSR1, which schedulers send before a time limit.
#pragma once

namespace scalelab::trainer {

// While an object exists, the two signals are recorded and do not end the process. At most one object exists
// at a time.
class StopSignal {
 public:
  StopSignal();
  // Ignores the two signals from now on: training has ended, and the process is about to exit with its
  // status.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Returns the number of the last signal; 0 if there was none.
  static int number();
  // Ends the process by the signal `number`, so that the exit status shows the parent process that training
  // did not finish.
  [[noreturn]] static void EndProcess(int number);
};

}  // namespace scalelab::trainer
