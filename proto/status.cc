#include "proto/status.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/utf8.h"

namespace scalelab {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

// gRPC rejects trailing metadata above 8 KiB, and then the whole response is lost. The details are sent as
// base64 (factor 4/3) in addition to the message, whose percent encoding may triple its size.
constexpr size_t kMaxWireMessage = 600;
constexpr size_t kMaxWireDetails = 4096;

// Returns `text` as valid UTF-8, which protobuf's parser requires, with at most `limit` bytes.
// Cuts between characters.
std::string Printable(absl::string_view text, size_t limit) {
  std::string out;
  out.reserve(std::min(text.size(), limit + 3));
  for (size_t i = 0; i < text.size();) {
    size_t length = Utf8Length(text, i);
    if (out.size() + std::max<size_t>(length, 1) > limit) return out + "...";
    if (length > 0) {
      out.append(text.data() + i, length);
    } else {
      out.push_back('?');
    }
    i += std::max<size_t>(length, 1);
  }
  return out;
}

// Returns the first violations that fit into `budget` bytes, and a last one with the number of the others.
google::rpc::BadRequest Fit(const google::rpc::BadRequest& all, size_t budget) {
  google::rpc::BadRequest some;
  size_t used = 0;
  for (const auto& violation : all.field_violations()) {
    size_t size = violation.ByteSizeLong() + 4;
    if (used + size + 64 > budget) break;
    used += size;
    *some.add_field_violations() = violation;
  }
  int left = all.field_violations_size() - some.field_violations_size();
  if (left > 0) some.add_field_violations()->set_description(absl::StrCat("and ", left, " more like these"));
  return some;
}

template <typename Message>
bool GetDetail(const absl::Status& status, const char* url, Message* message) {
  absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() && message->ParseFromString(std::string(*payload));
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("scalelab");
  absl::Status status(code, message);
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status InvalidFields(std::vector<FieldViolation> violations) {
  const FieldViolation& first = violations.front();
  std::string message =
      first.field.empty() ? first.description : absl::StrCat(first.field, ": ", first.description);
  if (violations.size() > 1) absl::StrAppend(&message, " (and ", violations.size() - 1, " more)");
  return WithViolations(MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FIELDS", message),
                        std::move(violations));
}

absl::Status WithViolations(absl::Status status, std::vector<FieldViolation> violations) {
  google::rpc::BadRequest request;
  for (FieldViolation& violation : violations) {
    auto* out = request.add_field_violations();
    out->set_field(Printable(violation.field, 400));
    out->set_description(Printable(violation.description, 1000));
  }
  status.SetPayload(kBadRequestUrl, absl::Cord(request.SerializeAsString()));
  return status;
}

std::vector<FieldViolation> ViolationsOf(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  google::rpc::BadRequest request;
  if (!GetDetail(status, kBadRequestUrl, &request)) return violations;
  for (const auto& violation : request.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return GetDetail(status, kErrorInfoUrl, &info) ? info.reason() : "";
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message = Printable(status.message(), kMaxWireMessage);
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(message);  // clients in other languages reject details without it
  std::vector<std::pair<std::string, std::string>> details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    details.emplace_back(std::string(url), std::string(payload));
  });
  // absl visits payloads in random order. The violations go last, because they can be shortened.
  std::sort(details.begin(), details.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first == kBadRequestUrl, a.first) < std::pair(b.first == kBadRequestUrl, b.first);
  });
  for (auto& [url, payload] : details) {
    size_t used = wire.ByteSizeLong();
    size_t budget = used < kMaxWireDetails ? kMaxWireDetails - used : 0;
    if (payload.size() + url.size() + 8 > budget) {
      google::rpc::BadRequest request;
      if (url != kBadRequestUrl || !request.ParseFromString(payload)) continue;
      payload = Fit(request, budget > url.size() ? budget - url.size() : 0).SerializeAsString();
    }
    auto* any = wire.add_details();
    any->set_type_url(url);
    any->set_value(payload);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, wire.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // Both enumerations use the same numbers; an unknown number of a newer or broken peer becomes UNKNOWN.
  int code = status.error_code();
  if (code < 1 || code > 16) code = static_cast<int>(absl::StatusCode::kUnknown);
  absl::Status result(static_cast<absl::StatusCode>(code), status.error_message());
  google::rpc::Status wire;
  if (!status.error_details().empty() && wire.ParseFromString(status.error_details())) {
    for (const auto& any : wire.details()) result.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return result;
}

}  // namespace scalelab
