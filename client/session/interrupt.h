// Handling of Ctrl-C: the program prints a message about what continues without it, and exits with 130.
#pragma once

#include <sys/types.h>

namespace scalelab::client {

// Installs handlers for SIGINT and SIGTERM. They write the message set by SetInterruptWords to standard error
// and exit with 130 (SIGINT) or 143 (SIGTERM).
void InstallInterruptHandler();

// Sets the message. `words` must live as long as the program (use a literal); null means no message.
void SetInterruptWords(const char* words);

// After this call, the handlers do not exit. They pass the signal on to the process `child`, which the caller
// awaits. 0 ends this. Call it with 0 before the process is reaped, because its id may then belong to another
// process.
void PassInterruptsTo(pid_t child);

}  // namespace scalelab::client
