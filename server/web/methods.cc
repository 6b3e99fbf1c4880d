#include "server/web/methods.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "proto/json_depth.h"
#include "proto/status.h"
#include "scalelab/v1/analysis.pb.h"
#include "scalelab/v1/auth.pb.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::server {
namespace {

using google::protobuf::FileDescriptor;

struct Allowed {
  const FileDescriptor* file;
  std::vector<const char*> names;
  bool heavy = false;
};

std::map<std::string, WebMethod, std::less<>> MakeMethods() {
  const FileDescriptor* study = v1::Study::descriptor()->file();
  const FileDescriptor* run = v1::Run::descriptor()->file();
  const FileDescriptor* result = v1::CurvePoint::descriptor()->file();
  const Allowed allowed[] = {
      {study,
       {"CreateStudy", "PlanStudy", "GetStudy", "ListStudies", "WatchStudy", "CancelStudy", "RetryStudy",
        "ResumeStudy", "HoldStudy", "ReleaseStudy", "ExplainStudy"}},
      {run, {"GetRun", "ListRuns", "CancelRun", "RetryRun", "ReadRunLog", "ExplainRun"}},
      {result, {"ReadPoints"}},
      {result, {"GetCurve"}, /*heavy=*/true},
      {v1::Advice::descriptor()->file(), {"CompareCells"}, /*heavy=*/true},
      {v1::Allocation::descriptor()->file(), {"GetCluster"}},
      {v1::Token::descriptor()->file(), {"GetIdentity"}},
  };
  std::map<std::string, WebMethod, std::less<>> methods;
  for (const Allowed& group : allowed) {
    const google::protobuf::ServiceDescriptor* service = group.file->service(0);
    for (const char* name : group.names) {
      methods[name] = {service->FindMethodByName(name), group.heavy, absl::string_view(name) == "WatchStudy",
                       absl::StrCat("/", service->full_name(), "/", name)};
    }
  }
  return methods;
}

}  // namespace

const WebMethod* FindWebMethod(absl::string_view name) {
  static const auto* methods = new std::map<std::string, WebMethod, std::less<>>(MakeMethods());
  const auto found = methods->find(name);
  return found == methods->end() ? nullptr : &found->second;
}

MessagePtr NewMessage(const google::protobuf::Descriptor* type) {
  return MessagePtr(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

absl::StatusOr<MessagePtr> RequestOf(const WebMethod& method, const std::string& json) {
  MessagePtr request = NewMessage(method.descriptor->input_type());
  if (json.empty()) return request;
  if (IsDeeplyNested(json)) return absl::InvalidArgumentError("the values of the body are nested too deeply");
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, request.get());
  if (parsed.ok()) return request;
  return absl::InvalidArgumentError(
      absl::StrCat("the body is no JSON of ", method.descriptor->input_type()->name(), ": ",
                   std::string(parsed.message().data(), parsed.message().size())));
}

std::string JsonOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  // Fails only for messages that violate their type, such as a Value without a kind.
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  return text;
}

std::string ErrorJson(const absl::Status& error) {
  nlohmann::json violations = nlohmann::json::array();
  for (const FieldViolation& violation : ViolationsOf(error))
    violations.push_back({{"field", violation.field}, {"description", violation.description}});
  const nlohmann::json body = {{"error",
                                {{"code", absl::StatusCodeToString(error.code())},
                                 {"message", std::string(error.message())},
                                 {"violations", std::move(violations)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    // A server that stops cancels the calls in progress. A client that has left gets no answer.
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace scalelab::server
