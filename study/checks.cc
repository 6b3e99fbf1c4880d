#include "study/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "catalog/device.h"
#include "catalog/run_parameters.h"
#include "study/measure.h"
#include "study/rules.h"
#include "study/sbatch_options.h"

namespace scalelab {
namespace {

using v1::LearningRate;
using v1::Scaling;
using v1::StudySpec;

constexpr double kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kLongestTime = 365 * 86400;
constexpr int kMostAdaptive = 1000;
constexpr double kLeastHalfWidth = 1e-4;

const std::vector<absl::string_view>& RetryCauses() {
  static const auto& causes = *new std::vector<absl::string_view>{"node_fail",
                                                                  "preempted",
                                                                  "worker_lost",
                                                                  "rank_killed",
                                                                  "boot_fail",
                                                                  "out_of_memory",
                                                                  "timeout",
                                                                  "trainer_error",
                                                                  "deadline",
                                                                  "no_finish",
                                                                  "allocation_cancelled",
                                                                  "launch_error"};
  return causes;
}

bool HasControlCharacter(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

void CheckName(const std::string& name, Violations* violations) {
  if (name.empty()) {
    violations->Add("study", "the study has no name; write for example study: my-first-study");
    return;
  }
  bool letters = absl::ascii_isalpha(name[0]) && std::all_of(name.begin(), name.end(), [](unsigned char c) {
                   return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
                 });
  if (!letters || name.size() > 100) {
    violations->Add("study", absl::StrCat("study name ", Quote(name),
                                          " must be a letter, then letters, digits, '-', '_' or '.', "
                                          "100 characters at most"));
  } else if (name == "last" || name == "all") {
    violations->Add("study", absl::StrCat("study name ", Quote(name), " is reserved; choose another"));
  }
}

template <typename Enum>
void CheckEnum(std::string field, absl::string_view name, Enum value, bool valid, Violations* violations) {
  if (!valid) violations->Add(std::move(field), absl::StrCat("unknown ", name, " ", static_cast<int>(value)));
}

void CheckScaling(const Scaling& scaling, Violations* violations) {
  CheckEnum("scaling.mode", "mode", scaling.mode(), Scaling::Mode_IsValid(scaling.mode()), violations);
  if (scaling.global_batch() != 0) {
    violations->CheckRange("scaling.global_batch", "global_batch", scaling.global_batch(), 1, 1 << 30);
    if (scaling.mode() == Scaling::WEAK) {
      violations->Add("scaling.global_batch",
                      "global_batch is for strong scaling; write batch_per_rank, or mode: strong");
    }
  }
  if (scaling.batch_per_rank() != 0) {
    violations->CheckRange("scaling.batch_per_rank", "batch_per_rank", scaling.batch_per_rank(), 1, 1 << 30);
    if (scaling.mode() != Scaling::WEAK) {
      violations->Add("scaling.batch_per_rank",
                      "batch_per_rank is for weak scaling; write mode: weak, or global_batch");
    }
  }
}

void CheckRates(const LearningRate& lr, Violations* violations) {
  if (lr.base() != 0) violations->CheckRange("lr.base", "base", lr.base(), 1e-12, 1e6);
  violations->CheckRange("lr.reference_batch", "reference_batch",
                         lr.reference_batch() == 0 ? 1 : lr.reference_batch(), 1, kMaxInt);
  CheckEnum("lr.rule", "rule", lr.rule(), LearningRate::Rule_IsValid(lr.rule()), violations);
  violations->CheckRange("lr.warmup_epochs", "warmup_epochs", lr.warmup_epochs(), 0, 1e6);
}

// Returns whether `text` is an address such as ada@uni.example. Accepts only characters that are safe in the header of a
// mail and in an argument of a command.
bool IsMailAddress(absl::string_view text) {
  const size_t at = text.find('@');
  if (text.size() > 254 || at == 0 || at == absl::string_view::npos || at + 1 == text.size() ||
      text[0] == '-')
    return false;
  const auto all = [](absl::string_view part, absl::string_view others) {
    return std::all_of(part.begin(), part.end(), [&](unsigned char c) {
      return absl::ascii_isalnum(c) || others.find(static_cast<char>(c)) != absl::string_view::npos;
    });
  };
  return all(text.substr(0, at), ".!#$%&'*+/=?^_`{|}~-") && all(text.substr(at + 1), ".-");
}

void CheckNotify(const v1::Notify& notify, Violations* violations) {
  for (int i = 0; i < notify.on_size(); ++i) {
    CheckEnum(absl::StrCat("notify.on[", i, "]"), "on", notify.on(i),
              v1::Notify::Event_IsValid(notify.on(i)) && notify.on(i) != v1::Notify::EVENT_UNSPECIFIED,
              violations);
  }
  if (notify.mail().empty() && notify.webhook().empty() && notify.command().empty())
    violations->Add("notify", "notify needs mail, webhook or command, for example {mail: ada@uni.example}");
  if (!notify.mail().empty() && !IsMailAddress(notify.mail()))
    violations->Add("notify.mail", absl::StrCat("mail ", Quote(notify.mail()),
                                                " is not an address such as ada@uni.example"));
  const std::string& url = notify.webhook();
  const size_t host = url.find("://") == std::string::npos ? 0 : url.find("://") + 3;
  const bool is_url =
      (url.rfind("http://", 0) == 0 || url.rfind("https://", 0) == 0) && url.size() > host &&
      url[host] != '/' && url.size() <= 2000 &&
      std::none_of(url.begin(), url.end(), [](unsigned char c) { return c <= 0x20 || c >= 0x7f; });
  if (!url.empty() && !is_url) {
    violations->Add("notify.webhook", absl::StrCat("webhook ", Quote(url),
                                                   " must be a URL that begins with https:// or http://, ",
                                                   "2,000 characters at most"));
  }
  if (notify.command().size() > 100 || HasControlCharacter(notify.command()))
    violations->Add("notify.command",
                    "command must be a name of the server's notify_commands, 100 characters at most");
}

void CheckResources(const v1::Resources& resources, Violations* violations) {
  violations->CheckRange("resources.ranks_per_node", "ranks_per_node", resources.ranks_per_node(), 0, 65536);
  violations->CheckRange("resources.cpus_per_rank", "cpus_per_rank", resources.cpus_per_rank(), 0, 4096);
  violations->CheckRange("resources.gpus_per_rank", "gpus_per_rank", resources.gpus_per_rank(), 0, 64);
  // Both become part of #SBATCH lines of a script, where a line break would start a command.
  if (HasControlCharacter(resources.partition()) || resources.partition().find(' ') != std::string::npos) {
    violations->Add("resources.partition",
                    absl::StrCat("partition ", Quote(resources.partition()), " must be one word"));
  }
  violations->CheckRange("resources.time", "time", resources.time_seconds(), 0, kLongestTime);
  violations->CheckRange("resources.memory_mib", "memory_mib", resources.memory_mib(), 0, 1e12);
}

void CheckSlurm(const v1::SlurmOptions& slurm, Violations* violations) {
  std::vector<std::string> names;
  for (const auto& [name, value] : slurm.sbatch_options()) names.push_back(name);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string field = absl::StrCat("slurm.sbatch_options.", name);
    const std::string mistake = SbatchOptionMistake(name, slurm.sbatch_options().at(name));
    if (!mistake.empty()) violations->Add(field, mistake);
  }
}

void CheckNoiseGuard(const v1::NoiseGuard& guard, Violations* violations) {
  if (guard.calibration_ms() != 0)
    violations->CheckRange("noise_guard.calibration_ms", "calibration_ms", guard.calibration_ms(), 10,
                           10'000);
  violations->CheckRange("noise_guard.interval_seconds", "interval_seconds", guard.interval_seconds(), 0,
                         86400);
  violations->CheckRange("noise_guard.max_reruns", "max_reruns", guard.max_reruns(), 0, 100);
  CheckEnum("noise_guard.rerun_if", "rerun_if", guard.rerun_if(),
            v1::NoiseGuard::RerunIf_IsValid(guard.rerun_if()), violations);
  if (guard.rerun_if() == v1::NoiseGuard::NOISY && guard.has_calibrate() && !guard.calibrate())
    violations->Add(
        "noise_guard.rerun_if",
        "rerun_if: noisy needs calibrations; leave out calibrate: false, or write rerun_if: never");
}

v1::AdaptiveRepeats WithDefaults(v1::AdaptiveRepeats repeats) {
  if (repeats.min() == 0) repeats.set_min(2);
  if (repeats.max() == 0) repeats.set_max(std::max(10, repeats.min()));
  return repeats;
}

void CheckAdaptiveRepeats(const StudySpec& spec, Violations* violations) {
  const v1::AdaptiveRepeats repeats = WithDefaults(spec.adaptive_repeats());
  if (spec.repeats() != 0)
    violations->Add("repeats", "repeats and adaptive_repeats exclude each other; leave one of them out");
  violations->CheckRange("repeats.min", "min", repeats.min(), 2, kMostAdaptive);
  violations->CheckRange("repeats.max", "max", repeats.max(), 2, kMostAdaptive);
  if (repeats.min() > repeats.max())
    violations->Add("repeats.max", absl::StrCat("max is ", repeats.max(), " and below min, ", repeats.min()));
  violations->CheckRange("repeats.until.half_width", "half_width", repeats.half_width(), kLeastHalfWidth, 1);
}

}  // namespace

void CheckSections(const StudySpec& spec, Violations* violations) {
  CheckName(spec.study(), violations);
  CheckScaling(spec.scaling(), violations);
  CheckRates(spec.lr(), violations);
  if (spec.repeats() < 0) violations->CheckRange("repeats", "repeats", spec.repeats(), 1, kMaxInt);
  if (spec.has_adaptive_repeats()) CheckAdaptiveRepeats(spec, violations);
  const int repeats =
      spec.has_adaptive_repeats() ? WithDefaults(spec.adaptive_repeats()).max() : spec.repeats();
  if (spec.seed() > std::numeric_limits<int64_t>::max() - std::max(repeats, 1)) {
    violations->Add("seed", "seed is too large: seed + repeat must fit into 64 bits");
  }
  CheckMeasure(spec.measure(), violations);
  CheckEnum("order", "order", spec.order(), StudySpec::Order_IsValid(spec.order()), violations);
  CheckResources(spec.resources(), violations);
  CheckSlurm(spec.slurm(), violations);
  if (spec.retry().has_max()) violations->CheckRange("retry.max", "max", spec.retry().max(), 0, 1000);
  for (int i = 0; i < spec.retry().on_size(); ++i) {
    const std::string& cause = spec.retry().on(i);
    if (std::find(RetryCauses().begin(), RetryCauses().end(), cause) == RetryCauses().end()) {
      violations->Add(absl::StrCat("retry.on[", i, "]"), UnknownName("cause", cause, RetryCauses()));
    }
  }
  violations->CheckRange("limits.concurrent_allocations", "concurrent_allocations",
                         spec.limits().concurrent_allocations(), 0, kMaxRunsPerStudy);
  violations->CheckRange("limits.gpu_hours", "gpu_hours", spec.limits().gpu_hours(), 0, 1e12);
  CheckEnum("allocation", "allocation", spec.allocation(),
            StudySpec::AllocationMode_IsValid(spec.allocation()), violations);
  CheckEnum("on_unusable", "on_unusable", spec.on_unusable(), StudySpec::Unusable_IsValid(spec.on_unusable()),
            violations);
  violations->CheckRange("priority", "priority", spec.priority(), -1000, 1000);
  CheckEnum("visibility", "visibility", spec.visibility(), StudySpec::Visibility_IsValid(spec.visibility()),
            violations);
  if (spec.has_notify()) CheckNotify(spec.notify(), violations);
  CheckNoiseGuard(spec.noise_guard(), violations);
}

void FillDefaults(StudySpec* spec) {
  Scaling* scaling = spec->mutable_scaling();
  if (scaling->mode() == Scaling::MODE_UNSPECIFIED) scaling->set_mode(Scaling::STRONG);
  if (scaling->mode() == Scaling::STRONG && scaling->global_batch() == 0)
    scaling->set_global_batch(kDefaultBatch);
  if (scaling->mode() == Scaling::WEAK && scaling->batch_per_rank() == 0)
    scaling->set_batch_per_rank(kDefaultBatch);
  LearningRate* lr = spec->mutable_lr();
  if (lr->base() == 0) lr->set_base(0.1);
  if (lr->reference_batch() == 0) lr->set_reference_batch(kDefaultBatch);
  if (lr->rule() == LearningRate::RULE_UNSPECIFIED) lr->set_rule(LearningRate::LINEAR);
  if (spec->has_adaptive_repeats()) {
    *spec->mutable_adaptive_repeats() = WithDefaults(spec->adaptive_repeats());
    spec->set_repeats(spec->adaptive_repeats().max());
  }
  if (spec->repeats() == 0) spec->set_repeats(1);
  v1::Measure* measure = spec->mutable_measure();
  if (!measure->has_evaluate()) measure->set_evaluate(true);
  if (!measure->has_warmup_steps()) measure->set_warmup_steps(5);
  if (measure->success() == v1::Measure::SUCCESS_UNSPECIFIED)
    measure->set_success(measure->extract().empty() ? v1::Measure::FINISH : v1::Measure::EXIT_STATUS);
  if (spec->order() == StudySpec::ORDER_UNSPECIFIED) spec->set_order(StudySpec::RANDOMIZED);
  v1::Resources* resources = spec->mutable_resources();
  if (resources->cpus_per_rank() == 0) resources->set_cpus_per_rank(DefaultCores(resources->gpus_per_rank()));
  if (resources->time_seconds() == 0) resources->set_time_seconds(3600);
  v1::Retry* retry = spec->mutable_retry();
  if (!retry->has_max()) retry->set_max(2);
  if (retry->on().empty()) {
    for (const char* cause : {"node_fail", "preempted", "worker_lost", "rank_killed", "boot_fail"}) {
      retry->add_on(cause);
    }
  }
  if (spec->allocation() == StudySpec::ALLOCATION_MODE_UNSPECIFIED) spec->set_allocation(StudySpec::GROUP);
  if (spec->on_unusable() == StudySpec::UNUSABLE_UNSPECIFIED) spec->set_on_unusable(StudySpec::REFUSE);
}

}  // namespace scalelab
