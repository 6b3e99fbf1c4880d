// The credentials of clients for encrypted connections.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace scalelab::tls {

// Returns credentials that trust servers with `certificate` (PEM): the server's own, or that of an authority. An empty
// text means the authorities of the system. Adds what is needed to `arguments`. Returns INVALID_ARGUMENT if the text
// contains no certificate.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Trust(const std::string& certificate,
                                                                grpc::ChannelArguments& arguments);

}  // namespace scalelab::tls
