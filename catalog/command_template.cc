#include "catalog/command_template.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

// Returns the name between the first character of `text`, a brace, and the closing brace. Returns "" if this
// is not a template.
absl::string_view NameAt(absl::string_view text) {
  const size_t end = text.find('}');
  if (end == absl::string_view::npos || end < 2 || !absl::ascii_islower(text[1])) return {};
  const absl::string_view name = text.substr(1, end - 1);
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.') return {};
  }
  return name;
}

}  // namespace

std::string ExpandTemplates(absl::string_view word,
                            const std::function<std::string(absl::string_view)>& value) {
  std::string out;
  while (!word.empty()) {
    const size_t brace = word.find('{');
    absl::StrAppend(&out, word.substr(0, brace));
    if (brace == absl::string_view::npos) break;
    const bool of_shell = brace > 0 && word[brace - 1] == '$';
    word.remove_prefix(brace);
    if (word.size() > 1 && word[1] == '{') {
      const absl::string_view quoted = NameAt(word.substr(1));
      const size_t length = quoted.size() + 4;
      if (!quoted.empty() && word.size() >= length && word[length - 1] == '}') {
        absl::StrAppend(&out, "{", quoted, "}");
        word.remove_prefix(length);
        continue;
      }
    }
    const absl::string_view name = of_shell ? absl::string_view() : NameAt(word);
    if (name.empty()) {
      out += '{';
      word.remove_prefix(1);
    } else {
      absl::StrAppend(&out, value(name));
      word.remove_prefix(name.size() + 2);
    }
  }
  return out;
}

std::vector<std::string> TemplateNames(absl::string_view word) {
  std::vector<std::string> names;
  (void)ExpandTemplates(word, [&](absl::string_view name) {
    names.emplace_back(name);
    return std::string();
  });
  return names;
}

}  // namespace scalelab
