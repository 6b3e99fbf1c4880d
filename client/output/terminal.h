// Properties of the terminal that output goes to. The only library file that queries the operating
// system about terminals.
#pragma once

namespace scalelab::client {

struct Terminal {
  bool tty = false;      // output is a terminal: progress may be redrawn in place
  bool color = false;    // ANSI colours
  bool unicode = false;  // the locale is UTF-8
  int width = 80;        // columns; output that is not a terminal is never truncated
  int height = 24;       // lines
};

// Checks whether file descriptor `fd` is a terminal, NO_COLOR (https://no-color.org), TERM, and the
// environment variables of the locale.
Terminal DetectTerminal(int fd, bool no_color);

}  // namespace scalelab::client
