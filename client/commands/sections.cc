#include "client/commands/sections.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/output/cells.h"
#include "client/output/text.h"
#include "client/session/progress.h"

namespace scalelab::client {
namespace {

using google::protobuf::RepeatedPtrField;
using scalelab::v1::Attempt;
using scalelab::v1::NodeInfo;
using scalelab::v1::Reason;
using scalelab::v1::Run;
using scalelab::v1::Study;

Tone SectionsToneOf(const std::string& state) {
  if (state == "succeeded") return Tone::kGood;
  if (state == "failed" || state == "cancelled") return Tone::kBad;
  return state == "running" ? Tone::kBusy : Tone::kDim;
}

using FactList = std::vector<std::pair<std::string, std::string>>;

FactList FactsOf(const NodeInfo& node) {
  const std::map<std::string, std::string> software(node.software().begin(), node.software().end());
  std::map<std::string, int> gpus;
  for (const std::string& gpu : node.gpus()) ++gpus[gpu];
  std::vector<std::string> devices;
  for (const auto& [gpu, count] : gpus) devices.push_back(absl::StrCat(count, " x ", gpu));
  return {{"CPU", node.cpu_model()},
          {"cores", node.cpus() == 0 ? "" : absl::StrCat(node.cpus())},
          {"memory", node.memory_bytes() == 0 ? "" : Bytes(static_cast<double>(node.memory_bytes()))},
          {"GPUs", absl::StrJoin(devices, ", ")},
          {"system", node.os()},
          {"software", absl::StrJoin(software, ", ", absl::PairFormatter(" "))}};
}

}  // namespace

Section Facts(std::vector<std::pair<std::string, Cell>> facts) {
  facts.erase(std::remove_if(facts.begin(), facts.end(), [](const auto& f) { return f.second.text.empty(); }),
              facts.end());
  Section section;
  section.columns = {{"field"}, {"value"}};
  section.header = false;
  section.rows = [facts = std::move(facts)](const RowSink& sink) {
    for (const auto& [name, value] : facts) sink({Cell(absl::StrCat(name, ":"), Tone::kDim), value});
  };
  return section;
}

Cell StateCell(Study::State state) {
  const std::string text = EnumText(Study::State_Name(state));
  return {text, SectionsToneOf(text)};
}

Cell StateCell(Run::State state) {
  const std::string text = EnumText(Run::State_Name(state));
  return {text, SectionsToneOf(text)};
}

Cell StateCell(Attempt::State state) {
  const std::string text = EnumText(Attempt::State_Name(state));
  return {text, SectionsToneOf(text)};
}

std::string Took(const google::protobuf::Timestamp& start, const google::protobuf::Timestamp& finish,
                 absl::Time now) {
  if (Seconds(start) == 0) return "";
  const double end = Seconds(finish) != 0 ? Seconds(finish) : absl::ToDoubleSeconds(now - absl::UnixEpoch());
  return Span(std::max(0.0, end - Seconds(start)));
}

std::string RunsText(int64_t runs, int64_t baseline_runs) {
  if (baseline_runs == 0) return absl::StrCat(runs);
  return absl::StrCat(runs, " + ", baseline_runs, " baseline runs");
}

std::string RepeatsText(const scalelab::v1::StudySpec& spec) {
  const auto& rule = spec.adaptive_repeats();
  if (!spec.has_adaptive_repeats()) return absl::StrCat(std::max(1, spec.repeats()));
  return absl::StrCat(std::max(2, rule.min()), " to ", rule.max() == 0 ? 10 : rule.max(),
                      ", until the half width of the intervals is ", 100 * rule.half_width(), "%");
}

std::string CountsText(const scalelab::v1::RunCounts& counts) {
  std::string text = absl::StrCat(TotalRuns(counts), ": ", counts.queued(), " queued, ", counts.running(),
                                  " running, ", counts.succeeded(), " succeeded, ", counts.failed(),
                                  " failed, ", counts.cancelled(), " cancelled");
  if (counts.skipped() > 0) absl::StrAppend(&text, ", ", counts.skipped(), " not needed");
  return text;
}

Section ReasonTable(const RepeatedPtrField<Reason>& reasons, absl::Time now) {
  using In = Column::In;
  Section section;
  section.columns = {{"#", In::kTables, true}, {"for", In::kTables, true}, {"next try", In::kTables},
                     {"kind", In::kCsv},       {"kind", In::kWide},        {"subject", In::kCsv},
                     {"about", In::kWide},     {"why", In::kTables},       {"message", In::kCsv},
                     {"since_time", In::kCsv}, {"next_try_time", In::kCsv}};
  for (Column& column : section.columns) column.wrapped = column.title == "why";
  section.rows = [&reasons, now](const RowSink& sink) {
    for (int i = 0; i < reasons.size(); ++i) {
      const Reason& r = reasons[i];
      const std::string kind = EnumText(Reason::Kind_Name(r.kind()));
      // The clocks of client and server may differ slightly, so avoid negative ages.
      const std::string age = r.has_since_time() ? Span(std::max(0.0, Since(r.since_time(), now))) : "";
      const std::string next = r.has_next_try_time()
                                   ? absl::StrCat("in ", Span(std::max(0.0, -Since(r.next_try_time(), now))))
                                   : "";
      sink({absl::StrCat(i + 1), age, next, kind, kind, r.subject(), r.subject(), r.message(), r.message(),
            UtcTime(r.since_time()), UtcTime(r.next_try_time())});
    }
  };
  return section;
}

Section StudyTable(const RepeatedPtrField<Study>& studies, absl::Time now) {
  using In = Column::In;
  Section section;
  section.columns = {{"name"},
                     {"display_name", In::kCsv},
                     {"study", In::kTables, false, true},
                     {"owner"},
                     {"state"},
                     {"done", In::kTables, true},
                     {"queued", In::kCsv},
                     {"running", In::kAll, true},
                     {"succeeded", In::kCsv},
                     {"failed", In::kAll, true},
                     {"cancelled", In::kCsv},
                     {"created", In::kTables, false, false, 2},
                     {"took", In::kTables, true, false, 1},
                     {"started", In::kWide},
                     {"finished", In::kWide},
                     {"create_time", In::kCsv},
                     {"start_time", In::kCsv},
                     {"finish_time", In::kCsv},
                     {"skipped", In::kCsv}};
  section.empty = "no studies yet: `scalelab study submit FILE` creates one";
  section.rows = [&studies, now](const RowSink& sink) {
    for (const Study& s : studies) {
      const auto& c = s.counts();
      const int over = c.succeeded() + c.failed() + c.cancelled() + c.skipped();
      sink({s.name(), s.display_name(), s.display_name(), s.owner(), StateCell(s.state()),
            absl::StrCat(over, "/", TotalRuns(c)), absl::StrCat(c.queued()), absl::StrCat(c.running()),
            absl::StrCat(c.succeeded()),
            Cell(absl::StrCat(c.failed()), c.failed() > 0 ? Tone::kBad : Tone::kPlain),
            absl::StrCat(c.cancelled()), LocalTime(s.create_time()),
            Took(s.start_time(), s.finish_time(), now), LocalTime(s.start_time()), LocalTime(s.finish_time()),
            UtcTime(s.create_time()), UtcTime(s.start_time()), UtcTime(s.finish_time()),
            absl::StrCat(c.skipped())});
    }
  };
  return section;
}

Section NodeFacts(const RepeatedPtrField<NodeInfo>& nodes, const RepeatedPtrField<std::string>& names) {
  std::vector<std::pair<FactList, std::vector<std::string>>>
      kinds;  // kinds of nodes, with the names of their nodes
  for (int i = 0; i < nodes.size(); ++i) {
    FactList facts = FactsOf(nodes[i]);
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == facts; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {facts, {}});
    kind->second.push_back(i < names.size() ? names[i] : "");
  }
  std::vector<std::pair<std::string, Cell>> all;
  for (const auto& [facts, of] : kinds) {
    all.emplace_back("nodes", names.empty() ? absl::StrCat(of.size()) : absl::StrJoin(of, ", "));
    all.insert(all.end(), facts.begin(), facts.end());
  }
  return Facts(std::move(all));
}

Section CodeFacts(const scalelab::v1::CodeSnapshot& code, std::vector<std::pair<std::string, Cell>> more) {
  for (const auto& file : code.files())
    more.emplace_back("file", absl::StrCat(file.path(), ", SHA-256 ", file.sha256()));
  if (!code.git_root().empty()) {
    more.emplace_back("git repository", code.git_root());
    more.emplace_back("commit", code.git_commit().empty() ? "none" : code.git_commit());
    std::string changes = !code.has_git_dirty() ? "unknown" : code.git_dirty() ? "yes" : "none";
    if (!code.diff_sha256().empty())
      absl::StrAppend(&changes, ", SHA-256 ", code.diff_sha256(), ", in ", code.diff_path());
    more.emplace_back("changes since then", std::move(changes));
  }
  return Facts(std::move(more));
}

Section RunTable(const RepeatedPtrField<Run>& runs, absl::Time now) {
  using In = Column::In;
  std::vector<const google::protobuf::Struct*> keys;
  for (const Run& run : runs) keys.push_back(&run.key());
  const std::vector<std::string> axes = AxesOf(keys);
  Section section;
  section.columns = {{"run", In::kTables, true}, {"name", In::kCsv}, {"position", In::kCsv}};
  for (const std::string& axis : axes)
    section.columns.push_back({axis, In::kAll, axis == "ranks", axis != "ranks"});
  for (Column column : std::vector<Column>{{"repeat", In::kAll, true, false, 2},
                                           {"state"},
                                           {"cause", In::kAll, false, false, 1},
                                           {"took", In::kTables, true, false, 3},
                                           {"start_time", In::kCsv},
                                           {"finish_time", In::kCsv},
                                           {"samples/s", In::kTables, true},
                                           {"throughput", In::kCsv},
                                           {"started", In::kWide},
                                           {"finished", In::kWide},
                                           {"message", In::kAll, false, true, 0, true}}) {
    section.columns.push_back(std::move(column));
  }
  section.empty = "no such runs";
  section.rows = [&runs, axes, now](const RowSink& sink) {
    for (const Run& run : runs) {
      std::vector<Cell> row = {LastPart(run.name()), run.name(), absl::StrCat(run.position())};
      for (const std::string& axis : axes) {
        // Baseline runs have their own engine even if the grid has no engine axis.
        row.emplace_back(AxisText(run.key(), axis, axis == "engine" ? run.spec().engine() : ""));
      }
      const auto throughput = run.summary().find("run/throughput");
      const bool has = throughput != run.summary().end();
      for (Cell cell : std::vector<Cell>{
               absl::StrCat(run.repeat()), StateCell(run.state()), EnumText(Attempt::Cause_Name(run.cause())),
               Took(run.start_time(), run.finish_time(), now), UtcTime(run.start_time()),
               UtcTime(run.finish_time()), has ? Short(throughput->second) : "",
               has ? Exact(throughput->second) : "", LocalTime(run.start_time()),
               LocalTime(run.finish_time()), run.message()}) {
        row.push_back(std::move(cell));
      }
      sink(row);
    }
  };
  return section;
}

}  // namespace scalelab::client
