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
  int key_width = 0;
  for (int i = 0; i < shown; ++i)
    key_width = std::max(key_width, DisplayWidth(ShortKeyText(look.running(i).key())));
  for (int i = 0; i < shown; ++i) {
    const auto& attempt = look.running(i);
    Line line(terminal);
    line.Add(absl::StrCat("  run ", LastPart(attempt.run()))).Pad(12);
    line.Add(ShortKeyText(attempt.key())).Pad(12 + key_width + 2);
    line.Add(absl::StrCat("repeat ", attempt.repeat(),
                          attempt.attempt() > 1 ? absl::StrCat(" try ", attempt.attempt()) : ""));
    line.Add("  ");
    if (attempt.total_steps() > 0) {
      const double share = static_cast<double>(attempt.step()) / static_cast<double>(attempt.total_steps());
      line.Add(Bar(share, 10, terminal.unicode), Tone::kBusy);
      line.Add(absl::StrCat(" ", attempt.step(), "/", attempt.total_steps()));
    } else {
      line.Add(absl::StrCat("step ", attempt.step()));
    }
    if (attempt.has_train_loss()) line.Add(absl::StrCat("  loss ", Short(attempt.train_loss())));
    if (const std::string pace = paces.Text(attempt); !pace.empty()) line.Add("  ").Add(pace, Tone::kDim);
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
