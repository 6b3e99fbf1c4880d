#include "client/figures/convert_svg.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/command/command.h"

namespace scalelab::client {
namespace {

constexpr char kConverter[] = "rsvg-convert";
constexpr absl::Duration kConversionLimit = absl::Minutes(1);

}  // namespace

absl::StatusOr<std::string> ConvertSvg(const std::string& svg, const std::string& format) {
  if (!server::MissingProgram({kConverter}).empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(format, " needs the program ", kConverter,
                     ", which is not installed; install the package librsvg2-bin (Debian, Ubuntu) or "
                     "librsvg2-tools (Fedora, "
                     "Red Hat, openSUSE), or write an SVG file"));
  }
  std::vector<std::string> argv = {kConverter, "--format", format};
  if (format == "png") argv.insert(argv.end(), {"--zoom", "2"});
  auto result = server::RunCommand(argv, svg, server::CommandEnvironment(), kConversionLimit);
  if (!result.ok()) return result.status();
  if (result->ok() && !result->out.empty()) return std::move(result->out);
  const absl::string_view reason = absl::StripAsciiWhitespace(result->err);
  return absl::UnknownError(absl::StrCat(kConverter, " cannot make ", format, ": ",
                                         result->timed_out   ? "it took longer than a minute"
                                         : result->truncated ? "the file would be larger than 16 MiB"
                                         : reason.empty()    ? "it ended without a reason"
                                                             : reason,
                                         "; write an SVG file instead"));
}

}  // namespace scalelab::client
