// What the program knows of where its output goes. The only file that asks the operating system about
// terminals.
#pragma once

namespace scalelab::client {

struct Terminal {
  bool tty = false;      // a person watches: progress may be redrawn in place
  bool color = false;    // ANSI colours
  bool unicode = false;  // the locale is UTF-8
  int width = 80;        // columns; what does not go to a terminal is never cut to it
  int height = 24;       // lines
};

// Looks at file descriptor `fd`, at NO_COLOR (https://no-color.org), TERM and the locale's environment
// variables.
Terminal DetectTerminal(int fd, bool no_color);

}  // namespace scalelab::client
