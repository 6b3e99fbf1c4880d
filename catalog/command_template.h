// Templates in the words of a command: "--lr={learning_rate} --dropout={params.dropout}".
//
// {NAME} is a template if NAME begins with a lower-case letter and has only letters, digits, '_' and '.'.
// "${NAME}" is not a template, so that shells can expand it. "{{NAME}}" is the text "{NAME}". All
// other braces are plain text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the names of all templates in `word`, in their order.
std::vector<std::string> TemplateNames(absl::string_view word);
// Replaces each template in `word` by the result of `value` for its name.
std::string ExpandTemplates(absl::string_view word,
                            const std::function<std::string(absl::string_view)>& value);

}  // namespace scalelab
