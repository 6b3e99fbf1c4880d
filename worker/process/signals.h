// The signals that ask the worker to leave, SIGTERM and SIGINT, as something to watch.
#pragma once

namespace scalelab::worker {

// Blocks both in the calling thread and those it will start, ignores SIGPIPE, and returns a descriptor that
// is readable when one of the two has come. Once, before any thread exists.
int BlockSignals();
// Takes all that have come; whether there was one.
bool TakeSignal(int signals);

}  // namespace scalelab::worker
