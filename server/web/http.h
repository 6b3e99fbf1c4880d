// Requests and responses of HTTP.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "boost/beast/http/message.hpp"
#include "boost/beast/http/string_body.hpp"

namespace scalelab::server {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;
using HttpResponse = boost::beast::http::response<boost::beast::http::string_body>;

// Returns the value of a header; empty if there is none, or more than one.
std::string HeaderOf(const HttpRequest& request, absl::string_view name);
// Returns the path of the request without its query.
absl::string_view PathOf(const HttpRequest& request);

// The following responses have headers that keep the page of the dashboard from loading data from other hosts
// or sending data to them.
HttpResponse Respond(int status, absl::string_view type, std::string body);
HttpResponse RespondJson(std::string body);
HttpResponse RespondError(const absl::Status& error);
// Sets these headers.
void SetSafeHeaders(boost::beast::http::fields& headers);

}  // namespace scalelab::server
