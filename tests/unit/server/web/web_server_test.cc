// Tests of the dashboard over real sockets: pages, logins, calls, streams, and malformed requests.
#include <random>

#include "server/rpc/web_metadata.h"
#include "tests/unit/server/web/web_fixture.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::Eq;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST_F(WebServerTest, ThePageMayLoadNothingFromElsewhere) {
  const Reply page = Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("<title>scalelab</title>"));
  EXPECT_THAT(HeaderIn(page, "Content-Security-Policy"),
              AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self'"),
                    HasSubstr("frame-ancestors 'none'"), Not(HasSubstr("unsafe")), Not(HasSubstr("http"))));
  EXPECT_EQ(HeaderIn(page, "X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(HeaderIn(page, "Referrer-Policy"), "no-referrer");
  EXPECT_EQ(HeaderIn(Get("/assets/app.mjs"), "Content-Type"), "text/javascript; charset=utf-8");
  EXPECT_THAT(Get("/assets/dygraph.min.js").body, HasSubstr("LICENSE.txt (MIT)"));
  for (const char* path :
       {"/assets/../config.cc", "/nothing", "/assets/", "/api/ListStudies", "//", "/%2e%2e/"})
    EXPECT_EQ(Get(path).status, 404) << path;
}

TEST_F(WebServerTest, AnUnchangedFileIsNotSentAgain) {
  const std::string tag = HeaderIn(Get("/assets/app.css"), "ETag");
  ASSERT_THAT(tag, Not(IsEmpty()));
  const Reply again = Get("/assets/app.css", absl::StrCat("Host: localhost\r\nIf-None-Match: ", tag, "\r\n"));
  EXPECT_EQ(again.status, 304);
  EXPECT_THAT(again.body, IsEmpty());
}

TEST_F(WebServerTest, NamesOfOtherSitesAreRefused) {
  EXPECT_EQ(Get("/", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(Get("/", "").status, 403);
  EXPECT_EQ(Get("/", "Host: localhost\r\nHost: evil.example\r\n").status, 403);
  LogIn(NewCode());
  EXPECT_EQ(Api("ListStudies").status, 200);
  for (const char* header : {"Origin: http://evil.example\r\n", "Origin: null\r\n",
                             "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n"})
    EXPECT_EQ(Post("/api/ListStudies", "{}", login_ + header).status, 403) << header;
  EXPECT_EQ(Post("/login", "{}", "Origin: http://evil.example\r\n").status, 403);
}

TEST_F(WebServerTest, ALinkLogsInOnce) {
  const std::string code = NewCode();
  const Reply first = LogIn(code);
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_THAT(HeaderIn(first, "Set-Cookie"), AllOf(HasSubstr("; HttpOnly"), HasSubstr("; SameSite=Strict"),
                                                   HasSubstr("Max-Age=43200"), Not(HasSubstr("Secure"))));
  EXPECT_EQ(Api("GetIdentity").json()["identity"]["scope"], "SUBMIT_SCOPE");
  EXPECT_EQ(Post("/login", nlohmann::json{{"code", code}}.dump(), "").status, 401);
}

TEST_F(WebServerTest, ALinkExpires) {
  WebLogins logins;
  logins.SetUrl("http://localhost/");
  const absl::Time now = absl::Now();
  const auto link = logins.Create({}, Scope::kRead, now);
  ASSERT_TRUE(link.ok());
  const std::string code = link->url.substr(link->url.rfind('=') + 1);
  EXPECT_TRUE(absl::IsUnauthenticated(logins.Redeem(code, now + WebLogins::kLifetime).status()));
  EXPECT_TRUE(logins.Redeem(code, now + WebLogins::kLifetime - absl::Seconds(1)).ok());
}

TEST_F(WebServerTest, AUserHasFewPendingLinks) {
  WebLogins logins;
  logins.SetUrl("http://localhost/");
  const absl::Time now = absl::Now();
  const auto first = logins.Create({}, Scope::kRead, now);
  for (size_t i = 0; i < WebLogins::kCodesPerUser; ++i)
    ASSERT_TRUE(logins.Create({}, Scope::kRead, now + absl::Seconds(1)).ok());
  EXPECT_FALSE(logins.Redeem(first->url.substr(first->url.rfind('=') + 1), now).ok());
}

TEST_F(WebServerTest, ACookieAloneIsNoLogin) {
  LogIn(NewCode());
  const std::string cookie = login_.substr(0, login_.find("\r\n") + 2);
  const std::string key = login_.substr(cookie.size());
  EXPECT_EQ(Post("/api/ListStudies", "{}", cookie).status, 401);
  EXPECT_EQ(Post("/api/ListStudies", "{}", key).status, 401);
  EXPECT_EQ(
      Post("/api/ListStudies", "{}", cookie + "X-Scalelab-Key: " + std::string(64, 'a') + "\r\n").status,
      401);
  EXPECT_EQ(Post("/api/ListStudies", "{}", cookie + key).status, 200);
}

TEST_F(WebServerTest, ALoginIsATokenThatCanBeRevoked) {
  LogIn(NewCode());
  const auto tokens = rpc_->identities().tokens().List("", absl::Now());
  ASSERT_EQ(tokens.size(), 1U);
  EXPECT_THAT(tokens[0].description, HasSubstr("dashboard"));
  ASSERT_TRUE(rpc_->identities().tokens().Revoke(tokens[0].id, absl::Now()).ok());
  EXPECT_EQ(Api("ListStudies").status, 401);
}

TEST_F(WebServerTest, LoggingOutEndsTheToken) {
  LogIn(NewCode());
  EXPECT_EQ(Post("/logout", "{}", login_).status, 200);
  EXPECT_EQ(Api("ListStudies").status, 401);
}

TEST_F(WebServerTest, ATokenLogsInWithItsOwnScopeAtMost) {
  const auto token = rpc_->identities().tokens().Create(rpc_->identities().users().service(), Scope::kRead,
                                                        absl::Hours(1), "", absl::Now());
  ASSERT_TRUE(token.ok());
  const Reply reply = Post("/login", nlohmann::json{{"token", token->secret}}.dump(), "");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto tokens = rpc_->identities().tokens().List("", absl::Now());
  EXPECT_EQ(tokens[0].scope, static_cast<int>(Scope::kRead));
  EXPECT_LE(tokens[0].expires, token->row.expires);
  for (const char* body : {R"({"token": "slt_guess"})", R"({"code": "guess"})"})
    EXPECT_EQ(Post("/login", body, "").status, 401);
  for (const char* body : {"", "{}", "[]", "x", R"({"code": 1})", R"({"code": "a", "token": "b"})"})
    EXPECT_EQ(Post("/login", body, "").status, 400) << body;
}

TEST_F(WebServerTest, TheRulesOfTheServicesApply) {
  Submit();
  LogIn(NewCode(Scope::kRead));
  EXPECT_EQ(Api("GetStudy", R"({"name": "studies/1"})").json()["study"]["display_name"],
            World::Spec({1}).study());
  const Reply refused = Api("CancelStudy", R"({"name": "studies/1"})");
  EXPECT_EQ(refused.status, 403);
  EXPECT_THAT(refused.json()["error"]["message"], HasSubstr("scope"));
  LogIn(NewCode());
  EXPECT_EQ(Api("CancelStudy", R"({"name": "studies/1"})").json()["study"]["state"], "CANCELLED");
}

TEST_F(WebServerTest, TheAuditLogHasTheAddressOfTheBrowser) {
  LogIn(NewCode());
  Submit();
  Api("CancelStudy", R"({"name": "studies/1"})");
  rpc_->identities().audit().Stop();  // writes the pending entries
  const auto rows = store_->ListAudit({});
  ASSERT_TRUE(rows.ok());
  std::vector<std::string> lines;
  for (const db::AuditRow& row : *rows)
    lines.push_back(absl::StrCat(row.action, " ", row.address, " ", row.source));
  EXPECT_THAT(lines, Contains(StartsWith("CancelStudy 127.0.0.1 token ")));
  EXPECT_THAT(lines, Contains(StartsWith("WebLogin 127.0.0.1 ")));
}

TEST_F(WebServerTest, OtherCallersCannotNameAnAddress) {
  const auto context = Context("slt_guess");
  context->AddMetadata(kWebAddress, "6.6.6.6");
  context->AddMetadata(kWebSecret, "guess");
  v1::ListStudiesResponse response;
  EXPECT_FALSE(v1::StudyService::NewStub(Tcp())->ListStudies(context.get(), {}, &response).ok());
  rpc_->identities().audit().Stop();  // writes the pending entries
  const auto rows = store_->ListAudit({});
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->size(), 1U);
  EXPECT_EQ((*rows)[0].address, "127.0.0.1");
}

TEST_F(WebServerTest, OnlyTheMethodsOfTheDashboardCanBeCalled) {
  LogIn(NewCode(Scope::kAdmin));
  for (const char* method : {"CreateToken", "ListTokens", "DeleteStudy", "Synchronize", "SetDrain", "Prune",
                             "Nothing", "", "getstudy"})
    EXPECT_EQ(Api(method).status, 404) << method;
}

TEST_F(WebServerTest, MistakesInRequestsAreNamed) {
  LogIn(NewCode());
  for (const char* body : {"x", "[]", R"({"nme": "studies/1"})", R"({"name": 1)", "{\"name\": \"\xff\"}"})
    EXPECT_EQ(Api("GetStudy", body).status, 400) << body;
  EXPECT_EQ(Api("GetStudy", R"({"name": "studies/77"})").status, 404);
  const Reply invalid = Api("CreateStudy", R"({"spec": {"study": "1"}})");
  EXPECT_EQ(invalid.status, 400);
  EXPECT_THAT(invalid.json()["error"]["violations"], Not(IsEmpty()));
  EXPECT_EQ(
      Send(absl::StrCat("POST /api/GetStudy HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n",
                        login_, "Connection: close\r\nContent-Length: 2\r\n\r\n{}"))
          .status,
      415);
  EXPECT_EQ(Send("PUT / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").status, 405);
}

TEST_F(WebServerTest, RunsComeWithoutTheirSpecificationsOrAsStates) {
  Submit();
  LogIn(NewCode());
  EXPECT_TRUE(Api("ListRuns", R"({"parent": "studies/1"})").json()["runs"][0].contains("spec"));
  const auto brief = Api("ListRuns", R"({"parent": "studies/1", "view": "BRIEF"})").json();
  EXPECT_FALSE(brief["runs"][0].contains("spec"));
  EXPECT_EQ(brief["runs"][0]["key"]["ranks"], 1);
  const auto states = Api("ListRuns", R"({"parent": "studies/1", "view": "STATES", "page_size": 1})").json();
  EXPECT_EQ(states["states"], "AQ==") << "one byte: QUEUED is 1";
  EXPECT_FALSE(states.contains("runs"));
  EXPECT_EQ(states["next_page_token"], "0");
  const auto end = Api("ListRuns", R"({"parent": "studies/1", "view": "STATES", "page_token": "0"})").json();
  EXPECT_TRUE(end.empty()) << end;
}

TEST_F(WebServerTest, APositionInBothOutputsIsAMistake) {
  LogIn(NewCode());
  EXPECT_THAT(Api("ReadRunLog", R"({"name": "runs/1", "offset": 5})").body, HasSubstr("INVALID_ARGUMENT"));
}

TEST_F(WebServerTest, AStudyFileBecomesASpecification) {
  LogIn(NewCode());
  const Reply spec =
      Api("ParseStudy", nlohmann::json{{"text", "study: web\nmatrix: {ranks: [1, 2]}\n"}}.dump());
  EXPECT_EQ(spec.json()["spec"]["study"], "web") << spec.body;
  const Reply wrong = Api("ParseStudy", nlohmann::json{{"text", "study: web\nmatix: 1\n"}}.dump());
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.json()["error"]["message"], HasSubstr("study:2:1"));
}

TEST_F(WebServerTest, DeeplyNestedValuesAreRefusedAtOnce) {
  LogIn(NewCode());
  const std::string deep = std::string(200'000, '[');
  const Reply study = Api("ParseStudy", nlohmann::json{{"text", "study: web\nfixed: " + deep}}.dump());
  EXPECT_EQ(study.status, 400);
  EXPECT_EQ(Api("ParseStudy", deep).status, 400);
  for (const char* before :
       {R"({"spec": {"fixed": {"ranks": )", R"({"study_file": '"', "spec": {"fixed": {"ranks": )"}) {
    const Reply request = Api("CreateStudy", before + deep);
    EXPECT_EQ(request.status, 400);
    EXPECT_THAT(request.json()["error"]["message"], HasSubstr("nested too deeply"));
  }
  const std::string text = "study: web  # \"'" + std::string(200, '{');
  const Reply brackets = Api("CreateStudy", nlohmann::json{{"study_file", text}}.dump());
  EXPECT_THAT(brackets.json()["error"]["message"], Not(HasSubstr("nested too deeply")));
}

TEST_F(WebServerTest, AStreamSendsEachStateAndItsEnd) {
  Submit();
  LogIn(NewCode());
  const int fd = ConnectTo(port_);
  const std::string body = R"({"name": "studies/1"})";
  const std::string request =
      absl::StrCat("POST /api/WatchStudy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                   login_, "Content-Length: ", body.size(), "\r\n\r\n", body);
  ASSERT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string text;
  const auto read_until = [&](const std::string& wanted) {
    char buffer[4096];
    for (ssize_t n; !absl::StrContains(text, wanted) && (n = read(fd, buffer, sizeof buffer)) > 0;)
      text.append(buffer, n);
    return absl::StrContains(text, wanted);
  };
  ASSERT_TRUE(read_until("\"state\":\"QUEUED\"")) << text;
  EXPECT_THAT(text, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_EQ(Api("CancelStudy", body).status, 200);
  EXPECT_TRUE(read_until("\"state\":\"CANCELLED\"")) << text;
  EXPECT_TRUE(read_until("event: end")) << text;
  close(fd);
}

TEST_F(WebServerTest, AStreamNeedsHttp11) {
  LogIn(NewCode());
  const Reply reply = Send(
      absl::StrCat("POST /api/WatchStudy HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                   login_, "Content-Length: 2\r\n\r\n{}"));
  EXPECT_EQ(reply.status, 501);
  EXPECT_THAT(reply.body, HasSubstr("proxy_http_version"));
}

TEST_F(WebServerTest, AnErrorOfAStreamIsAnEvent) {
  LogIn(NewCode());
  const Reply reply = Api("WatchStudy", R"({"name": "studies/9"})");
  EXPECT_THAT(reply.body, AllOf(HasSubstr("event: error"), HasSubstr("NOT_FOUND")));
}

TEST_F(WebServerTest, AStreamWithoutEventsSendsComments) {
  HttpLimits limits;
  limits.heartbeat = absl::Milliseconds(50);
  StartWeb(limits);
  Submit();
  LogIn(NewCode());
  const int fd = ConnectTo(port_);
  const std::string request =
      absl::StrCat("POST /api/WatchStudy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                   login_, "Content-Length: 20\r\n\r\n{\"name\":\"studies/1\"}");
  send(fd, request.data(), request.size(), 0);
  std::string text;
  char buffer[4096];
  for (ssize_t n; !absl::StrContains(text, "\r\n:\n\n\r\n") && (n = read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, n);
  EXPECT_THAT(text, HasSubstr("\r\n:\n\n\r\n"));
  close(fd);
}

TEST_F(WebServerTest, StoppingEndsOpenStreams) {
  Submit();
  LogIn(NewCode());
  const int fd = ConnectTo(port_);
  const std::string request =
      absl::StrCat("POST /api/WatchStudy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                   login_, "Content-Length: 20\r\n\r\n{\"name\":\"studies/1\"}");
  send(fd, request.data(), request.size(), 0);
  char buffer[4096];
  ASSERT_GT(read(fd, buffer, sizeof buffer), 0);
  web_.reset();
  while (read(fd, buffer, sizeof buffer) > 0) {
  }
  close(fd);
}

TEST_F(WebServerTest, TooMuchIsRefused) {
  EXPECT_EQ(Get("/", absl::StrCat("Host: localhost\r\nX-Long: ", std::string(20'000, 'x'), "\r\n")).status,
            431);
  const Reply body = Send(absl::StrCat(
      "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ",
      2 << 20, "\r\n\r\n"));
  EXPECT_EQ(body.status, 413);
}

TEST_F(WebServerTest, ASlowRequestIsCutOff) {
  HttpLimits limits;
  limits.transfer = absl::Milliseconds(200);
  StartWeb(limits);
  EXPECT_EQ(Send("GET / HTTP/1.1\r\nHost: loc").status, 0);
  EXPECT_EQ(Send("").status, 0);
}

TEST_F(WebServerTest, FurtherConnectionsAreClosed) {
  StartWeb({}, "", 2);
  const int first = ConnectTo(port_), second = ConnectTo(port_);
  // Both connections are served before the third one arrives.
  for (const int fd : {first, second}) {
    const std::string request = "GET /assets/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n";
    send(fd, request.data(), request.size(), 0);
    char byte = 0;
    ASSERT_EQ(read(fd, &byte, 1), 1);
  }
  EXPECT_EQ(Get("/").status, 0);
  close(first);
  close(second);
}

TEST_F(WebServerTest, AProxyNamesTheBrowser) {
  StartWeb({}, "https://lab.example.org/scalelab/");
  EXPECT_EQ(web_->url(), "https://lab.example.org/scalelab/");
  const std::string body = nlohmann::json{{"code", NewCode()}}.dump();
  const Reply reply =
      Send(absl::StrCat("POST /login HTTP/1.1\r\nHost: lab.example.org\r\nOrigin: "
                        "https://lab.example.org\r\nX-Forwarded-For: 6.6.6.6, 10.1.2.3\r\n"
                        "Content-Type: application/json\r\nConnection: close\r\nContent-Length: ",
                        body.size(), "\r\n\r\n", body));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(HeaderIn(reply, "Set-Cookie"), HasSubstr("; Secure"));
  EXPECT_THAT(rpc_->identities().tokens().List("", absl::Now())[0].description, HasSubstr("10.1.2.3"));
}

// Sends damaged requests. The server must answer each with a status or close the connection, and must
// serve further requests.
TEST_F(WebServerTest, DamagedRequestsDoNoHarm) {
  Submit();
  LogIn(NewCode());
  HttpLimits limits;
  limits.transfer = absl::Milliseconds(100);
  StartWeb(limits);
  const std::string body = R"({"name": "studies/1"})";
  const std::string seeds[] = {
      "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
      absl::StrCat("POST /api/GetStudy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
                   login_, "Connection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body),
      "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\nConnection: close\r\n\r\n8\r\n{\"code\":\r\n4\r\n\"a\"}\r\n0\r\n\r\n"};
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = seeds[i % 3];
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 2:
          bytes.insert(at, std::string(1 + random() % 40, static_cast<char>(random())));
          break;
        case 3:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 30));
          break;
        default:
          bytes.resize(at + 1);
      }
    }
    const Reply reply = Send(bytes);
    EXPECT_THAT(reply.status, AnyOf(0, 200, 304, 400, 401, 403, 404, 405, 413, 415, 431, 500)) << bytes;
  }
  EXPECT_EQ(Get("/").status, 200);
}

}  // namespace
}  // namespace scalelab::server
