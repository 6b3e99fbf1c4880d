#include "client/session/session.h"

#include <utility>

namespace scalelab::client {

Session::Session(const GlobalOptions& options, const Io& io)
    : options_(options), io_(io), printer_(MakePrinter(options.output, io.out, io.out_terminal)) {}

absl::StatusOr<Connection*> Session::Server(absl::Duration limit) {
  if (connection_ == nullptr) {
    const auto server = ResolveServer(options_.server, options_.token_file);
    if (!server.ok()) return server.status();
    auto connection = Connection::Open(*server, options_.timeout.value_or(limit));
    if (!connection.ok()) return connection.status();
    connection_ = *std::move(connection);
  }
  return connection_.get();
}

void Session::Say(absl::string_view words) const {
  if (!options_.quiet) io_.err << words << std::endl;
}

bool Session::Confirms(absl::string_view question) const {
  io_.err << question << std::flush;
  std::string answer;
  return std::getline(io_.in, answer) && answer == "yes";
}

}  // namespace scalelab::client
