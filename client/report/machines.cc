#include "client/report/machines.h"

namespace scalelab::client {

using google::protobuf::RepeatedPtrField;
using scalelab::v1::GetRunRequest;
using scalelab::v1::Run;
using scalelab::v1::RunService;

absl::StatusOr<Machines> ReadMachines(Connection& server, const RepeatedPtrField<Run>& runs) {
  Machines machines;
  for (const Run& run : runs) {
    if (run.fingerprint().empty() || machines.contains(run.fingerprint())) continue;
    GetRunRequest request;
    request.set_name(run.name());
    const auto response = server.Call(server.runs(), &RunService::Stub::GetRun, request);
    if (!response.ok()) return response.status();
    auto& nodes = machines[run.fingerprint()];
    if (!response->run().attempts().empty()) nodes = response->run().attempts().rbegin()->node_infos();
  }
  return machines;
}

}  // namespace scalelab::client
