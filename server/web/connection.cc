#include "server/web/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http/empty_body.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/read.hpp"
#include "boost/beast/http/serializer.hpp"
#include "boost/beast/http/write.hpp"

namespace scalelab::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

std::chrono::nanoseconds Chrono(absl::Duration duration) { return absl::ToChronoNanoseconds(duration); }

// Returns the text of a server-sent event. `data` is JSON without line breaks.
std::string EventText(absl::string_view type, absl::string_view json) {
  return absl::StrCat(type.empty() ? "" : absl::StrCat("event: ", type, "\n"), "data: ", json, "\n\n");
}

std::string ChunkOf(absl::string_view text) {
  return absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n");
}

// Everything runs on the executor of the stream, which is a strand. The pending operations own the connection.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, Router& router, const HttpLimits& limits,
             std::shared_ptr<void> release)
      : release_(std::move(release)),
        stream_(std::move(socket)),
        timer_(stream_.get_executor()),
        router_(router),
        limits_(limits) {
    error_code ignored;
    const auto peer = stream_.socket().remote_endpoint(ignored);
    peer_ = ignored ? "unknown" : peer.address().to_string();
  }
  ~Connection() {
    if (events_ != nullptr) events_->Cancel();
  }

  void Start() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->ReadRequest(); });
  }

 private:
  // Passes results that arrive on other threads to the connection. The last copy of this object may
  // outlive the connection.
  class Relay final : public Answerer {
   public:
    explicit Relay(const std::shared_ptr<Connection>& connection)
        : executor_(connection->stream_.get_executor()), connection_(connection) {}

    void Answer(HttpResponse response) override {
      Post([response = std::move(response)](Connection& c) mutable { c.Write(std::move(response)); });
    }
    void Answer(const absl::Status& status, MessagePtr message) override {
      Post([status, message = std::move(message)](Connection& c) {
        c.Write(status.ok() ? RespondJson(JsonOf(*message)) : RespondError(status));
      });
    }
    void Stream(Start start, bool states) override {
      Post([start = std::move(start), states](Connection& c) { c.BeginEvents(start, states); });
    }

   private:
    template <typename Work>
    void Post(Work work) {
      // There is no other pending operation, so the connection ends.
      asio::post(executor_,
                 [connection = connection_, work = std::move(work)]() mutable { work(*connection); });
    }
    const beast::tcp_stream::executor_type executor_;
    const std::shared_ptr<Connection> connection_;
  };

  void ReadRequest() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(limits_.header_bytes));
    parser_->body_limit(limits_.body_bytes);
    stream_.expires_after(Chrono(limits_.transfer));
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, size_t) { self->OnRequest(error); });
  }

  void OnRequest(error_code error) {
    stream_.expires_never();
    if (error) {
      if (error.category() != http::make_error_code(http::error::end_of_stream).category() ||
          error == http::error::end_of_stream || error == http::error::partial_message)
        return Close();
      keep_alive_ = false;
      HttpResponse refused = RespondError(absl::InvalidArgumentError(
          absl::StrCat("this is no request that the server accepts: ", error.message())));
      if (error == http::error::body_limit) refused.result(http::status::payload_too_large);
      if (error == http::error::header_limit) refused.result(http::status::request_header_fields_too_large);
      return Write(std::move(refused));
    }
    request_ = parser_->release();
    parser_.reset();
    keep_alive_ = request_.keep_alive();
    router_.Route(request_, peer_, std::make_shared<Relay>(shared_from_this()));
  }

  void Write(HttpResponse response) {
    const bool head = request_.method() == http::verb::head;
    const bool whole = response.result() != http::status::not_modified;
    response.version(request_.version() == 10 ? 10 : 11);
    response.keep_alive(keep_alive_);
    if (whole) response.content_length(response.body().size());
    if (head) response.body().clear();
    response_.emplace(std::move(response));
    serializer_.emplace(*response_);
    stream_.expires_after(Chrono(limits_.transfer));
    const auto done = [self = shared_from_this()](error_code error, size_t) {
      self->serializer_.reset();
      self->response_.reset();
      if (error || !self->keep_alive_) return self->Close();
      self->ReadRequest();
    };
    if (head) return http::async_write_header(stream_, *serializer_, done);
    http::async_write(stream_, *serializer_, done);
  }

  void BeginEvents(const Answerer::Start& start, bool states) {
    if (request_.version() < 11) {
      return Write(RespondError(absl::UnimplementedError(
          "streams need HTTP/1.1; a reverse proxy such as nginx needs proxy_http_version 1.1")));
    }
    latest_only_ = states;
    http::response<http::empty_body> header(http::status::ok, 11);
    SetSafeHeaders(header);
    header.set(http::field::content_type, "text/event-stream");
    // Tells reverse proxies not to buffer the events.
    header.set("X-Accel-Buffering", "no");
    header.chunked(true);
    header.keep_alive(false);
    Queue(HeaderText(header));
    // The pointer is weak, because the stream outlives a connection that the browser has closed.
    events_ = start([weak = weak_from_this(), executor = stream_.get_executor()](const absl::Status& status,
                                                                                 MessagePtr message) {
      asio::post(executor, [weak, status, message = std::move(message)] {
        if (const auto connection = weak.lock()) connection->OnEvent(status, message);
      });
    });
    Heartbeat();
    WatchForEnd();
  }

  static std::string HeaderText(http::response<http::empty_body>& header) {
    std::string text = "HTTP/1.1 200 OK\r\n";
    for (const auto& field : header) {
      absl::StrAppend(&text, std::string(field.name_string()), ": ", std::string(field.value()), "\r\n");
    }
    return text + "\r\n";
  }

  // A browser sends nothing during a stream. If bytes arrive or the connection ends, end the stream.
  void WatchForEnd() {
    stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                                [self = shared_from_this()](error_code failed) {
                                  if (!failed && !self->closed_ && !self->Readable())
                                    return self->WatchForEnd();
                                  self->Close();
                                });
  }

  // The wait may end although no new bytes have arrived, because the last bytes of the request have made
  // the socket ready.
  bool Readable() {
    char byte;
    const ssize_t read = recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return read >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

  void OnEvent(const absl::Status& status, const MessagePtr& message) {
    if (closed_) return;
    if (message != nullptr) {
      last_event_ = std::chrono::steady_clock::now();
      paced_ = true;
      return Queue(ChunkOf(EventText("", JsonOf(*message))));
    }
    ended_ = true;
    Queue(ChunkOf(status.ok() ? EventText("end", "{}") : EventText("error", ErrorJson(status))) +
          "0\r\n\r\n");
  }

  void Queue(std::string text) {
    if (closed_) return;
    out_.push_back(std::move(text));
    if (out_.size() == 1) WriteNext();
  }

  void WriteNext() {
    stream_.expires_after(Chrono(limits_.transfer));
    asio::async_write(stream_, asio::buffer(out_.front()),
                      [self = shared_from_this()](error_code error, size_t) {
                        self->stream_.expires_never();
                        if (error || self->closed_) return self->Close();
                        self->out_.pop_front();
                        if (!self->out_.empty()) return self->WriteNext();
                        if (self->ended_) return self->Close();
                        if (self->paced_) self->AskForNext();
                      });
  }

  // Requests the next event after a minimum time since the last one. States in between are skipped, because
  // the service sends only the newest state.
  void AskForNext() {
    paced_ = false;
    const auto wait = last_event_ + Chrono(limits_.pace) - std::chrono::steady_clock::now();
    // For ReadRunLog and ReadPoints, request the next piece at once: no piece is skipped.
    if (!latest_only_ || wait.count() <= 0) return events_->Next();
    auto timer = std::make_shared<asio::steady_timer>(stream_.get_executor(), wait);
    timer->async_wait([self = shared_from_this(), timer](error_code) {
      if (!self->closed_) self->events_->Next();
    });
  }

  void Heartbeat() {
    timer_.expires_after(Chrono(limits_.heartbeat));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error || self->closed_) return;
      if (self->out_.empty()) self->Queue(ChunkOf(":\n\n"));
      self->Heartbeat();
    });
  }

  void Close() {
    if (closed_) return;
    closed_ = true;
    error_code ignored;
    timer_.cancel();
    if (events_ != nullptr) events_->Cancel();
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    stream_.close();
  }

  const std::shared_ptr<void> release_;
  beast::tcp_stream stream_;
  asio::steady_timer timer_;
  Router& router_;
  const HttpLimits limits_;
  std::string peer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  bool keep_alive_ = false;
  std::optional<HttpResponse> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  // Of a stream of events:
  std::shared_ptr<BridgeStream> events_;
  std::deque<std::string> out_;  // the first one is being written
  bool latest_only_ = false;
  bool paced_ = false;  // an event was queued, and the next one has not been requested
  bool ended_ = false;
  bool closed_ = false;
  std::chrono::steady_clock::time_point last_event_;
};

}  // namespace

void ServeConnection(asio::ip::tcp::socket socket, Router& router, const HttpLimits& limits,
                     std::shared_ptr<void> release) {
  std::make_shared<Connection>(std::move(socket), router, limits, std::move(release))->Start();
}

}  // namespace scalelab::server
