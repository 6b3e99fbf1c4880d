// `scalelab completion SHELL`: prints a completion script that is generated from the definition of
// the command line.
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/commands/commands.h"

namespace scalelab::client {
namespace {

// Calls `visit` for `app` and every subcommand below it, each with its path, for example "study watch".
template <class Visit>
void Walk(const CLI::App& app, const std::string& path, const Visit& visit) {
  visit(path, app);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    Walk(*sub, path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name()), visit);
  }
}

std::set<std::string> WordsAt(const CLI::App& app) {
  std::set<std::string> words;
  for (const CLI::App* level = &app; level != nullptr;
       level = level->get_parent()) {  // global options are accepted anywhere
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_lnames()) words.insert("--" + name);
    }
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    words.insert(sub->get_name());
  return words;
}

// Returns the kind of objects that the arguments of a command name: "studies", "runs", or "" if the server
// does not have them.
std::string KindOf(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(true);
    if (absl::StrContains(name, "STUDY") || absl::StrContains(name, "STUDIES")) return "studies";
    if (absl::StrContains(name, "RUN")) return "runs";
  }
  return "";
}

// Returns the values of an option that has a fixed set of values. Its type name has the form "{a,b}".
std::string ValuesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return absl::StrReplaceAll(type.substr(begin + 1, end - begin - 1), {{",", " "}});
}

// Returns the fixed values of the arguments of a command, such as the shells of `completion`.
std::string ArgumentsOf(const CLI::App& app) {
  std::string values;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional() || ValuesOf(*option).empty()) continue;
    absl::StrAppend(&values, values.empty() ? "" : " ", ValuesOf(*option));
  }
  return values;
}

// Returns a case for each option with a fixed set of values, in any command. Kind "list" means that commas
// separate several values.
std::string ValueCases(const CLI::App& app) {
  std::map<std::string, std::set<std::string>> options;  // by values
  Walk(app, "", [&options](const std::string& path, const CLI::App& at) {
    for (const CLI::Option* option : at.get_options()) {
      std::string values = ValuesOf(*option);
      if (values.empty()) continue;
      absl::StrAppend(&values, "\"; kind=\"", option->get_delimiter() == ',' ? "list" : "");
      for (const std::string& name : option->get_lnames())
        options[values].insert(absl::StrCat("\"", path, " --", name, "\""));
    }
  });
  std::string cases;
  for (const auto& [values, names] : options)
    absl::StrAppend(&cases, "    ", absl::StrJoin(names, "|"), ") choices=\"", values, "\" ;;\n");
  return cases;
}

// Returns a shell pattern for command lines of commands that have subcommands: "study "*|"run "*
std::string GroupPattern(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_subcommands([](const CLI::App*) { return true; }).empty())
      groups.push_back(absl::StrCat("\"", sub->get_name(), " \"*"));
  }
  return absl::StrJoin(groups, "|");
}

// Reads the words before the cursor. Afterwards `line` is the command, for example "study show", and `given`
// contains the options that select the server. bash splits words at ":" and "=", so the parts are joined first.
constexpr char kReadLine[] = R"(  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    while ((i + 1 < COMP_CWORD)) && [[ "${COMP_WORDS[i+1]}" == [:=]* ]]; do
      word="$word${COMP_WORDS[i+1]}"
      ((i++))
      [[ "${COMP_WORDS[i]}" == *[:=] ]] && ((i + 1 < COMP_CWORD)) && ((i++)) && word="$word${COMP_WORDS[i]}"
    done
    case "$option" in
      --server|--token-file) word="$option=$word" ;;
      ?*) option=""; continue ;;
    esac
    option=""
    case "$word" in
      -o|--output|--server|--token-file|--timeout) option="$word"; continue ;;
      --server=*|--token-file=*)
        value="${word#*=}"
        case "$value" in
          \"*\"|\'*\') value="${value:1:$((${#value} - 2))}" ;;
          "~/"*) value="$HOME/${value#??}" ;;
        esac
        given+=("${word%%=*}=$value")
        continue ;;
    esac
    case "$line $word" in
      " -"*|*" -"*) ;;
      GROUPS) [[ "$line" == *" "* ]] || line="$line $word" ;;
      *) [[ -n "$line" ]] || line="$word" ;;
    esac
  done
)";

// Returns a script for bash, and for zsh after bashcompinit. In zsh the variables `path`, `words` and `options`
// are special: with a local `path` it finds no programs.
std::string Bash(const CLI::App& app) {
  std::string cases;
  Walk(app, "", [&cases](const std::string& path, const CLI::App& at) {
    const std::string arguments = ArgumentsOf(at);
    absl::StrAppend(&cases, "    \"", path, "\") choices=\"", absl::StrJoin(WordsAt(at), " "),
                    arguments.empty() ? "" : " ", arguments, "\" kind=\"", KindOf(at), "\" ;;\n");
  });
  return absl::StrCat(
      "_scalelab() {\n"
      "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  local line=\"\" choices=\"\" kind=\"\" study=\"\" option=\"\" value word i\n"
      "  local -a given\n"
      "  given=()\n",
      absl::StrReplaceAll(kReadLine, {{"GROUPS", GroupPattern(app)}}), "  case \"$line\" in\n", cases,
      "  esac\n"
      "  case \"$line $previous\" in\n",
      ValueCases(app),
      "    *\" -o\"|*\" --output\") choices=\"table wide json csv\"; kind=\"\" ;;\n"
      "  esac\n"
      "  case \"$kind $cur\" in\n"
      "    \"list \"*,*) choices=\"${cur%,*},${choices// / ${cur%,*},}\" ;;\n"
      "    \"runs studies/\"*/*)\n"
      "      study=\"${cur#studies/}\" study=\"${study%%/*}\" kind=\"runs of a study\" ;;\n"
      "  esac\n"
      "  # Names come from the server, which must answer at once. compgen expands words as the shell does, "
      "so\n"
      "  # names with special characters are left out.\n"
      "  [[ \"$cur\" == -* ]] || case \"$kind\" in\n"
      "    studies) choices=\"$choices last $(scalelab study list -o csv --timeout 2s \"${given[@]}\" "
      "2>/dev/null |\n"
      "      awk -F, 'NR > 1 && NR < 500 { sub(\"studies/\", \"\", $1); print $1; print $2 }' |\n"
      "      awk '/^[A-Za-z0-9_.-]+$/')\" ;;\n"
      "    runs) choices=\"$choices $(scalelab run list last --limit 500 -o csv --timeout 2s \"${given[@]}\" "
      "2>/dev/null |\n"
      "      awk -F, 'NR > 1 { sub(\".*/\", \"\", $1); print $1 }' | awk '/^[A-Za-z0-9_.-]+$/')\" ;;\n"
      "    \"runs of a study\")\n"
      "      choices=\"$(scalelab run list \"$study\" --limit 500 -o csv --timeout 2s \"${given[@]}\" "
      "2>/dev/null |\n"
      "      awk -F, -v study=\"$study\" \\\n"
      "        'NR > 1 { sub(\".*/\", \"\", $1); print \"studies/\" study \"/runs/\" $1 }' |\n"
      "      awk '/^[A-Za-z0-9_.\\/-]+$/')\" ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$choices\" -- \"$cur\"))\n"
      "}\n"
      "complete -o default -F _scalelab scalelab\n");
}

// Returns the text in single quotes, for the shell fish.
std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// `__scalelab_at study show` succeeds if the cursor is after the command `study show`.
constexpr char kFishFunctions[] = R"(function __scalelab_at
  set -l words (commandline -opc)
  set -e words[1]
  set -l path
  set -l value 0
  for word in $words
    if test $value = 1
      set value 0
      continue
    end
    switch $word
      case -o --output --server --token-file --timeout
        set value 1
      case '-*'
      case '*'
        if test (count $path) -eq 0
          set path $word
        else if test (count $path) -eq 1; and contains -- $path[1] GROUPS
          set -a path $word
        end
    end
  end
  test "$path" = "$argv"
end
# Prints the options of the command line that select the server, one on each line.
function __scalelab_connection
  set -l option ''
  for word in (commandline -opc)
    if test -n "$option"
      if contains -- $option --server --token-file
        printf '%s\n' $option=(string replace -r '^~/' "$HOME/" -- $word)
      end
      set option ''
      continue
    end
    switch $word
      case -o --output --server --token-file --timeout
        set option $word
      case '--server=*' '--token-file=*'
        printf '%s\n' $word
    end
  end
end
# Names come from the server, which must answer at once.
function __scalelab_studies
  echo last
  scalelab study list -o csv --timeout 2s (__scalelab_connection) 2>/dev/null |
    awk -F, 'NR > 1 && NR < 500 { sub("studies/", "", $1); print $1 "\t" $2; print $2 "\tstudy " $1 }'
end
function __scalelab_runs
  set -l study last
  set -l before
  if set -l parts (string match -r '^studies/([^/]+)/' -- (commandline -ct))
    set study $parts[2]
    set before studies/$study/runs/
  end
  scalelab run list $study --limit 500 -o csv --timeout 2s (__scalelab_connection) 2>/dev/null |
    awk -F, -v "before=$before" 'NR > 1 { sub(".*/", "", $1); print before $1 }'
end
# Prints the values behind the last comma of the word at the cursor.
function __scalelab_list
  set -l before (string match -r '^(?:--[^=]*=)?(.*,)' -- (commandline -ct))[2]
  printf '%s\n' "$before"$argv
end
)";

// Returns the completion of an option: its names, its values, and its description.
std::string FishOption(const CLI::Option& option) {
  std::string out;
  for (const std::string& name : option.get_snames()) absl::StrAppend(&out, " -s ", name);
  for (const std::string& name : option.get_lnames()) absl::StrAppend(&out, " -l ", name);
  const std::string values = option.check_lname("output") ? "table wide json csv" : ValuesOf(option);
  if (!values.empty()) {
    const bool list = option.get_delimiter() == ',';
    const std::string choices = list ? absl::StrCat("(__scalelab_list ", values, ")") : values;
    absl::StrAppend(&out, " -x -a ", FishQuoted(choices));
  } else if (option.get_expected_max() > 0) {
    absl::StrAppend(&out, " -r");
  }
  return absl::StrCat(out, " -d ", FishQuoted(option.get_description()), "\n");
}

std::string Fish(const CLI::App& app) {
  std::string groups, commands;
  Walk(app, "", [&](const std::string& path, const CLI::App& at) {
    const std::string begin = absl::StrCat(
        "complete -c scalelab -n ", FishQuoted(path.empty() ? "__scalelab_at" : "__scalelab_at " + path));
    const auto subs = at.get_subcommands([](const CLI::App*) { return true; });
    if (!subs.empty() && !path.empty()) absl::StrAppend(&groups, groups.empty() ? "" : " ", path);
    for (const CLI::App* sub : subs)
      absl::StrAppend(&commands, begin, " -f -a ", sub->get_name(), " -d ",
                      FishQuoted(sub->get_description()), "\n");
    if (const std::string kind = KindOf(at); !kind.empty())
      absl::StrAppend(&commands, begin, " -f -a '(__scalelab_", kind, ")'\n");
    if (const std::string arguments = ArgumentsOf(at); !arguments.empty())
      absl::StrAppend(&commands, begin, " -f -a ", FishQuoted(arguments), "\n");
    for (const CLI::Option* option : at.get_options()) {
      // Global options are accepted anywhere.
      if (!option->get_lnames().empty())
        absl::StrAppend(&commands, path.empty() ? "complete -c scalelab" : begin, FishOption(*option));
    }
  });
  return absl::StrCat(absl::StrReplaceAll(kFishFunctions, {{"GROUPS", groups}}), commands);
}

// Returns a script that zsh reads as a file, or loads as the function _scalelab from a folder of $fpath when it first
// completes a word. The last line then completes that word.
std::string Zsh(const CLI::App& app) {
  return absl::StrCat("#compdef scalelab\nautoload -U +X bashcompinit && bashcompinit\n", Bash(app),
                      "if [[ \"${funcstack[1]}\" == _scalelab ]]; then\n"
                      "  _bash_complete -o default -F _scalelab\n"
                      "fi\n");
}

absl::StatusOr<ExitCode> ExecuteCompletion(const std::string& shell, const CLI::App& app, Session& session) {
  session.io().out << (shell == "fish" ? Fish(app) : shell == "zsh" ? Zsh(app) : Bash(app));
  if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddCompletion(CLI::App& app, Action& chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "Print a completion script: `source <(scalelab completion bash)`");
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([shell, &app, &chosen] {
    chosen = [shell, &app](Session& session) { return ExecuteCompletion(*shell, app, session); };
  });
}

}  // namespace scalelab::client
