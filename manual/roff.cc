#include "manual/roff.h"

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace scalelab::manual {
namespace {

using Terms = std::vector<std::pair<std::string, std::string>>;

// Returns the placeholder for the value of an option, for example "FILE"; empty for a flag.
std::string ValueName(const CLI::Option& option) {
  if (!option.get_option_text().empty()) return option.get_option_text();
  if (option.get_type_size() == 0) return "";
  // The type's name may be followed by the check: "INT:POSITIVE", "TEXT:{a,b}".
  const std::string type = option.get_type_name();
  return type.substr(0, type.find_first_of(": "));
}

std::string TermOf(const CLI::Option& option) {
  if (!option.nonpositional()) return option.get_name();
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const std::string value = ValueName(option);
  return absl::StrCat(absl::StrJoin(names, ", "), value.empty() ? "" : " ", value);
}

std::vector<const CLI::App*> Subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::string Synopsis(const CLI::App& app, const std::string& path) {
  std::string line = path;
  bool options = false;
  for (const CLI::Option* option : app.get_options()) options = options || option->nonpositional();
  if (options) absl::StrAppend(&line, " [OPTIONS]");
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) continue;
    const std::string dots = option->get_expected_max() > 1 ? "..." : "";
    absl::StrAppend(&line, option->get_required() ? absl::StrCat(" ", option->get_name(), dots)
                                                  : absl::StrCat(" [", option->get_name(), dots, "]"));
  }
  return line;
}

void AppendCommand(const CLI::App& app, const std::string& path, std::string* page) {
  absl::StrAppend(page, ".SS ", Escape(Synopsis(app, path)), "\n", Escape(app.get_description()), "\n");
  // A command inherits the footer of the program. Leave it out: the page contains it in separate sections.
  const std::string footer = app.get_footer();
  if (footer != app.get_parent()->get_footer()) absl::StrAppend(page, ".PP\n", Escape(footer), "\n");
  absl::StrAppend(page, Options(app));
}

}  // namespace

std::string Escape(absl::string_view text) {
  // "-" would be printed as a hyphen, and a period or an apostrophe that begins a line would begin a macro.
  const std::string escaped =
      absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  return absl::StrCat(absl::StartsWith(escaped, ".") || absl::StartsWith(escaped, "'") ? "\\&" : "", escaped);
}

std::string TermList(const Terms& terms) {
  std::string list;
  for (const auto& [term, description] : terms)
    absl::StrAppend(&list, ".TP\n.B ", Escape(term), "\n", Escape(description), "\n");
  return list;
}

std::string Options(const CLI::App& app) {
  Terms terms;
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : app.get_options()) {
      const bool help = option == app.get_help_ptr() && app.get_parent() != nullptr;
      if (option->nonpositional() == positional || option->get_group().empty() || help) continue;
      terms.emplace_back(TermOf(*option), option->get_description());
    }
  }
  return TermList(terms);
}

std::string Commands(const CLI::App& app) {
  std::string page;
  const auto walk = [&page](const auto& self, const CLI::App& at, const std::string& path) -> void {
    const std::vector<const CLI::App*> below = Subcommands(at);
    // A command that needs a subcommand has no action of its own, so it gets no section.
    if (at.get_parent() != nullptr && (below.empty() || at.get_require_subcommand_min() == 0))
      AppendCommand(at, path, &page);
    for (const CLI::App* sub : below) self(self, *sub, absl::StrCat(path, " ", sub->get_name()));
  };
  walk(walk, app, app.get_name());
  return page;
}

std::string ReplaceLine(absl::string_view page, absl::string_view word, absl::string_view text) {
  std::vector<std::string> lines = absl::StrSplit(page, '\n');
  const absl::string_view without_end = absl::StripSuffix(text, "\n");
  for (std::string& line : lines) {
    if (line == word) line = std::string(without_end);
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace scalelab::manual
