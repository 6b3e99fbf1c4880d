// Raw HTTP/2 connections over TLS, without a token, with which tests imitate misbehaving clients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace scalelab::e2e {

// Returns a TCP port of 127.0.0.1 that is free now.
int FreeTcpPort();
// Connects to a port of this machine. Returns -1 if that fails.
int ConnectTcp(int port);

class RawConnection {
 public:
  // Connects, makes the handshake without a check of the certificate, and sends the preface and empty settings.
  explicit RawConnection(int port);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  static constexpr char kHeaders = 1, kReset = 3, kSettings = 4, kContinuation = 9;
  static std::string Frame(char type, char flags, uint32_t stream, const std::string& payload);
  static std::string Header(const std::string& name, const std::string& value);
  // The headers of a call without a token.
  static std::string CallHeaders(const std::string& method = "/scalelab.v1.StudyService/ListStudies");

  // Returns false when the server has closed the connection, or has not read for a second. Reads and ignores what
  // the server sends.
  bool Send(const std::string& bytes);
  // Reads from the server until the received bytes contain `text`, the server closes the connection, or the
  // time is over. Returns the received bytes.
  std::string ReceiveUntil(const std::string& text, double seconds);

 private:
  struct Tls;
  const int fd_;
  std::unique_ptr<Tls> tls_;  // null if there is no connection
};

// Sends `first`, then `next()` again and again, on connection after connection for some seconds. Calls `sent`
// after each `next()`.
void Flood(int port, double seconds, const std::string& first, const std::function<std::string()>& next,
           const std::function<void()>& sent);

// The endless headers of one call, in CONTINUATION frames.
void FloodWithHeaders(int port, double seconds, const std::function<void()>& sent);
// Calls that are started and neither ended nor reset.
void FloodWithCalls(int port, double seconds, const std::function<void()>& sent);
// Calls that are reset at once.
void FloodWithResets(int port, double seconds, const std::function<void()>& sent);

}  // namespace scalelab::e2e
