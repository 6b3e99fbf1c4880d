#include "client/figures/latex_table.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/output/text.h"

namespace scalelab::client {

std::string Latex(absl::string_view text) {
  return absl::StrReplaceAll(Printable(text), {{"\\", "\\textbackslash{}"},
                                               {"&", "\\&"},
                                               {"%", "\\%"},
                                               {"$", "\\$"},
                                               {"#", "\\#"},
                                               {"_", "\\_"},
                                               {"{", "\\{"},
                                               {"}", "\\}"},
                                               {"~", "\\textasciitilde{}"},
                                               {"^", "\\textasciicircum{}"},
                                               {"<", "\\textless{}"},
                                               {">", "\\textgreater{}"},
                                               {"|", "\\textbar{}"},
                                               {"[", "{[}"},
                                               {"±", "$\\pm$"},
                                               {"…", "\\ldots{}"},
                                               {"–", "--"}});
}

std::string LatexTable(const Section& section, absl::string_view comment) {
  std::vector<size_t> shown;
  std::string columns;
  std::vector<std::string> titles;
  for (size_t i = 0; i < section.columns.size(); ++i) {
    const Column& column = section.columns[i];
    if (column.in != Column::In::kAll && column.in != Column::In::kTables) continue;
    shown.push_back(i);
    columns += column.right ? 'r' : 'l';
    titles.push_back(Latex(column.title));
  }
  std::string out;
  for (const absl::string_view line : absl::StrSplit(comment, '\n'))
    absl::StrAppend(&out, "% ", Printable(line), "\n");
  absl::StrAppend(&out, "% It needs \\usepackage{booktabs}.\n\\begin{tabular}{", columns, "}\n\\toprule\n",
                  absl::StrJoin(titles, " & "), " \\\\\n\\midrule\n");
  section.rows([&](const std::vector<Cell>& row) {
    std::vector<std::string> cells;
    for (const size_t i : shown) {
      const std::string text = Latex(row.at(i).text);
      // LaTeX prints "-" as a minus sign only in math mode. Only columns of numbers need it; in words, "-"
      // is a hyphen.
      const bool negative = section.columns[i].right && absl::StrContains(text, '-');
      cells.push_back(negative ? absl::StrReplaceAll(text, {{"-", "$-$"}}) : text);
    }
    absl::StrAppend(&out, absl::StrJoin(cells, " & "), " \\\\\n");
  });
  return absl::StrCat(out, "\\bottomrule\n\\end{tabular}\n");
}

}  // namespace scalelab::client
