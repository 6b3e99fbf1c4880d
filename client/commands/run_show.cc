// `scalelab run show RUN`: shows one run with its attempts and results.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "catalog/run_parameters.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/output/json_printer.h"
#include "client/output/text.h"
#include "client/session/selectors.h"
#include "study/values.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Attempt;
using scalelab::v1::GetRunRequest;
using scalelab::v1::Run;
using scalelab::v1::RunService;

struct RunShowOptions {
  std::string run;
};

// Returns the malformed event lines of the last attempt that has any, or an empty text.
std::string MalformedText(const Run& run) {
  std::string text;
  for (const Attempt& a : run.attempts()) {
    if (a.malformed_lines() == 0) continue;
    text =
        absl::StrCat(a.malformed_lines(), " in attempt ", a.number(), "; first: ", a.first_malformed_line());
  }
  return text;
}

// Returns the parameters that are not at their defaults, for example "dataset=synthetic epochs=3". Those in the key of
// the run are left out, because the table shows them as its cell.
std::string ParametersText(const Run& run) {
  if (!run.has_spec()) return "";
  scalelab::v1::RunSpec defaults;
  SetDefaults(&defaults);
  std::vector<std::string> parameters;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!run.key().fields().contains(name)) parameters.push_back(absl::StrCat(name, "=", value));
  };
  for (const RunParameter& parameter : RunParameters()) {
    const std::string name(parameter.name), value = FieldText(parameter, run.spec());
    // Zero that is not a possible value, and an empty text, mean that the parameter is not set.
    const bool zero_is_value =
        parameter.type == ParameterType::kBool || (IsNumber(parameter.type) && parameter.min <= 0);
    if (!HasField(parameter, run.spec()) && !zero_is_value) continue;
    if (parameter.type == ParameterType::kMap) {
      const auto& map = name == "env"      ? run.spec().env()
                        : name == "params" ? run.spec().params()
                                           : run.spec().extract();
      for (const std::string& member : AxesOf({&map}))
        add(absl::StrCat(name, ".", member), ValueText(map.fields().at(member)));
    } else if (parameter.type == ParameterType::kStringList) {
      add(name, absl::StrCat("[", absl::StrJoin(run.spec().command(), ", "), "]"));
    } else if (value != FieldText(parameter, defaults)) {
      add(name, value);
    }
  }
  return absl::StrJoin(parameters, " ");
}

Section RunShowDetails(const Run& run, bool wide, absl::Time now) {
  return Facts({{"run", run.name()},
                {"cell", KeyText(run.key())},
                {"parameters", ParametersText(run)},
                {"repeat", absl::StrCat(run.repeat())},
                {"position", absl::StrCat(run.position())},
                {"state", StateCell(run.state())},
                {"cause", EnumText(Attempt::Cause_Name(run.cause()))},
                {"message", run.message()},
                {"started", LocalTime(run.start_time())},
                {"finished", LocalTime(run.finish_time())},
                {"took", Took(run.start_time(), run.finish_time(), now)},
                {"fingerprint", run.fingerprint()},
                {"malformed lines", MalformedText(run)},
                {"spec", wide ? ToJson(run.spec(), false) : ""}});
}

Section Attempts(const Run& run, absl::Time now) {
  using In = Column::In;
  Section section;
  section.title = "Attempts";
  section.columns = {{"attempt", In::kAll, true},
                     {"state"},
                     {"cause"},
                     {"exit", In::kAll, true},
                     {"nodes", In::kAll, false, true},
                     {"started", In::kAll, false, false, 1},
                     {"took", In::kAll, true, false, 2},
                     {"malformed", In::kWide, true},
                     {"parameters", In::kWide},
                     {"directory", In::kAll, false, false, 3}};
  section.empty = "no attempt yet";
  section.rows = [&run, now](const RowSink& sink) {
    for (const Attempt& a : run.attempts()) {
      sink({absl::StrCat(a.number()), StateCell(a.state()), EnumText(Attempt::Cause_Name(a.cause())),
            a.has_exit_status() ? absl::StrCat(a.exit_status()) : "", absl::StrJoin(a.nodes(), ","),
            LocalTime(a.assign_time()), Took(a.assign_time(), a.finish_time(), now),
            absl::StrCat(a.malformed_lines()), a.parameter_hash(), a.directory()});
    }
  };
  return section;
}

// Returns the complete messages of the attempts. The message of the run is shown with the run.
Section AttemptMessages(const Run& run) {
  std::vector<std::pair<std::string, Cell>> facts;
  for (const Attempt& a : run.attempts()) {
    if (a.message() != run.message()) facts.emplace_back(absl::StrCat("attempt ", a.number()), a.message());
  }
  const bool any = std::ranges::any_of(facts, [](const auto& fact) { return !fact.second.text.empty(); });
  Section section = Facts(std::move(facts));
  section.in_tables = any;
  return section;
}

// Returns whether the run was repeated because the attempt was noisy.
bool WasRepeated(const Attempt& attempt) {
  return attempt.state() == Attempt::FAILED && attempt.cause() == Attempt::NOISY;
}

// Returns the throughput of each attempt whose ranks all finished, for example
// "attempt 1 (noisy, not counted):  812.4 samples/s, 8.600 s an epoch".
Section AttemptResults(const Run& run) {
  std::vector<std::pair<std::string, Cell>> facts;
  for (const Attempt& a : run.attempts()) {
    std::vector<std::string> values;
    if (a.has_throughput()) values.push_back(absl::StrCat(Short(a.throughput()), " samples/s"));
    if (a.has_epoch_seconds()) values.push_back(absl::StrCat(Short(a.epoch_seconds()), " s an epoch"));
    const char* counted = a.cause() == Attempt::NOISY ? "noisy, counted" : "counted";
    if (WasRepeated(a)) counted = "noisy, not counted";
    facts.emplace_back(absl::StrCat("attempt ", a.number(), " (", counted, ")"), absl::StrJoin(values, ", "));
  }
  Section section = Facts(std::move(facts));
  section.title = "Results of attempts";
  return section;
}

// Returns the measured noise of the nodes; docs/users/noise.md has the limits.
Section Noise(const Run& run) {
  using In = Column::In;
  Section section;
  section.title = "Other load";
  section.columns = {{"attempt", In::kAll, true},
                     {"node"},
                     {"when"},
                     {"core M/s", In::kAll, true},
                     {"memory GB/s", In::kAll, true},
                     {"all-reduce GB/s", In::kAll, true},
                     {"other load", In::kAll, true},
                     {"waiting", In::kAll, true},
                     {"steal", In::kAll, true},
                     {"throttled", In::kAll, true}};
  section.empty = "not measured";
  const auto percent = [](bool has, double share) {
    return has ? absl::StrFormat("%.1f%%", 100 * share) : "-";
  };
  section.rows = [&run, percent](const RowSink& sink) {
    for (const Attempt& a : run.attempts()) {
      for (const auto& noise : a.noise()) {
        const auto calibration = [&](const char* when, const scalelab::v1::Calibration& c) {
          sink({absl::StrCat(a.number()), noise.node(), when, absl::StrFormat("%.0f", c.compute_rate()),
                absl::StrFormat("%.2f", c.memory_rate() / 1e9),
                c.has_all_reduce_rate() ? absl::StrFormat("%.2f", c.all_reduce_rate() / 1e9) : "-",
                percent(c.has_other_load(), c.other_load()), percent(c.has_cpu_pressure(), c.cpu_pressure()),
                "-", "-"});
        };
        if (noise.has_before()) calibration("before", noise.before());
        sink({absl::StrCat(a.number()), noise.node(), "during", "-", "-", "-",
              percent(noise.has_other_load(), noise.other_load()), "-",
              percent(noise.has_steal(), noise.steal()),
              noise.has_throttle_events() ? absl::StrCat(noise.throttle_events()) : "-"});
        if (noise.has_after()) calibration("after", noise.after());
      }
    }
  };
  return section;
}

Section RunShowSummary(const Run& run) {
  Section section;
  section.title = "Results";
  section.columns = {{"metric"}, {"value", Column::In::kAll, true}};
  section.header = false;
  section.empty = "none";
  section.rows = [&run](const RowSink& sink) {
    const std::map<std::string, double> sorted(run.summary().begin(), run.summary().end());
    for (const auto& [key, value] : sorted) {
      // Leave out the many numbers that only `predict` uses; -o json shows them.
      if (!key.starts_with("bucket/")) sink({key, Short(value)});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteRunShow(const RunShowOptions& options, Session& session) {
  const auto name = RunName(options.run);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetRunRequest request;
  request.set_name(*name);
  const auto response = (*server)->Call((*server)->runs(), &RunService::Stub::GetRun, request);
  if (!response.ok()) return response.status();
  const Run& run = response->run();
  google::protobuf::RepeatedPtrField<Run> one;
  *one.Add() = run;
  const bool wide = session.options().output == OutputFormat::kWide;
  Answer answer{
      *response,
      {RunShowDetails(run, wide, session.now()), Attempts(run, session.now()), AttemptMessages(run)}};
  const bool repeated = std::any_of(run.attempts().begin(), run.attempts().end(),
                                    [](const Attempt& a) { return WasRepeated(a) && a.has_throughput(); });
  if (repeated) answer.sections.push_back(AttemptResults(run));
  const bool noise = std::any_of(run.attempts().begin(), run.attempts().end(),
                                 [](const Attempt& a) { return a.noise_size() > 0; });
  if (wide && noise) answer.sections.push_back(Noise(run));
  // The results come from the last attempt.
  if (!run.attempts().empty() && !run.attempts().rbegin()->node_infos().empty()) {
    const Attempt& last = *run.attempts().rbegin();
    answer.sections.push_back(NodeFacts(last.node_infos(), last.nodes()));
    answer.sections.back().title = "Hardware and software";
  }
  if (!run.attempts().empty() && run.attempts().rbegin()->has_code()) {
    answer.sections.push_back(CodeFacts(run.attempts().rbegin()->code()));
    answer.sections.back().title = "Code";
  }
  if (!run.summary().empty()) answer.sections.push_back(RunShowSummary(run));
  answer.main = answer.sections.size();
  answer.sections.push_back(RunTable(one, session.now()));
  answer.sections.back().in_tables = false;
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddRunShow(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunShowOptions>();
  CLI::App* command =
      run.add_subcommand("show", "Show one run: why it waits or how it ended, and its attempts");
  command->add_option("RUN", options->run, "Number, runs/NUMBER, or studies/NUMBER/runs/NUMBER")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunShow(*options, s); }; });
}

}  // namespace scalelab::client
