// Handling of Ctrl-C: the program prints a message about what continues without it, and exits with 130.
#pragma once

namespace scalelab::client {

// Installs handlers for SIGINT and SIGTERM. They write the message set by SetInterruptWords to standard error
// and exit with 130.
void InstallInterruptHandler();

// Sets the message. `words` must live as long as the program (use a literal); null means no message.
void SetInterruptWords(const char* words);

}  // namespace scalelab::client
