#include "client/session/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/printer.h"
#include "client/output/table_printer.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::RunCounts;
using scalelab::v1::Study;
using scalelab::v1::WatchStudyResponse;

constexpr int kBarWidth = 30;

// Columns of the lines of running attempts.
constexpr int kKeyColumn = 12, kRunBar = 10, kNarrowRunBar = 4, kShortKey = 12, kLeastKey = 6;

// A line of coloured text that is truncated to the width of the terminal.
class Line {
 public:
  explicit Line(const Terminal& terminal) : terminal_(terminal), left_(terminal.width - 1) {}
  Line& Add(absl::string_view text, Tone tone = Tone::kPlain) {
    const std::string cut = Cut(Printable(text), left_, "");
    left_ -= DisplayWidth(cut);
    text_ += Colored(cut, tone, terminal_.color);
    return *this;
  }
  // Pads with at least one space, up to `column`.
  Line& Pad(int column) {
    const int at = terminal_.width - 1 - left_;
    return Add(std::string(static_cast<size_t>(std::max(1, column - at)), ' '));
  }
  std::string Text() const { return text_; }

 private:
  const Terminal& terminal_;
  int left_;
  std::string text_;
};

// Returns a bar of `width` columns that is filled to `share`, in eighths of a column if `unicode`.
std::string Bar(double share, int width, bool unicode) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::clamp(share, 0.0, 1.0) * width * 8);
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += unicode ? "█" : "#";
  int used = eighths / 8;
  if (unicode && eighths % 8 != 0) {
    bar += kEighths[eighths % 8];
    ++used;
  }
  for (; used < width; ++used) bar += unicode ? "░" : ".";
  return bar;
}

// The parts of the line of a running attempt.
struct RunLine {
  std::string name, key, repeat, steps, loss, pace;
  double share = -1;  // of the steps that are done; below 0: unknown
};

RunLine RunLineOf(const WatchStudyResponse::Progress& attempt, const RunPaces& paces) {
  RunLine line;
  line.name = absl::StrCat("  run ", LastPart(attempt.run()));
  line.key = Printable(ShortKeyText(attempt.key()));
  line.repeat = absl::StrCat("repeat ", attempt.repeat(),
                             attempt.attempt() > 1 ? absl::StrCat(" try ", attempt.attempt()) : "");
  if (attempt.total_steps() > 0) {
    line.share = static_cast<double>(attempt.step()) / static_cast<double>(attempt.total_steps());
    line.steps = absl::StrCat(attempt.step(), "/", attempt.total_steps());
  } else {
    line.steps = absl::StrCat("step ", attempt.step());
  }
  if (attempt.has_train_loss()) line.loss = absl::StrCat("loss ", Short(attempt.train_loss()));
  line.pace = paces.Text(attempt);
  return line;
}

// How much of the lines is shown. It is the same for all lines, so that their columns are aligned.
struct RunLayout {
  int key = 0, bar = kRunBar;  // columns; a bar of 0 columns is left out
  bool repeat = true, loss = true;
};

int WidthOf(const RunLine& line, const RunLayout& layout) {
  int width = std::max(kKeyColumn, DisplayWidth(line.name) + 1) + layout.key + 2;
  if (layout.repeat) width += DisplayWidth(line.repeat) + 2;
  if (line.share >= 0 && layout.bar > 0) width += layout.bar + 1;
  width += DisplayWidth(line.steps);
  if (layout.loss && !line.loss.empty()) width += 2 + DisplayWidth(line.loss);
  if (!line.pace.empty()) width += 2 + DisplayWidth(line.pace);
  return width;
}

// Returns a layout whose lines fit into `room` columns if that is possible. Throughput and remaining time are
// never left out: first the bar becomes narrower, then the keys, then less important parts disappear.
RunLayout LayoutOf(const std::vector<RunLine>& lines, int room) {
  RunLayout layout;
  for (const RunLine& line : lines) layout.key = std::max(layout.key, DisplayWidth(line.key));
  const int whole_key = layout.key;
  const auto excess = [&] {
    int widest = 0;
    for (const RunLine& line : lines) widest = std::max(widest, WidthOf(line, layout));
    return widest - room;
  };
  const auto shorten_key = [&](int least) {
    if (const int over = excess(); over > 0)
      layout.key = std::max(std::min(layout.key, least), layout.key - over);
  };
  if (const int over = excess(); over > 0) layout.bar = std::max(kNarrowRunBar, layout.bar - over);
  shorten_key(kShortKey);
  if (excess() > 0) layout.repeat = false;
  if (excess() > 0) layout.bar = 0;
  shorten_key(kLeastKey);
  if (excess() > 0) layout.loss = false;
  // The last part that disappeared may have left room.
  if (const int over = excess(); over < 0) layout.key = std::min(whole_key, layout.key - over);
  return layout;
}

// Truncates a key, but keeps its last value whole if there is room: "nati…ranks=4".
std::string CutKey(const std::string& key, int width, absl::string_view ellipsis) {
  const size_t space = key.rfind(' ');
  if (DisplayWidth(key) <= width || space == std::string::npos) return Cut(key, width, ellipsis);
  const std::string last = key.substr(space + 1);
  const int front = width - DisplayWidth(last);
  if (front < 3) return Cut(key, width, ellipsis);
  return absl::StrCat(Cut(key.substr(0, space + 1), front, ellipsis), last);
}

Tone ToneOf(Study::State state) {
  switch (state) {
    case Study::SUCCEEDED:
      return Tone::kGood;
    case Study::FAILED:
    case Study::CANCELLED:
      return Tone::kBad;
    case Study::RUNNING:
      return Tone::kBusy;
    default:
      return Tone::kDim;
  }
}

}  // namespace

int TotalRuns(const RunCounts& c) {
  return c.queued() + c.running() + c.succeeded() + c.failed() + c.cancelled() + c.skipped();
}

bool IsFinal(const Study& study) {
  return study.state() == Study::SUCCEEDED || study.state() == Study::FAILED ||
         study.state() == Study::CANCELLED;
}

double DoneShare(const WatchStudyResponse& look) {
  const RunCounts& counts = look.study().counts();
  const int total = TotalRuns(counts);
  if (total == 0) return 0;
  double done = counts.succeeded() + counts.failed() + counts.cancelled() + counts.skipped();
  for (const auto& attempt : look.running()) {
    if (attempt.total_steps() <= 0) continue;
    done += std::clamp(static_cast<double>(attempt.step()) / static_cast<double>(attempt.total_steps()), 0.0,
                       1.0);
  }
  return std::min(1.0, done / total);
}

void PaceEstimate::Add(double done_share, absl::Time now) {
  if (!first_time_) {
    first_time_ = now;
    first_share_ = done_share;
  }
  last_time_ = now;
  last_share_ = done_share;
}

std::optional<absl::Duration> PaceEstimate::Left() const {
  if (!first_time_ || last_share_ - first_share_ < 0.001) return std::nullopt;
  const absl::Duration passed = *last_time_ - *first_time_;
  if (passed < absl::Seconds(2)) return std::nullopt;
  return passed * ((1 - last_share_) / (last_share_ - first_share_));
}

void RunPaces::Add(const WatchStudyResponse& look, absl::Time now) {
  std::map<std::pair<std::string, int>, Pace> live;
  for (const auto& attempt : look.running()) {
    const auto known = paces_.find({attempt.run(), attempt.attempt()});
    // The steps before the first message do not count, because it is unknown how long they took.
    const bool go_on = known != paces_.end() && known->second.first_step > 0;
    Pace pace = go_on ? known->second : Pace{attempt.step(), attempt.step(), now, now};
    if (attempt.step() > pace.last_step) {
      pace.last_step = attempt.step();
      pace.last_time = now;
    }
    live[{attempt.run(), attempt.attempt()}] = pace;
  }
  paces_ = std::move(live);
}

std::string RunPaces::Text(const WatchStudyResponse::Progress& attempt) const {
  const auto known = paces_.find({attempt.run(), attempt.attempt()});
  if (known == paces_.end()) return "";
  const Pace& pace = known->second;
  const double seconds = absl::ToDoubleSeconds(pace.last_time - pace.first_time);
  if (seconds < 0.5 || pace.last_step <= pace.first_step) return "";
  const double speed = static_cast<double>(pace.last_step - pace.first_step) / seconds;
  const auto steps_left = static_cast<double>(attempt.total_steps() - attempt.step());
  const auto batch = static_cast<double>(batch_of_ ? batch_of_(attempt) : 0);
  return absl::StrCat(
      batch > 0 ? absl::StrCat(Short(speed * batch), " samples/s") : absl::StrCat(Short(speed), " steps/s"),
      steps_left > 0 ? absl::StrCat(", ", Span(steps_left / speed), " left") : "");
}

std::string ProgressLine(const WatchStudyResponse& look) {
  const RunCounts& counts = look.study().counts();
  const int over = counts.succeeded() + counts.failed() + counts.cancelled() + counts.skipped();
  std::string line =
      absl::StrFormat("%s %s: %d of %d runs done", look.study().name(),
                      EnumText(Study::State_Name(look.study().state())), over, TotalRuns(counts));
  const auto add = [&line](int count, absl::string_view what) {
    if (count > 0) absl::StrAppend(&line, ", ", count, " ", what);
  };
  add(counts.running(), "running");
  add(counts.queued(), "queued");
  add(counts.failed(), "failed");
  add(counts.cancelled(), "cancelled");
  add(counts.skipped(), "not needed");
  if (!look.study().pause_reason().empty()) {
    absl::StrAppend(&line, "; paused: ", look.study().pause_reason(),
                    "; repair the cause, then run `scalelab study resume ", look.study().name(), "`");
  } else if (!look.waiting_reason().empty()) {
    absl::StrAppend(&line, "; waiting: ", look.waiting_reason());
  }
  return Printable(line);
}

std::vector<std::string> ProgressDisplay(const WatchStudyResponse& look, absl::Duration elapsed,
                                         std::optional<absl::Duration> left, const Terminal& terminal,
                                         const RunPaces& paces) {
  const Study& study = look.study();
  const RunCounts& counts = study.counts();
  std::vector<std::string> lines;

  Line head(terminal);
  head.Add(study.name()).Add(" ").Add(study.display_name()).Add("  ");
  head.Add(EnumText(Study::State_Name(study.state())), ToneOf(study.state()));
  head.Add("  ").Add(Span(absl::ToDoubleSeconds(elapsed)), Tone::kDim);
  if (left && !IsFinal(study))
    head.Add(absl::StrCat("  about ", Span(absl::ToDoubleSeconds(*left)), " left"), Tone::kDim);
  lines.push_back(head.Text());

  Line bar(terminal);
  const int over = counts.succeeded() + counts.failed() + counts.cancelled() + counts.skipped();
  const int bar_width = std::max(5, std::min(kBarWidth, terminal.width - 40));
  bar.Add(Bar(DoneShare(look), bar_width, terminal.unicode), counts.failed() > 0 ? Tone::kBad : Tone::kGood);
  bar.Add(absl::StrFormat(" %d/%d runs", over, TotalRuns(counts)));
  const auto add = [&bar](int count, absl::string_view what, Tone tone) {
    if (count > 0) bar.Add("  ").Add(absl::StrCat(count, " ", what), tone);
  };
  add(counts.running(), "running", Tone::kBusy);
  add(counts.queued(), "queued", Tone::kDim);
  add(counts.failed(), "failed", Tone::kBad);
  add(counts.cancelled(), "cancelled", Tone::kBad);
  add(counts.skipped(), "not needed", Tone::kDim);
  lines.push_back(bar.Text());

  const int room = std::max(1, terminal.height - 5);
  const int shown = std::min(room, look.running_size());
  std::vector<RunLine> runs;
  for (int i = 0; i < shown; ++i) runs.push_back(RunLineOf(look.running(i), paces));
  const RunLayout layout = LayoutOf(runs, terminal.width - 1);
  for (const RunLine& run : runs) {
    Line line(terminal);
    line.Add(run.name).Pad(kKeyColumn);
    line.Add(CutKey(run.key, layout.key, terminal.unicode ? "…" : "~")).Pad(kKeyColumn + layout.key + 2);
    if (layout.repeat) line.Add(run.repeat).Add("  ");
    if (run.share >= 0 && layout.bar > 0)
      line.Add(Bar(run.share, layout.bar, terminal.unicode), Tone::kBusy).Add(" ");
    line.Add(run.steps);
    if (layout.loss && !run.loss.empty()) line.Add("  ").Add(run.loss);
    if (!run.pace.empty()) line.Add("  ").Add(run.pace, Tone::kDim);
    lines.push_back(line.Text());
  }
  if (look.running_size() > shown) {
    lines.push_back(
        Line(terminal).Add(absl::StrCat("  and ", look.running_size() - shown, " more"), Tone::kDim).Text());
  }
  if (!study.pause_reason().empty()) {
    lines.push_back(Line(terminal).Add(absl::StrCat("paused: ", study.pause_reason()), Tone::kBad).Text());
  } else if (!look.waiting_reason().empty()) {
    lines.push_back(Line(terminal).Add(absl::StrCat("waiting: ", look.waiting_reason()), Tone::kDim).Text());
  }
  return lines;
}

}  // namespace scalelab::client
