// Ctrl-C: the program says what goes on without it, and exits with 130.
#pragma once

namespace scalelab::client {

// From now on SIGINT and SIGTERM write the words last set to standard error and end the program with 130.
void InstallInterruptHandler();

// `words` must live as long as the program (a literal); null for none.
void SetInterruptWords(const char* words);

}  // namespace scalelab::client
