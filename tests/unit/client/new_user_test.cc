// Tests of features for new users: templates, followed logs, errors as JSON, completion, progress of runs.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/commands/init/templates.h"
#include "client/session/progress.h"
#include "server/command/command.h"
#include "tests/unit/client/client_fixture.h"
#include "worker/process/output_limit.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ReadRunLogRequest;
using scalelab::v1::ReadRunLogResponse;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Property;
using ::testing::StartsWith;

class NewUser : public ClientTest {
 protected:
  void Log(ReadRunLogRequest::Stream stream, const std::string& data) {
    server_.log.push_back(Piece(stream, data));
  }
  static ReadRunLogResponse Piece(ReadRunLogRequest::Stream stream, const std::string& data) {
    ReadRunLogResponse piece;
    piece.set_stream(stream);
    piece.set_data(data);
    return piece;
  }
  // Adds a run with one attempt. Calls `on_look` before each answer of GetRun, with the number of the call.
  scalelab::v1::Run& RunWithLooks(std::function<void(int look)> on_look) {
    scalelab::v1::Run& run = server_.runs.emplace_back();
    run.set_name("studies/7/runs/12");
    run.set_state(scalelab::v1::Run::RUNNING);
    run.add_attempts()->set_number(1);
    server_.on_get_run = [on_look = std::move(on_look), look = 0]() mutable { on_look(++look); };
    return run;
  }
  // Replaces the standard output by one that the worker has cut: `kept`, the worker's mark, and `added`.
  void Cut(const std::string& kept, const std::string& added) {
    server_.log.clear();
    Log(ReadRunLogRequest::STDOUT, absl::StrCat(kept, mark_, added));
  }
  const std::string mark_ = absl::StrCat("\n", worker::kCutMark, ", as it had more than 64 MiB]\n");
};

TEST_F(NewUser, EveryTemplateIsAValidStudyFile) {
  for (const StudyTemplate& known : StudyTemplates()) {
    const std::string file = absl::StrCat(dir_, "/", known.name, ".yaml");
    EXPECT_THAT(RunAsIs({"study", "init", std::string(known.name), "--file", file}), Exits(ExitCode::kOk));
    EXPECT_THAT(RunAsIs({"study", "validate", file}), Exits(ExitCode::kOk)) << known.name;
    EXPECT_THAT(RunAsIs({"study", "init"}).out, HasSubstr(std::string(known.summary)));
  }
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/train.py"));
  EXPECT_EQ(std::system(("python3 -m py_compile " + dir_ + "/train.py").c_str()), 0);
}

TEST_F(NewUser, TemplatesReplaceNoFile) {
  WriteFile("scaling.yaml", "mine");
  const std::string file = dir_ + "/scaling.yaml";
  EXPECT_THAT(RunAsIs({"study", "init", "scaling", "--file", file}).err, HasSubstr("exists"));
  EXPECT_THAT(RunAsIs({"study", "init", "scaling", "--file", "-"}).out, HasSubstr("study: scaling"));
  EXPECT_THAT(RunAsIs({"study", "init", "nothing"}), Exits(ExitCode::kUsage));
}

TEST_F(NewUser, FollowedLogsAreShownOnceUntilTheRunIsOver) {
  Start();
  scalelab::v1::Run& run = server_.runs.emplace_back();
  run.set_name("studies/7/runs/12");
  run.set_state(scalelab::v1::Run::RUNNING);
  run.add_attempts()->set_number(1);
  Log(ReadRunLogRequest::STDOUT, "one\n");
  Log(ReadRunLogRequest::STDERR, "warning\n");
  int calls = 0;
  server_.on_get_run = [&] {
    if (++calls < 2) return;
    Log(ReadRunLogRequest::STDOUT, "two\n");
    run.set_state(scalelab::v1::Run::SUCCEEDED);
  };
  const Outcome logs = Run({"run", "logs", "12", "--follow"});
  EXPECT_THAT(logs, Exits(ExitCode::kOk));
  EXPECT_EQ(logs.out, "one\nwarning\ntwo\n");
  EXPECT_EQ(calls, 2);
}

TEST_F(NewUser, ANewAttemptIsFollowedFromItsBeginning) {
  Start();
  scalelab::v1::Run& run = server_.runs.emplace_back();
  run.set_name("studies/7/runs/12");
  run.set_state(scalelab::v1::Run::RUNNING);
  run.add_attempts()->set_number(1);
  Log(ReadRunLogRequest::STDOUT, "first\n");
  int calls = 0;
  server_.on_get_run = [&] {
    if (++calls < 2) return;
    server_.log_of[1] = server_.log;
    server_.log_of[1].back().set_data("first\nlast\n");  // written before the attempt ended
    server_.log.clear();
    Log(ReadRunLogRequest::STDOUT, "2nd\n");
    run.add_attempts()->set_number(2);
    run.set_state(scalelab::v1::Run::FAILED);
  };
  const Outcome logs = Run({"run", "logs", "12", "-f", "--stdout"});
  EXPECT_THAT(logs, Exits(ExitCode::kRunsFailed));
  EXPECT_EQ(logs.out, "first\nlast\n2nd\n");
  EXPECT_THAT(logs.err, HasSubstr("attempt 2 follows"));
}

// Two attempts begin between two calls of GetRun.
TEST_F(NewUser, EveryAttemptIsFollowedToItsEnd) {
  Start();
  scalelab::v1::Run* run = nullptr;
  run = &RunWithLooks([&](int look) {
    if (look < 2) return;
    server_.log_of[1] = {Piece(ReadRunLogRequest::STDOUT, "first\nlast\n")};
    run->add_attempts()->set_number(2);
    run->add_attempts()->set_number(3);
    run->set_state(scalelab::v1::Run::FAILED);
  });
  server_.log_of = {{1, {Piece(ReadRunLogRequest::STDOUT, "first\n")}},
                    {2, {Piece(ReadRunLogRequest::STDOUT, "2nd\n")}},
                    {3, {Piece(ReadRunLogRequest::STDOUT, "3rd\n")}}};
  const Outcome logs = Run({"run", "logs", "12", "-f"});
  EXPECT_THAT(logs, Exits(ExitCode::kRunsFailed));
  EXPECT_EQ(logs.out, "first\nlast\n2nd\n3rd\n");
  EXPECT_EQ(logs.err, "attempt 2 follows\nattempt 3 follows\n");
}

TEST_F(NewUser, FollowingBeginsWithTheLastOfSeveralAttempts) {
  Start();
  scalelab::v1::Run& run = RunWithLooks([](int) {});
  run.add_attempts()->set_number(2);
  run.set_state(scalelab::v1::Run::SUCCEEDED);
  server_.log_of = {{1, {Piece(ReadRunLogRequest::STDOUT, "first\n")}},
                    {2, {Piece(ReadRunLogRequest::STDOUT, "2nd\n")}}};
  EXPECT_EQ(Run({"run", "logs", "12", "-f"}).out, "2nd\n");
  EXPECT_EQ(Run({"run", "logs", "12", "-f", "--attempt", "1"}).out, "first\n");
}

// A request that names no attempt reads the last one. If the first attempt begins after GetRun, its output
// must not be printed for this request and again for attempt 1.
TEST_F(NewUser, NoLogIsReadBeforeThereIsAnAttempt) {
  Start();
  scalelab::v1::Run* run = nullptr;
  run = &RunWithLooks([&](int look) {
    if (look < 2) return;
    run->add_attempts()->set_number(1);
    run->set_state(scalelab::v1::Run::SUCCEEDED);
  });
  run->clear_attempts();
  run->set_state(scalelab::v1::Run::QUEUED);
  Log(ReadRunLogRequest::STDOUT, "one\n");
  EXPECT_EQ(Run({"run", "logs", "12", "--follow"}).out, "one\n");
  EXPECT_THAT(server_.logs_asked, Each(Property(&ReadRunLogRequest::attempt, 1)));
}

TEST_F(NewUser, AFollowedLogContinuesAtThePlaceWhereTheWorkerCutIt) {
  Start();
  const std::string text = std::string(1000, 'a') + "\n";
  scalelab::v1::Run* run = nullptr;
  run = &RunWithLooks([&](int look) {
    if (look == 2) Cut("aaaa", "new\n");
    if (look < 3) return;
    Log(ReadRunLogRequest::STDOUT, "last\n");
    run->set_state(scalelab::v1::Run::SUCCEEDED);
  });
  Log(ReadRunLogRequest::STDOUT, text);
  const Outcome logs = Run({"run", "logs", "12", "--follow"});
  EXPECT_THAT(logs, Exits(ExitCode::kOk));
  EXPECT_EQ(logs.out, absl::StrCat(text, mark_, "new\nlast\n"));
  EXPECT_EQ(logs.err,
            "the worker cut the standard output, which was too long; a part of it is missing here\n");
}

TEST_F(NewUser, AFollowedLogContinuesNearItsEndIfTheWorkerCutItLongBefore) {
  Start();
  const std::string text = std::string(2 << 20, 'a') + "\n";
  std::string added;
  for (int line = 0; added.size() < 1 << 20; ++line) absl::StrAppend(&added, "line ", line, "\n");
  scalelab::v1::Run* run = nullptr;
  run = &RunWithLooks([&](int look) {
    if (look < 2) return;
    Cut("aaaa", added);
    run->set_state(scalelab::v1::Run::SUCCEEDED);
  });
  Log(ReadRunLogRequest::STDOUT, text);
  const Outcome logs = Run({"run", "logs", "12", "--follow"});
  EXPECT_THAT(logs, Exits(ExitCode::kOk));
  ASSERT_THAT(logs.out, StartsWith(absl::StrCat(text, "\nline ")));
  const std::string end = logs.out.substr(text.size());
  EXPECT_GT(end.size(), 100'000U);
  EXPECT_EQ(end, added.substr(added.size() - end.size()));
}

TEST_F(NewUser, FollowedLogsBeginWithTheLastLinesThatExist) {
  Start();
  scalelab::v1::Run& run = server_.runs.emplace_back();
  run.set_name("studies/7/runs/12");
  run.set_state(scalelab::v1::Run::RUNNING);
  run.add_attempts()->set_number(1);
  Log(ReadRunLogRequest::STDOUT, "one\ntwo\nthree\n");
  Log(ReadRunLogRequest::STDERR, "old\nnew\n");
  int calls = 0;
  server_.on_get_run = [&] {
    if (++calls < 2) return;
    Log(ReadRunLogRequest::STDOUT, "four\nfive\nsix\n");  // --tail does not cut what is added
    run.set_state(scalelab::v1::Run::SUCCEEDED);
  };
  const Outcome logs = Run({"run", "logs", "12", "--follow", "--tail", "1"});
  EXPECT_THAT(logs, Exits(ExitCode::kOk));
  EXPECT_EQ(logs.out, "three\nnew\nfour\nfive\nsix\n");
  EXPECT_EQ(calls, 2);
}

TEST_F(NewUser, ErrorsAreJsonWhereOutputIs) {
  Start();
  const Outcome outcome = Run({"study", "show", "99", "-o", "json"});
  EXPECT_THAT(outcome, Exits(ExitCode::kFailure));
  const auto error = nlohmann::json::parse(outcome.err)["error"];
  EXPECT_EQ(error["code"], "NOT_FOUND");
  EXPECT_EQ(error["exit_code"], 1);
  EXPECT_NE(error["message"], "");
  EXPECT_THAT(outcome.out, IsEmpty());
  const Outcome usage = Run({"study", "shwo", "99", "-o", "json"});
  EXPECT_THAT(usage, Exits(ExitCode::kUsage));
  EXPECT_THAT(nlohmann::json::parse(usage.err)["error"]["message"].get<std::string>(),
              HasSubstr("did you mean 'show'"));
}

TEST_F(NewUser, AnOptionThatNeedsAnotherOneIsNotIgnored) {
  const Outcome alone = Run({"predict", "7", "--all-reduce", "gloo"});
  EXPECT_THAT(alone, Exits(ExitCode::kUsage));
  EXPECT_THAT(alone.err, AllOf(HasSubstr("--all-reduce"), HasSubstr("--network")));
}

TEST_F(NewUser, ValidationAnswersInJson) {
  const auto valid = nlohmann::json::parse(RunAsIs({"study", "validate", StudyFile(), "-o", "json"}).out);
  EXPECT_EQ(valid["valid"], true);
  EXPECT_EQ(valid["cells"], 2);
  EXPECT_EQ(valid["runs"], 6);
  const std::string file = WriteFile("bad.yaml", "study: bad\nfixde: {}\nmatrix: {ranks: [0]}\n");
  const Outcome outcome = RunAsIs({"study", "validate", file, "-o", "json"});
  EXPECT_THAT(outcome, Exits(ExitCode::kUsage));
  const auto invalid = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(invalid["valid"], false);
  ASSERT_GE(invalid["problems"].size(), 1u);
  EXPECT_THAT(invalid["problems"][0].get<std::string>(), HasSubstr("bad.yaml:2:"));
}

// Sources the script in bash, and returns the words that it suggests. A fake `scalelab` takes the place
// of the server.
TEST_F(NewUser, CompletionKnowsStudiesRunsAndValuesOfOptions) {
  const std::string script = WriteFile("completion.bash", RunAsIs({"completion", "bash"}).out);
  const std::string expanded = dir_ + "/expanded";
  const std::string studies =
      WriteFile("studies.csv",
                absl::StrCat("name,display_name\nstudies/8,$(touch${IFS}", expanded, ")\nstudies/7,quick\n"));
  const std::string fake =
      absl::StrCat("scalelab() { case \"$*\" in *\" --server=host:7070 --token-file=$HOME/a b\") ",
                   "echo name; echo studies/9/runs/90; echo studies/9 ;; study*) cat ", studies,
                   " ;; \"run list 5 \"*) echo name; echo studies/5/runs/3 ;; "
                   "run*) echo name; echo studies/7/runs/12 ;; esac; }; ");
  const auto completes = [&](const std::string& words, const std::string& expected,
                             const std::string& begin = "") {
    const std::string check = absl::StrCat(
        "bash -c '. ", script, "; ", fake, "COMP_WORDS=(scalelab ", words, " \"", begin,
        "\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _scalelab; [[ \" ${COMPREPLY[*]} \" == *\" ", expected,
        " \"* ]]'");
    EXPECT_EQ(std::system(check.c_str()), 0) << words << " " << begin << " does not suggest " << expected;
  };
  completes("study show", "quick");
  completes("study show", "7");
  completes("study show", "8");
  EXPECT_FALSE(std::filesystem::exists(expanded)) << "the name of a study was expanded";
  completes("curve", "last");
  completes("run logs", "12");
  completes("curve 7 --format", "latex");
  completes("cluster -o", "wide");
  completes("token", "create");
  completes("token create --scope", "submit");
  completes("run list 7 --state", "skipped");
  completes("study init", "communication");
  completes("completion", "fish");
  completes("data verify", "imagefolder");
  completes("curve 7 --panels", "comm");
  completes("study compare 7 8 --panels", "speedup,comm", "speedup,c");
  completes("run logs", "studies/5/runs/3", "studies/5/");
  // The names come from the server of this command line. bash splits its words at ":" and "=".
  const std::string home = std::getenv("HOME");
  const std::string token_file = absl::StrCat("\"\\\"", home, "/a b\\\"\"");
  completes("--server host : 7070 --token-file " + token_file + " study show", "9");
  completes("study show --server = host : 7070 --token-file = " + token_file, "9");
  completes("run logs --server host : 7070 --token-file " + token_file, "90");
  completes("run logs --server host : 7070 --token-file " + token_file, "studies/5/runs/90", "studies/5/");
}

TEST_F(NewUser, CompletionOfFishKnowsTheSame) {
  if (!server::MissingProgram({"fish"}).empty()) GTEST_SKIP() << "fish is not installed";
  const std::string script = WriteFile("completion.fish", RunAsIs({"completion", "fish"}).out);
  const std::string fake = WriteFile("fake.fish",
                                     "function scalelab; switch \"$argv\"\n"
                                     "case \"* --server=host:7070 --token-file=$HOME/token\"\n"
                                     "printf 'name,display_name\\nstudies/9,other\\n'\n"
                                     "case 'study*'; printf 'name,display_name\\nstudies/7,quick\\n'\n"
                                     "case 'run list 5 *'; printf 'name\\nstudies/5/runs/3\\n'\n"
                                     "case 'run*'; printf 'name\\nstudies/7/runs/12\\n'\nend; end\n");
  const auto suggestions = [&](const std::string& line) {
    const std::string file = dir_ + "/suggestions";
    const std::string command = absl::StrCat("fish --no-config -c \"source ", script, "; source ", fake,
                                             "; complete -C '", line, "'\" > ", file, " 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0) << line;
    std::ifstream text(file);
    std::string all = "\n";
    for (std::string word; std::getline(text, word);)
      absl::StrAppend(&all, word.substr(0, word.find('\t')), "\n");
    return all;
  };
  EXPECT_THAT(suggestions("scalelab "), AllOf(HasSubstr("\nstudy\n"), HasSubstr("\ncurve\n")));
  EXPECT_THAT(suggestions("scalelab study su"), HasSubstr("\nsubmit\n"));
  EXPECT_THAT(suggestions("scalelab -o json study show "),
              AllOf(HasSubstr("\n7\n"), HasSubstr("\nquick\n"), HasSubstr("\nlast\n")));
  EXPECT_THAT(suggestions("scalelab run logs "), AllOf(HasSubstr("\n12\n"), Not(HasSubstr("\n7\n"))));
  EXPECT_THAT(suggestions("scalelab curve 7 --format "), HasSubstr("\nlatex\n"));
  EXPECT_THAT(suggestions("scalelab cluster --output "), HasSubstr("\nwide\n"));
  EXPECT_THAT(suggestions("scalelab token create --scope "), HasSubstr("\nsubmit\n"));
  EXPECT_THAT(suggestions("scalelab study submit --req"), HasSubstr("\n--request-id\n"));
  EXPECT_THAT(suggestions("scalelab run list 7 --state "), HasSubstr("\nskipped\n"));
  EXPECT_THAT(suggestions("scalelab study init "), HasSubstr("\ncommunication\n"));
  EXPECT_THAT(suggestions("scalelab completion "), HasSubstr("\nfish\n"));
  EXPECT_THAT(suggestions("scalelab data verify "), HasSubstr("\nimagefolder\n"));
  EXPECT_THAT(suggestions("scalelab curve 7 --panels "), HasSubstr("\ncomm\n"));
  EXPECT_THAT(suggestions("scalelab curve 7 --panels speedup,c"), HasSubstr("\nspeedup,comm\n"));
  EXPECT_THAT(suggestions("scalelab run logs studies/5/"), HasSubstr("\nstudies/5/runs/3\n"));
  // The names come from the server of this command line.
  EXPECT_THAT(suggestions("scalelab --server host:7070 study show --token-file=$HOME/token "),
              HasSubstr("\nother\n"));
  EXPECT_THAT(suggestions("scalelab study show --server=host:7070 --token-file ~/token "),
              HasSubstr("\nother\n"));
}

// Calls the function as bashcompinit does when the user presses the tab key.
TEST_F(NewUser, CompletionOfZshKnowsTheSame) {
  if (!server::MissingProgram({"zsh"}).empty()) GTEST_SKIP() << "zsh is not installed";
  const std::string script = WriteFile("completion.zsh", RunAsIs({"completion", "zsh"}).out);
  const std::string test =
      WriteFile("test.zsh", absl::StrCat("autoload -Uz compinit && compinit -D -u\nsource ", script,
                                         "\nscalelab() { case \"$*\" in\n"
                                         "*\" --server=host:7070 --token-file=$HOME/token\")\n"
                                         "printf 'name,display_name\\nstudies/9,other\\n' ;;\n"
                                         "study*) printf 'name,display_name\\nstudies/7,quick\\n' ;;\n"
                                         "run*) printf 'name\\nstudies/7/runs/12\\n' ;; esac; }\n"
                                         "words=(scalelab \"$@\"); CURRENT=$#words; COMP_WORDS=($words '')\n"
                                         "COMP_CWORD=$CURRENT; words+=(''); CURRENT=$#words\n"
                                         "compgen -F _scalelab -- ''\n"));
  const auto suggestions = [&](const std::string& line) {
    const std::string file = dir_ + "/suggestions";
    const std::string command = absl::StrCat("zsh -f ", test, " ", line, " > ", file, " 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0) << line;
    std::ifstream text(file);
    return "\n" + std::string(std::istreambuf_iterator<char>(text), {});
  };
  EXPECT_THAT(suggestions(""), AllOf(HasSubstr("\nstudy\n"), HasSubstr("\ncurve\n")));
  EXPECT_THAT(suggestions("-o json study show"),
              AllOf(HasSubstr("\n7\n"), HasSubstr("\nquick\n"), HasSubstr("\nlast\n")));
  EXPECT_THAT(suggestions("run logs"), AllOf(HasSubstr("\n12\n"), Not(HasSubstr("\n7\n"))));
  EXPECT_THAT(suggestions("curve 7 --format"), HasSubstr("\nlatex\n"));
  EXPECT_THAT(suggestions("cluster --output"), HasSubstr("\nwide\n"));
  EXPECT_THAT(suggestions("token create --scope"), HasSubstr("\nsubmit\n"));
  EXPECT_THAT(suggestions("run list 7 --state"), HasSubstr("\nskipped\n"));
  EXPECT_THAT(suggestions("study init"), HasSubstr("\ncommunication\n"));
  // The names come from the server of this command line.
  EXPECT_THAT(suggestions("--server host:7070 study show --token-file=$HOME/token"), HasSubstr("\nother\n"));
  EXPECT_THAT(suggestions("study show --server=host:7070 --token-file '~/token'"), HasSubstr("\nother\n"));
}

// Debian's package installs the script as the file _scalelab in a folder of $fpath. An interactive zsh loads it
// when Tab is pressed for the first time, and must complete the word at once.
TEST_F(NewUser, ZshLoadsTheCompletionFromAFolder) {
  if (!server::MissingProgram({"zsh"}).empty()) GTEST_SKIP() << "zsh is not installed";
  WriteFile("_scalelab", RunAsIs({"completion", "zsh"}).out);
  const std::string test = WriteFile("test.zsh",
                                     R"zsh(zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit && compinit -D -u"
zpty -w shell "scalelab() { print \"arguments: \$*.\" }; print rea''dy"
zpty -r shell text '*ready*'
zpty -w -n shell $'scalelab curve 7 --form\tlat\t\n'
zpty -r shell text '*arguments: *.*'
zpty -d shell
print -r -- "$text"
[[ "$text" == *"arguments: curve 7 --format latex."* ]]
)zsh");
  EXPECT_EQ(std::system(absl::StrCat("zsh -f ", test, " ", dir_, " > ", dir_, "/text 2>&1").c_str()), 0);
}

TEST(RunPaces, ShowTheSpeedAndTheTimeThatIsLeft) {
  scalelab::v1::WatchStudyResponse look;
  auto* attempt = look.add_running();
  attempt->set_run("studies/7/runs/12");
  attempt->set_attempt(1);
  attempt->set_total_steps(100);
  RunPaces paces;
  const absl::Time start = absl::FromUnixSeconds(1'795'000'000);
  attempt->set_step(0);
  paces.Add(look, start);
  EXPECT_EQ(paces.Text(*attempt), "");
  attempt->set_step(10);
  paces.Add(look, start + absl::Seconds(30));  // the first steps include the start
  EXPECT_EQ(paces.Text(*attempt), "");
  attempt->set_step(30);
  paces.Add(look, start + absl::Seconds(40));
  EXPECT_EQ(paces.Text(*attempt), "2.000 steps/s, 35s left");
  RunPaces with_batch([](const auto&) { return 64; });
  for (const int step : {10, 30}) {
    attempt->set_step(step);
    with_batch.Add(look, start + absl::Seconds(step));
  }
  EXPECT_EQ(with_batch.Text(*attempt), "64.00 samples/s, 1m10s left");
  attempt->set_attempt(2);
  attempt->set_step(5);
  paces.Add(look, start + absl::Seconds(50));
  EXPECT_EQ(paces.Text(*attempt), "") << "another attempt";
}

}  // namespace
}  // namespace scalelab::client
