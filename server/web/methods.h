// The methods of the API that the dashboard may call, and their messages as JSON.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace scalelab::server {

struct WebMethod {
  const google::protobuf::MethodDescriptor* descriptor = nullptr;
  bool heavy = false;   // computes for long
  bool states = false;  // a stream of states, of which only the newest one matters
  std::string path;     // of gRPC: "/scalelab.v1.StudyService/GetStudy"
};

// Returns a method by its name, for example "GetStudy"; null if the dashboard does not need it.
const WebMethod* FindWebMethod(absl::string_view name);

using MessagePtr = std::shared_ptr<google::protobuf::Message>;
// Returns an empty message of this type.
MessagePtr NewMessage(const google::protobuf::Descriptor* type);
// Returns the request in a JSON object. An empty text means an empty object. INVALID_ARGUMENT if it is not of this form.
absl::StatusOr<MessagePtr> RequestOf(const WebMethod& method, const std::string& json);
// Returns the message as JSON with the field names of the proto files, like `scalelab -o json`, but without fields that
// have their default value.
std::string JsonOf(const google::protobuf::Message& message);
// Returns {"error": {"code": ..., "message": ..., "violations": [{"field": ..., "description": ...}]}}.
std::string ErrorJson(const absl::Status& error);
// Returns the status of HTTP for an error of gRPC.
int HttpStatusOf(absl::StatusCode code);

}  // namespace scalelab::server
