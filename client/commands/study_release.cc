// `scalelab study release STUDIES`: ends the hold of studies.
#include "client/commands/commands.h"
#include "client/commands/each.h"

namespace scalelab::client {
namespace {

struct StudyReleaseOptions {
  std::string studies;
};

absl::StatusOr<ExitCode> ExecuteStudyRelease(const StudyReleaseOptions& options, Session& session) {
  using scalelab::v1::Study;
  return ChangeStudies<scalelab::v1::ReleaseStudyRequest>(
      session, options.studies, &scalelab::v1::StudyService::Stub::ReleaseStudy,
      [](const Study& study) { return study.held(); }, "no study is held");
}

}  // namespace

void AddStudyRelease(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyReleaseOptions>();
  CLI::App* command = study.add_subcommand("release", "End `hold` of studies");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyRelease(*options, session); };
  });
}

}  // namespace scalelab::client
