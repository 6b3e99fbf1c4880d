// Writes parts of man pages, in the macros of man(7). The functions are pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
}  // namespace CLI

namespace scalelab::manual {

// Returns the text so that roff prints it as it is.
std::string Escape(absl::string_view text);

// Returns a list of terms, each with its description.
std::string TermList(const std::vector<std::pair<std::string, std::string>>& terms);

// Returns the positional arguments and the options of `app`, but not those of its subcommands.
std::string Options(const CLI::App& app);

// Returns one subsection for each command below `app` that has an action, with its synopsis, description,
// arguments and options: "scalelab study submit [OPTIONS] FILE".
std::string Commands(const CLI::App& app);

// Replaces every line that is exactly `word` by `text`, which ends with a line break.
std::string ReplaceLine(absl::string_view page, absl::string_view word, absl::string_view text);

}  // namespace scalelab::manual
