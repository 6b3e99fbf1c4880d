#include "server/web/http.h"

#include <utility>

#include "server/web/methods.h"

namespace scalelab::server {

namespace http = boost::beast::http;

std::string HeaderOf(const HttpRequest& request, absl::string_view name) {
  const auto range = request.equal_range(boost::beast::string_view(name.data(), name.size()));
  if (range.first == range.second || std::next(range.first) != range.second) return "";
  return std::string(range.first->value().data(), range.first->value().size());
}

absl::string_view PathOf(const HttpRequest& request) {
  const absl::string_view target(request.target().data(), request.target().size());
  return target.substr(0, target.find('?'));
}

void SetSafeHeaders(http::fields& headers) {
  headers.set("Content-Security-Policy",
              "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
              "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  headers.set("X-Content-Type-Options", "nosniff");
  headers.set("X-Frame-Options", "DENY");
  headers.set("Referrer-Policy", "no-referrer");
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Resource-Policy", "same-origin");
  headers.set(http::field::cache_control, "no-store");
}

HttpResponse Respond(int status, absl::string_view type, std::string body) {
  HttpResponse response(static_cast<http::status>(status), 11);
  SetSafeHeaders(response);
  response.set(http::field::content_type, boost::beast::string_view(type.data(), type.size()));
  response.body() = std::move(body);
  return response;
}

HttpResponse RespondJson(std::string body) { return Respond(200, "application/json", std::move(body)); }

HttpResponse RespondError(const absl::Status& error) {
  return Respond(HttpStatusOf(error.code()), "application/json", ErrorJson(error));
}

}  // namespace scalelab::server
