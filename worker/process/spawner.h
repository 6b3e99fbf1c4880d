// The spawner: the process that starts all other processes of a worker and makes sure that none
// outlives its job.
//
// The spawner is a subreaper: it adopts every descendant whose parent has died. So every process that a
// command started, in any process group or session, stays below the spawner in the process tree, and the tree
// shows whether a process is left.
//
// The states of a job:
//
//            kStart            commands exited, nothing left
//   (none) ---------> running ------------------------------> ended (kEnded)
//                        |  kStop, or a command failed,           ^
//                        |  or processes remain: SIGTERM          | nothing left
//                        v                                        |
//                     stopping -- grace over: SIGKILL --> killing-+
//
// If a command cannot be started, the job begins in the state killing, and kFailed reports its end.
//
// When the socket closes (the worker is gone, even after SIGKILL), the spawner sends SIGTERM to all
// processes, SIGKILL one second later, and exits. Until then it keeps the descriptors it inherited, among
// them the lock on the worker's lock file.
#pragma once

namespace scalelab::worker {

// Serves the socket until it closes, then ends everything and exits.
[[noreturn]] void RunSpawner(int socket);

}  // namespace scalelab::worker
