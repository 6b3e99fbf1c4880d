// The process that starts all others for a worker, and sees to it that none outlives what it belongs to.
//
// It is a subreaper: a process whose parent has died becomes its child. So every process that a command
// started, in whatever process group or session, is below it in the tree, and "no process is left" can be
// known rather than hoped.
//
//            kStart            commands exited, nothing left
//   (none) ---------> running ------------------------------> ended (kEnded)
//                        |  kStop, or one command failed,         ^
//                        |  or something was left: TERM           | nothing left
//                        v                                        |
//                     stopping --- grace over: KILL ---> killing -+
//
// When the socket closes (the worker is gone, even by kill -9) everything gets TERM, after a second KILL, and
// the spawner exits. Until then it holds what it inherited: the lock on the worker's lock file.
#pragma once

namespace scalelab::worker {

// Serves the socket until it closes, then ends everything and exits.
[[noreturn]] void RunSpawner(int socket);

}  // namespace scalelab::worker
