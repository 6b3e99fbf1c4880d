// The table of tokens.
#pragma once

#include "absl/time/time.h"
#include "client/output/printer.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/auth.pb.h"

namespace scalelab::client {

// Returns one row per token. The section refers to its argument, which must exist until it is printed.
Section TokenTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Token>& tokens, absl::Time now);
// Returns "read", "submit" or "admin".
std::string ScopeText(scalelab::v1::Scope scope);

}  // namespace scalelab::client
