// The context of a command: global options, outputs and the connection to the server.
#pragma once

#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/output/printer.h"
#include "client/output/terminal.h"
#include "client/session/connection.h"
#include "client/session/exit_code.h"

namespace scalelab::client {

// Default time limits of a call. The first call that lists frameworks waits until scalelabd has started each
// of them, which takes minutes on a busy machine.
inline constexpr absl::Duration kCallLimit = absl::Seconds(60), kFrameworksLimit = absl::Minutes(5);

struct GlobalOptions {
  OutputFormat output = OutputFormat::kTable;
  std::string server;      // empty: see ResolveServer
  std::string token_file;  // empty: see ResolveServer
  std::optional<absl::Duration>
      timeout;  // of each call (default: see Session::Server); of "wait" and "watch" as a whole (none)
  bool quiet = false;
  bool no_color = false;
};

// The outputs. Data goes to `out`, messages to `err`.
struct Io {
  std::ostream& out;
  std::ostream& err;
  Terminal out_terminal;
  Terminal err_terminal;
  std::function<absl::Time()> now = absl::Now;  // reference for ages and remaining times
  std::istream& in = std::cin;                  // answers to questions
  bool in_tty = true;                           // `in` is a terminal
};

class Session {
 public:
  // `options` and `io` must outlive the session.
  Session(const GlobalOptions& options, const Io& io);

  const GlobalOptions& options() const { return options_; }
  const Io& io() const { return io_; }
  absl::Time now() const { return io_.now(); }
  // Connects at the first call, with `limit` as the time limit of each call unless --timeout names another one. Errors are
  // those of Connection::Open.
  absl::StatusOr<Connection*> Server(absl::Duration limit = kCallLimit);
  absl::Status Print(const Answer& answer) { return printer_->Print(answer); }
  // Prints a message for the user on `err`; nothing with --quiet.
  void Say(absl::string_view words) const;
  // Asks `question` on `err`. Returns whether the user types "yes".
  bool Confirms(absl::string_view question) const;
  bool tables() const {
    return options_.output == OutputFormat::kTable || options_.output == OutputFormat::kWide;
  }

 private:
  const GlobalOptions& options_;
  const Io& io_;
  std::unique_ptr<Printer> printer_;
  std::unique_ptr<Connection> connection_;
};

// The action of a subcommand.
using Action = std::function<absl::StatusOr<ExitCode>(Session&)>;

}  // namespace scalelab::client
