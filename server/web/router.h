// Selects the handler of a request.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/web/bridge.h"
#include "server/web/http.h"
#include "server/web/logins.h"
#include "server/web/origin.h"

namespace scalelab::server {

// Sends the response to a request. The methods may be called from any thread, even before Route returns.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // Sends the response. Must be called once, unless Stream was called.
  virtual void Answer(HttpResponse response) = 0;
  // Sends a message of gRPC as JSON, or the error.
  virtual void Answer(const absl::Status& status, MessagePtr message) = 0;
  // Sends the messages of a stream as server-sent events. `start` is called once, maybe later. `states`: the messages are
  // states, of which only the newest one matters.
  using Start = std::function<std::shared_ptr<BridgeStream>(Bridge::OnMessage)>;
  virtual void Stream(Start start, bool states) = 0;
};

// Thread-safe.
class Router {
 public:
  Router(SitePolicy sites, Logins& logins, Bridge& bridge)
      : sites_(std::move(sites)), logins_(logins), bridge_(bridge) {}

  // `peer`: the address of the other end of the connection.
  void Route(const HttpRequest& request, const std::string& peer, std::shared_ptr<Answerer> answerer);

 private:
  // Returns the reason to refuse the request that does not depend on its path, or OK.
  absl::Status Check(const HttpRequest& request) const;
  std::string AddressOf(const HttpRequest& request, const std::string& peer) const;
  void CallMethod(const std::string& name, const HttpRequest& request, const WebCaller& caller,
                  const std::shared_ptr<Answerer>& answerer);

  const SitePolicy sites_;
  Logins& logins_;
  Bridge& bridge_;
};

}  // namespace scalelab::server
