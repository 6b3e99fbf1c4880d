#include "tls/credentials.h"

#include "tls/certificate.h"

namespace scalelab::tls {

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Trust(const std::string& certificate,
                                                                grpc::ChannelArguments& arguments) {
  grpc::SslCredentialsOptions options;
  if (!certificate.empty()) {
    const absl::StatusOr<std::string> host = HostOf(certificate);
    if (!host.ok()) return host.status();
    if (!host->empty()) arguments.SetSslTargetNameOverride(*host);
    options.pem_root_certs = certificate;
  }
  return grpc::SslCredentials(options);
}

}  // namespace scalelab::tls
