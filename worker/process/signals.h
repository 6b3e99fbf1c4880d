// Delivers SIGTERM, SIGINT and SIGUSR1, which request the worker's exit, through a file descriptor. On Slurm the signal also
// reaches the srun of the ranks: it kills them at SIGTERM, and passes SIGUSR1 on to them.
#pragma once

namespace scalelab::worker {

// Blocks these signals in the calling thread and in threads that it starts later, ignores SIGPIPE and
// SIGXFSZ, and returns
// a descriptor that is readable when a signal is pending. Call it once, before any thread exists.
int BlockSignals();
// Takes all pending signals; returns whether there was one.
bool TakeSignal(int signals);

}  // namespace scalelab::worker
