#include "client/output/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace scalelab::client {
namespace {

absl::string_view Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? absl::string_view() : absl::string_view(value);
}

// The first variable that is set decides, as in setlocale(3).
bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const absl::string_view value = Env(name);
    if (!value.empty()) {
      const std::string lower = absl::AsciiStrToLower(value);
      return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
    }
  }
  return false;
}

}  // namespace

Terminal DetectTerminal(int fd, bool no_color) {
  Terminal terminal;
  terminal.unicode = LocaleIsUtf8();
  const absl::string_view term = Env("TERM");
  const bool able = !term.empty() && term != "dumb";
  terminal.tty = isatty(fd) == 1 && able;
  terminal.color = terminal.tty && !no_color && Env("NO_COLOR").empty();
  winsize size{};
  if (terminal.tty && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    terminal.width = size.ws_col;
    terminal.height = size.ws_row;
  }
  return terminal;
}

}  // namespace scalelab::client
