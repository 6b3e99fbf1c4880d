// A dashboard over the services of rpc_fixture.h, and a client that sends it bytes.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/web/web_server.h"
#include "tests/unit/server/metrics/http_get.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {

class WebServerTest : public RpcServerTest {
 protected:
  WebServerTest() { StartWeb({}); }

  void StartWeb(const HttpLimits& limits, const std::string& url = "", int connections = 64) {
    web_.reset();
    WebOptions options;
    options.address = "127.0.0.1:0";
    options.url = url;
    options.key = auth_.key();
    options.channel = rpc_->InProcessChannel();
    options.identities = &rpc_->identities();
    options.connections = connections;
    options.limits = limits;
    auto web = WebServer::Start(std::move(options));
    ASSERT_TRUE(web.ok()) << web.status();
    web_ = *std::move(web);
    port_ = web_->port();
  }

  struct Reply {
    int status = 0;
    std::string head, body;
    nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  };
  static Reply Parse(const std::string& text) {
    Reply reply;
    const size_t end = text.find("\r\n\r\n");
    reply.head = text.substr(0, end);
    if (end != std::string::npos) reply.body = text.substr(end + 4);
    if (reply.head.size() > 12) (void)absl::SimpleAtoi(reply.head.substr(9, 3), &reply.status);
    return reply;
  }
  Reply Send(const std::string& bytes) const { return Parse(AskHttp(port_, bytes)); }
  Reply Get(const std::string& path, const std::string& headers = "Host: localhost\r\n") const {
    return Send(absl::StrCat("GET ", path, " HTTP/1.1\r\n", headers, "Connection: close\r\n\r\n"));
  }
  // `headers` replace the cookie and the key of the login.
  Reply Post(const std::string& path, const std::string& body, const std::string& headers) const {
    return Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost:", port_,
                             "\r\nContent-Type: application/json\r\n", headers,
                             "Connection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  }
  Reply Api(const std::string& method, const std::string& body = "{}") const {
    return Post("/api/" + method, body, login_);
  }

  // Returns the code of a link for the account of this process.
  std::string NewCode(Scope scope = Scope::kSubmit) {
    Identity caller = *rpc_->identities().Bearer("right-token", "local", absl::Now());
    const auto link = rpc_->identities().web_logins().Create(caller, scope, absl::Now());
    EXPECT_TRUE(link.ok()) << link.status();
    return link->url.substr(link->url.find("#login=") + 7);
  }
  // Logs in. Keeps the cookie and the key for Api.
  Reply LogIn(const std::string& code) {
    Reply reply = Post("/login", nlohmann::json{{"code", code}}.dump(), "");
    if (reply.status != 200) return reply;
    const std::string cookie = HeaderIn(reply, "Set-Cookie");
    login_ = absl::StrCat("Cookie: ", cookie.substr(0, cookie.find(';')),
                          "\r\nX-Scalelab-Key: ", reply.json()["key"].get<std::string>(), "\r\n");
    return reply;
  }
  static std::string HeaderIn(const Reply& reply, const std::string& name) {
    for (const absl::string_view line : absl::StrSplit(reply.head, "\r\n")) {
      if (absl::StartsWithIgnoreCase(line, name + ": ")) return std::string(line.substr(name.size() + 2));
    }
    return "";
  }

  std::unique_ptr<WebServer> web_;
  int port_ = 0;
  std::string login_;
};

}  // namespace scalelab::server
