#include "client/commands/archive/transfer.h"

#include "absl/time/clock.h"
#include "scalelab/v1/archive.grpc.pb.h"

namespace scalelab::client {
namespace {

absl::Time Deadline(const Session& session) {
  return absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration());
}

}  // namespace

absl::Status DownloadArchive(Session& session, const scalelab::v1::ReadArchiveRequest& request,
                             const std::function<absl::Status(absl::string_view)>& take) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  absl::Status taken;
  const grpc::Status status =
      (*server)->Read((*server)->archives(), &scalelab::v1::ArchiveService::Stub::ReadArchive, request,
                      Deadline(session), [&](const scalelab::v1::ReadArchiveResponse& piece) {
                        taken = take(piece.data());
                        return taken.ok();
                      });
  if (!taken.ok()) return taken;
  return status.ok() ? absl::OkStatus() : (*server)->Explain(status);
}

absl::StatusOr<scalelab::v1::RestoreArchiveResponse> UploadArchive(
    Session& session, const std::optional<scalelab::v1::StudyOrigin>& origin,
    const std::function<absl::StatusOr<bool>(std::string*)>& read) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  // The pieces are read only once, so the upload cannot be repeated. This call replaces a stored session
  // token that the server refuses.
  const auto identity = (*server)->Call((*server)->auth(), &scalelab::v1::AuthService::Stub::GetIdentity,
                                        scalelab::v1::GetIdentityRequest());
  if (!identity.ok()) return identity.status();
  const auto context = (*server)->MakeContext(Deadline(session));
  scalelab::v1::RestoreArchiveResponse response;
  const auto writer = (*server)->archives().RestoreArchive(context.get(), &response);
  scalelab::v1::RestoreArchiveRequest request;
  if (origin.has_value()) *request.mutable_origin() = *origin;
  absl::StatusOr<bool> more = true;
  for (bool open = true; open;) {
    more = read(request.mutable_data());
    if (!more.ok() || !*more) break;
    open = writer->Write(request);  // false if the server has refused the call; Finish returns the reason
    request.clear_origin();
  }
  if (!more.ok()) context->TryCancel();
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!more.ok()) return more.status();
  if (!status.ok()) return (*server)->Explain(status);
  return response;
}

absl::Status PrintStored(Session& session, const scalelab::v1::RestoreArchiveResponse& response) {
  Section name;
  name.columns = {{"name"}};
  name.header = false;
  name.rows = [&response](const RowSink& sink) { sink({response.study().name()}); };
  return session.Print({response, {std::move(name)}});
}

}  // namespace scalelab::client
