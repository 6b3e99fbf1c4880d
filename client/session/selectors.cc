#include "client/session/selectors.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListStudiesRequest;
using scalelab::v1::ListStudiesResponse;
using scalelab::v1::Study;
using scalelab::v1::StudyService;

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

using NameOf = absl::StatusOr<std::string> (*)(absl::string_view);

// Parses comma-separated parts, each a name or a range of numbers.
absl::StatusOr<std::vector<std::string>> Several(absl::string_view selector, NameOf name_of) {
  std::vector<std::string> names;
  std::unordered_set<std::string> seen;
  const auto add = [&](absl::string_view part) -> absl::Status {
    const auto name = name_of(part);
    if (!name.ok()) return name.status();
    if (seen.insert(*name).second) names.push_back(*name);
    return absl::OkStatus();
  };
  for (absl::string_view part : absl::StrSplit(selector, ',')) {
    part = absl::StripAsciiWhitespace(part);
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int64_t first = 0, last = 0;
    const bool range = ends.size() == 2 && IsNumber(ends[0]) && IsNumber(ends[1]);
    if (!range) {
      if (const absl::Status status = add(part); !status.ok()) return status;
      continue;
    }
    if (!absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &last) || first > last ||
        last - first >= kMaxSelected) {
      return absl::InvalidArgumentError(
          absl::StrCat("the range '", part, "' must ascend and have at most ", kMaxSelected, " numbers"));
    }
    for (int64_t number = first; number <= last; ++number) {
      if (const absl::Status status = add(absl::StrCat(number)); !status.ok()) return status;
    }
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> StudyName(absl::string_view selector) {
  absl::string_view rest = selector;
  absl::ConsumePrefix(&rest, "studies/");
  if (rest.empty() || rest.find_first_of("/, ") != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", selector, "' is not a study: give a number, a name, studies/NUMBER or last"));
  }
  return absl::StrCat("studies/", rest);
}

absl::StatusOr<std::string> RunName(absl::string_view selector) {
  const std::vector<absl::string_view> parts = absl::StrSplit(selector, '/');
  if (parts.size() == 1 && IsNumber(parts[0])) return absl::StrCat("runs/", selector);
  if (parts.size() == 2 && parts[0] == "runs" && IsNumber(parts[1])) return std::string(selector);
  if (parts.size() == 4 && parts[0] == "studies" && !parts[1].empty() && parts[2] == "runs" &&
      IsNumber(parts[3])) {
    return std::string(selector);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", selector, "' is not a run: give a number, runs/NUMBER or studies/NUMBER/runs/NUMBER"));
}

absl::StatusOr<std::vector<std::string>> StudyNames(absl::string_view selector) {
  return Several(selector, StudyName);
}

absl::StatusOr<std::vector<std::string>> RunNames(absl::string_view selector) {
  return Several(selector, RunName);
}

absl::StatusOr<ListStudiesResponse> ListAllStudies(Connection& server, int limit) {
  ListStudiesResponse all;
  ListStudiesRequest request;
  request.set_page_size(limit > 0 ? std::min(limit, 1000) : 1000);
  do {
    auto page = server.Call(server.studies(), &StudyService::Stub::ListStudies, request);
    if (!page.ok()) return page.status();
    for (Study& study : *page->mutable_studies()) all.mutable_studies()->Add(std::move(study));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && (limit == 0 || all.studies_size() < limit));
  if (limit > 0 && all.studies_size() > limit)
    all.mutable_studies()->DeleteSubrange(limit, all.studies_size() - limit);
  return all;
}

absl::StatusOr<std::vector<Study>> FindStudies(Connection& server, absl::string_view selector, int limit) {
  std::vector<Study> studies;
  if (selector == "all") {
    auto all = ListAllStudies(server, limit);
    if (!all.ok()) return all.status();
    for (Study& study : *all->mutable_studies()) studies.push_back(std::move(study));
    return studies;
  }
  const auto names = StudyNames(selector);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    scalelab::v1::GetStudyRequest request;
    request.set_name(name);
    auto response = server.Call(server.studies(), &StudyService::Stub::GetStudy, request);
    if (!response.ok()) return response.status();
    // Two selectors may mean the same study, for example its name and its number.
    const auto same = [&](const Study& study) { return study.name() == response->study().name(); };
    if (std::none_of(studies.begin(), studies.end(), same))
      studies.push_back(std::move(*response->mutable_study()));
  }
  return studies;
}

}  // namespace scalelab::client
