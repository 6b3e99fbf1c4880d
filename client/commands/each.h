// Loops for commands that act on several studies or runs.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/commands/sections.h"
#include "client/session/selectors.h"
#include "client/session/session.h"

namespace scalelab::client {

// Calls `act` for every name. Continues after an error that concerns only one name; stops when the server is
// unavailable or rejects the credentials. Prints every error except the last, which it returns, also with --quiet.
inline absl::StatusOr<ExitCode> ForEach(Session& session, const std::vector<std::string>& names,
                                        const std::function<absl::Status(const std::string&)>& act) {
  absl::Status last;
  for (const std::string& name : names) {
    const absl::Status status = act(name);
    if (status.ok()) continue;
    if (!last.ok()) session.io().err << last.message() << std::endl;
    last = status;
    if (absl::IsUnavailable(status) || absl::IsUnauthenticated(status)) break;
  }
  if (!last.ok()) return last;
  return ExitCode::kOk;
}

// Calls a method of StudyService for each study that `selected` selects. If `selected` is "all", calls it
// only for studies that `concerned` accepts. `request` has all fields except the name. Prints the studies
// after the calls, or `none` if there are none.
template <typename Request, typename Method>
absl::StatusOr<ExitCode> ChangeStudies(Session& session, const std::string& selected, Method method,
                                       const std::function<bool(const scalelab::v1::Study&)>& concerned,
                                       const std::string& none, Request request = {}) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  auto studies = FindStudies(**server, selected);
  if (!studies.ok()) return studies.status();
  std::vector<std::string> names;
  for (const auto& study : *studies) {
    if (selected != "all" || concerned(study)) names.push_back(study.name());
  }
  scalelab::v1::ListStudiesResponse changed;
  const auto outcome = ForEach(session, names, [&](const std::string& name) {
    request.set_name(name);
    auto response = (*server)->Call((*server)->studies(), method, request);
    if (!response.ok()) return response.status();
    changed.mutable_studies()->Add(std::move(*response->mutable_study()));
    return absl::OkStatus();
  });
  Answer answer{changed, {StudyTable(changed.studies(), session.now())}};
  answer.sections[0].empty = none;
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

// Like ChangeStudies, for runs and a method of RunService.
template <typename Request, typename Method>
absl::StatusOr<ExitCode> ChangeRuns(Session& session, const std::string& selected, Method method,
                                    const std::string& none) {
  const auto names = RunNames(selected);
  if (!names.ok()) return names.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  scalelab::v1::ListRunsResponse changed;
  const auto outcome = ForEach(session, *names, [&](const std::string& name) {
    Request request;
    request.set_name(name);
    auto response = (*server)->Call((*server)->runs(), method, request);
    if (!response.ok()) return response.status();
    changed.mutable_runs()->Add(std::move(*response->mutable_run()));
    return absl::OkStatus();
  });
  Answer answer{changed, {RunTable(changed.runs(), session.now())}};
  answer.sections[0].empty = none;
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

}  // namespace scalelab::client
