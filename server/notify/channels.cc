#include "server/notify/channels.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/utf8.h"
#include "server/command/command.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kProgramTime = absl::Seconds(30);
constexpr long kConnectSeconds = 10, kPostSeconds = 30;
constexpr size_t kLongestAnswer = 64 << 10;
constexpr size_t kLongestError = 300;

std::string Shortened(std::string text) {
  text = ValidUtf8(text);
  text.resize(CutUtf8(text, kLongestError).size());
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

// Runs a program with `input`. Every failure may be temporary, except that the program does not exist.
absl::Status RunProgram(const std::vector<std::string>& argv, const std::string& input,
                        std::vector<std::string> environment) {
  for (const std::string& variable : CommandEnvironment()) {
    if (absl::StartsWith(variable, "PATH=") || absl::StartsWith(variable, "LANG="))
      environment.push_back(variable);
  }
  const auto result = RunCommand(argv, input, environment, kProgramTime);
  if (!result.ok()) return absl::UnavailableError(result.status().message());
  if (result->ok()) return absl::OkStatus();
  if (result->timed_out)
    return absl::UnavailableError(absl::StrCat(argv[0], " has not ended after 30 seconds"));
  return absl::UnavailableError(
      Shortened(absl::StrCat(argv[0], " has failed with status ", result->exit_code, ": ", result->err)));
}

bool IsPrivate(uint32_t ip) {  // in host order
  const auto in = [ip](uint32_t network, int bits) { return (ip ^ network) >> (32 - bits) == 0; };
  return in(0x00000000, 8) || in(0x0a000000, 8) || in(0x64400000, 10) || in(0x7f000000, 8) ||
         in(0xa9fe0000, 16) || in(0xac100000, 12) || in(0xc0000000, 24) || in(0xc0a80000, 16) ||
         in(0xc6120000, 15) || ip >= 0xe0000000;
}

bool IsPrivate(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return IsPrivate(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr));
  if (address.sa_family != AF_INET6) return true;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&ip) || IN6_IS_ADDR_V4COMPAT(&ip)) {
    uint32_t v4 = 0;
    std::memcpy(&v4, ip.s6_addr + 12, sizeof v4);
    return IsPrivate(ntohl(v4));
  }
  // Only global unicast addresses (2000::/3), without those that contain an IPv4 address (6to4, Teredo).
  const bool global = (ip.s6_addr[0] & 0xe0) == 0x20;
  const bool tunnel =
      ip.s6_addr[0] == 0x20 &&
      (ip.s6_addr[1] == 0x02 || (ip.s6_addr[1] == 0x01 && ip.s6_addr[2] == 0 && ip.s6_addr[3] == 0));
  return !global || tunnel;
}

struct Request {
  bool private_addresses = false;
  bool refused = false;  // an address of the host is private
  size_t received = 0;
  bool allowed = false;  // an address of the host is not refused
};

// Opens the socket of a connection whose address is allowed. The check is here, after the name was resolved, because a
// name may resolve to another address each time.
curl_socket_t OpenSocket(void* self, curlsocktype, curl_sockaddr* address) {
  auto& request = *static_cast<Request*>(self);
  if (!request.private_addresses && IsPrivate(address->addr)) {
    request.refused = true;
    return CURL_SOCKET_BAD;  // libcurl tries the next address of the host
  }
  request.allowed = true;
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// Discards the body of the response. Ends the request if the body is too long.
size_t Drop(char*, size_t size, size_t count, void* self) {
  auto& request = *static_cast<Request*>(self);
  request.received += size * count;
  return request.received > kLongestAnswer ? 0 : size * count;
}

absl::Status StatusOfAnswer(long code) {
  if (code >= 200 && code < 300) return absl::OkStatus();
  if (code == 408 || code == 425 || code == 429 || code >= 500)
    return absl::UnavailableError(absl::StrCat("the server answers with status ", code));
  if (code >= 300 && code < 400)
    return absl::FailedPreconditionError(
        absl::StrCat("the server redirects (status ", code, "), which is not followed"));
  return absl::FailedPreconditionError(absl::StrCat("the server refuses with status ", code));
}

}  // namespace

std::string MailText(const db::NoticeRow& notice, const std::string& from, absl::Time now) {
  const auto payload = nlohmann::json::parse(notice.payload, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const std::string value = payload.is_object() && payload.contains(key) && payload[key].is_string()
                                  ? payload[key].get<std::string>()
                                  : "";
    return absl::StrReplaceAll(value, {{"\r", " "}, {"\n", " "}});
  };
  const bool end = text("event") == "end";
  const std::string subject = absl::StrCat("[scalelab] ", text("study"), " (", text("display_name"), ") ",
                                           end ? text("state") : "has a failed run");
  std::string mail;
  if (!from.empty()) absl::StrAppend(&mail, "From: ", from, "\n");
  absl::StrAppend(
      &mail, "To: ", notice.target, "\nSubject: ", subject,
      "\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S +0000", now, absl::UTCTimeZone()),
      "\nMessage-ID: <", absl::StrReplaceAll(notice.key, {{"/", "."}}), "@scalelab>",
      "\nAuto-Submitted: auto-generated\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\n");
  absl::StrAppend(&mail, "Study ", text("study"), " (", text("display_name"), ") of ", text("owner"), ": ",
                  text("state"), " at ", text("time"), "\n");
  if (payload.is_object() && payload.contains("runs")) {
    for (const auto& [state, count] : payload["runs"].items())
      absl::StrAppend(&mail, "  ", state, ": ", count.dump(), "\n");
  }
  if (!end) {
    absl::StrAppend(&mail, "\n", text("run"), " failed (", text("cause"), "): ", text("message"),
                    "\n\nscalelab run show ", text("run"), "\n");
  } else {
    absl::StrAppend(&mail, "\nscalelab curve ", text("study"), "\n");
  }
  return mail;
}

absl::Status Channels::Deliver(const db::NoticeRow& notice) const {
  if (notice.channel == "mail") return Mail(notice);
  if (notice.channel == "webhook") return Post(notice);
  if (notice.channel == "command") return Run(notice);
  return absl::UnimplementedError(absl::StrCat("there is no channel ", notice.channel));
}

absl::Status Channels::Mail(const db::NoticeRow& notice) const {
  std::vector<std::string> argv = {settings_.sendmail, "-i"};
  if (!settings_.from.empty()) argv.insert(argv.end(), {"-f", settings_.from});
  argv.insert(argv.end(), {"--", notice.target});
  return RunProgram(argv, MailText(notice, settings_.from, absl::Now()), {});
}

absl::Status Channels::Run(const db::NoticeRow& notice) const {
  const auto command = settings_.commands.find(notice.target);
  if (command == settings_.commands.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the configuration has no command \"", notice.target, "\" in notify_commands"));
  }
  return RunProgram(command->second, notice.payload, {absl::StrCat("SCALELAB_NOTICE_ID=", notice.key)});
}

absl::Status Channels::Post(const db::NoticeRow& notice) const {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(ready == CURLE_OK ? curl_easy_init() : nullptr,
                                                    curl_easy_cleanup);
  if (curl == nullptr) return absl::UnavailableError("libcurl cannot be set up");
  curl_slist* list = curl_slist_append(nullptr, "Content-Type: application/json");
  list = curl_slist_append(list, absl::StrCat("Idempotency-Key: ", notice.key).c_str());
  list = curl_slist_append(list, "Expect:");
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, curl_slist_free_all);
  Request request;
  request.private_addresses = settings_.private_addresses;
  char error[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl.get(), CURLOPT_URL, notice.target.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");  // a proxy would resolve the name
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kPostSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "scalelabd");
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(notice.payload.size()));
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, notice.payload.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_OPENSOCKETFUNCTION, OpenSocket);
  curl_easy_setopt(curl.get(), CURLOPT_OPENSOCKETDATA, &request);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, Drop);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &request);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error);
  const CURLcode result = curl_easy_perform(curl.get());
  long code = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &code);
  if (request.refused && !request.allowed) {
    return absl::FailedPreconditionError(
        "the URL is on a private address; the configuration may allow it with notify: {private_addresses: "
        "true}");
  }
  // If the server has answered with success, it has the notification, even if the transfer failed afterwards.
  if (result != CURLE_OK && (code < 200 || code >= 300)) {
    const bool wrong = result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL;
    const std::string message = Shortened(error[0] != '\0' ? error : curl_easy_strerror(result));
    return wrong ? absl::FailedPreconditionError(message) : absl::UnavailableError(message);
  }
  return StatusOfAnswer(code);
}

}  // namespace scalelab::server
