#include "server/web/router.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/web/assets.h"
#include "server/web/study_text.h"

namespace scalelab::server {
namespace {

namespace http = boost::beast::http;

HttpResponse ServeAsset(const Asset& asset, const HttpRequest& request) {
  const bool known = HeaderOf(request, "If-None-Match") == asset.tag;
  HttpResponse response = Respond(known ? 304 : 200, asset.type, known ? "" : std::string(asset.content));
  // With this header, a browser always checks whether the file has changed, so it uses the files of a new
  // version of the server at once.
  response.set(http::field::cache_control, "no-cache");
  response.set(http::field::etag, std::string(asset.tag));
  return response;
}

HttpResponse NoSuchPath(absl::string_view path) {
  return RespondError(absl::NotFoundError(absl::StrCat("there is no ", path.substr(0, 200))));
}

}  // namespace

absl::Status Router::Check(const HttpRequest& request) const {
  const std::string host = HeaderOf(request, "Host");
  if (!sites_.AllowsHost(host)) {
    return absl::PermissionDeniedError(
        "this name of the dashboard is not known to the server; use localhost or 127.0.0.1, or set web_url "
        "in the "
        "configuration to the address that browsers use");
  }
  const std::string site = HeaderOf(request, "Sec-Fetch-Site");
  const bool page = request.method() != http::verb::post;
  if (!sites_.AllowsOrigin(HeaderOf(request, "Origin"), host) ||
      (!page && !site.empty() && site != "same-origin" && site != "none")) {
    return absl::PermissionDeniedError("requests of other sites are refused");
  }
  return absl::OkStatus();
}

std::string Router::AddressOf(const HttpRequest& request, const std::string& peer) const {
  if (!sites_.proxied()) return peer;
  // Only the last address was added by the proxy itself.
  const std::string forwarded = HeaderOf(request, "X-Forwarded-For");
  const std::vector<std::string> addresses = absl::StrSplit(forwarded, ',');
  const std::string last(absl::StripAsciiWhitespace(addresses.back()));
  const bool plain = std::all_of(last.begin(), last.end(), [](unsigned char c) {
    return absl::ascii_isxdigit(c) || c == '.' || c == ':';
  });
  return last.empty() || last.size() > 64 || !plain ? peer : last;
}

void Router::Route(const HttpRequest& request, const std::string& peer, std::shared_ptr<Answerer> answerer) {
  if (const absl::Status refusal = Check(request); !refusal.ok())
    return answerer->Answer(RespondError(refusal));
  const absl::string_view path = PathOf(request);
  if (request.method() == http::verb::get || request.method() == http::verb::head) {
    const Asset* asset = FindAsset(path);
    return answerer->Answer(asset == nullptr ? NoSuchPath(path) : ServeAsset(*asset, request));
  }
  if (request.method() != http::verb::post) {
    HttpResponse refused = RespondError(absl::UnimplementedError("use GET, HEAD or POST"));
    refused.result(http::status::method_not_allowed);
    refused.set(http::field::allow, "GET, HEAD, POST");
    return answerer->Answer(std::move(refused));
  }
  if (HeaderOf(request, "Content-Type") != "application/json") {
    HttpResponse refused =
        RespondError(absl::InvalidArgumentError("the content type must be application/json"));
    refused.result(http::status::unsupported_media_type);
    return answerer->Answer(std::move(refused));
  }
  const std::string address = AddressOf(request, peer);
  if (path == "/login") {
    return logins_.LogIn(request, address,
                         [answerer](HttpResponse response) { answerer->Answer(std::move(response)); });
  }
  const absl::StatusOr<WebCaller> caller = logins_.CallerOf(request, address);
  if (!caller.ok()) return answerer->Answer(RespondError(caller.status()));
  if (path == "/logout") {
    return logins_.LogOut(*caller,
                          [answerer](HttpResponse response) { answerer->Answer(std::move(response)); });
  }
  absl::string_view name = path;
  if (!absl::ConsumePrefix(&name, "/api/")) return answerer->Answer(NoSuchPath(path));
  CallMethod(std::string(name), request, *caller, answerer);
}

void Router::CallMethod(const std::string& name, const HttpRequest& request, const WebCaller& caller,
                        const std::shared_ptr<Answerer>& answerer) {
  if (name == "ParseStudy") {
    const absl::StatusOr<std::string> spec = ParseStudyText(request.body());
    return answerer->Answer(spec.ok() ? RespondJson(*spec) : RespondError(spec.status()));
  }
  const WebMethod* method = FindWebMethod(name);
  if (method == nullptr) return answerer->Answer(NoSuchPath(absl::StrCat("method ", name)));
  absl::StatusOr<MessagePtr> message = RequestOf(*method, request.body());
  if (!message.ok()) return answerer->Answer(RespondError(message.status()));
  if (method->descriptor->server_streaming()) {
    return answerer->Stream(
        [this, method, caller, request = *message](Bridge::OnMessage on_message) {
          return bridge_.Stream(*method, caller, request, std::move(on_message));
        },
        method->states);
  }
  bridge_.Call(*method, caller, *std::move(message),
               [answerer](const absl::Status& status, MessagePtr response) {
                 answerer->Answer(status, std::move(response));
               });
}

}  // namespace scalelab::server
