#include "client/commands/archive/transfer.h"

#include "absl/time/clock.h"
#include "scalelab/v1/archive.grpc.pb.h"

namespace scalelab::client {
namespace {

std::unique_ptr<grpc::ClientContext> TransferContext(Session& session, Connection& server) {
  return server.MakeContext(absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration()));
}

}  // namespace

absl::Status DownloadArchive(Session& session, const scalelab::v1::ReadArchiveRequest& request,
                             const std::function<absl::Status(absl::string_view)>& take) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto context = TransferContext(session, **server);
  const auto reader = (*server)->archives().ReadArchive(context.get(), request);
  scalelab::v1::ReadArchiveResponse piece;
  absl::Status taken;
  while (taken.ok() && reader->Read(&piece)) taken = take(piece.data());
  if (!taken.ok()) context->TryCancel();
  const grpc::Status status = reader->Finish();
  if (!taken.ok()) return taken;
  return status.ok() ? absl::OkStatus() : (*server)->Explain(status);
}

absl::StatusOr<scalelab::v1::RestoreArchiveResponse> UploadArchive(
    Session& session, const std::optional<scalelab::v1::StudyOrigin>& origin,
    const std::function<absl::StatusOr<bool>(std::string*)>& read) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto context = TransferContext(session, **server);
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
