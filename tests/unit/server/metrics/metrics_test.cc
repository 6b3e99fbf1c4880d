#include "server/metrics/metrics.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/synchronization/notification.h"
#include "server/metrics/exporter.h"
#include "tests/unit/server/metrics/http_get.h"
#include "tests/unit/server/services/api_methods.h"
#include "tests/unit/server/services/rpc_fixture.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs `promtool ARGUMENTS` with this input. Returns its output, and an empty text if it found nothing to report; skips
// the test if promtool is not installed.
std::string Promtool(const std::string& arguments, const std::string& input = "") {
  std::string pattern = "/tmp/scalelab-metrics-XXXXXX";
  const int fd = mkstemp(pattern.data());
  EXPECT_EQ(write(fd, input.data(), input.size()), static_cast<ssize_t>(input.size()));
  close(fd);
  FILE* pipe = popen(("promtool " + arguments + " < " + pattern + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  unlink(pattern.c_str());
  return WEXITSTATUS(status) == 0 ? "" : output.empty() ? "promtool failed" : output;
}
bool HasPromtool() { return system("command -v promtool >/dev/null 2>&1") == 0; }
constexpr char kNoPromtool[] = "promtool is missing; install the Debian package prometheus";

// Returns the value of a series: a line that begins with `series` and a space.
double ValueOf(const std::string& text, const std::string& series) {
  const size_t at = ("\n" + text).find("\n" + series + " ");
  if (at == std::string::npos) return -1;
  return std::strtod(text.c_str() + at + series.size(), nullptr);
}

TEST(Metrics, CommitsCountPointsAndAttempts) {
  Metrics metrics("1.2.3");
  db::WriteBatch batch;
  batch.appends.resize(2);
  batch.appends[0].columns.resize(2);
  batch.appends[0].columns[0].line = {1, 2, 3};
  batch.appends[0].columns[1].line = {1, 2};
  batch.attempts.resize(4);
  batch.attempts[0].number = 1;
  batch.attempts[1].number = 2;
  batch.attempts[2].state = db::AttemptState::kFailed;
  batch.attempts[2].cause = db::Cause::kNodeFail;
  batch.attempts[3].state = db::AttemptState::kRunning;
  metrics.Committed(batch, absl::Milliseconds(7), absl::OkStatus());
  metrics.Committed(batch, absl::Milliseconds(7), absl::ResourceExhaustedError("full"));
  const std::string text = metrics.Text();
  EXPECT_EQ(ValueOf(text, R"(scalelab_commits_total{result="ok"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_commits_total{result="error"})"), 1);
  EXPECT_EQ(ValueOf(text, "scalelab_points_stored_total"), 5);
  EXPECT_EQ(ValueOf(text, R"(scalelab_attempts_started_total{kind="first"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_attempts_started_total{kind="retry"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_attempts_ended_total{cause="node_fail"})"), 1);
  EXPECT_EQ(ValueOf(text, "scalelab_commit_seconds_count"), 2);
  EXPECT_EQ(ValueOf(text, R"(scalelab_commit_seconds_bucket{le="0.005"})"), 0);
  EXPECT_EQ(ValueOf(text, R"(scalelab_commit_seconds_bucket{le="0.01"})"), 2);
}

TEST(Metrics, AnAttemptThatReportsACheckpointBeforeItRunsIsCountedOnce) {
  World world;
  world.Submit(World::Spec({1}));
  const std::string job = world.AskedFor();
  world.Job(job, JobStatus::State::kRunning);
  const v1::SynchronizeResponse desired = world.Sync(job);
  ASSERT_EQ(desired.attempts_size(), 1);
  ParsedBatch events;
  events.token = desired.attempts(0).token();
  events.append.end_position = 10;
  events.append.end_line = 1;
  events.checkpoint_step = 20;
  std::vector<ParsedBatch> batches;
  batches.push_back(std::move(events));
  world.lifecycle.Ingest(job, std::move(batches), world.fx);
  ASSERT_EQ(world.fx.batch.attempts.size(), 2u) << "the assignment and the checkpoint";
  Metrics metrics("1.2.3");
  metrics.Committed(world.fx.batch, absl::Milliseconds(1), absl::OkStatus());
  EXPECT_EQ(ValueOf(metrics.Text(), R"(scalelab_attempts_started_total{kind="first"})"), 1);
}

TEST(Metrics, CallsOfTheSchedulerAreCountedByResult) {
  Metrics metrics("1.2.3");
  EXPECT_EQ(ValueOf(metrics.Text(), "scalelab_scheduler_last_poll_timestamp_seconds"), 0);
  metrics.SchedulerCalled(SchedulerCall::kPoll, absl::Seconds(1), absl::OkStatus());
  metrics.SchedulerCalled(SchedulerCall::kSubmit, absl::Seconds(1), absl::UnavailableError("down"));
  const std::string text = metrics.Text();
  EXPECT_EQ(ValueOf(text, R"(scalelab_scheduler_calls_total{call="poll",result="ok"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_scheduler_calls_total{call="submit",result="error"})"), 1);
  EXPECT_GT(ValueOf(text, "scalelab_scheduler_last_poll_timestamp_seconds"), 1e9);
}

TEST(Metrics, MethodsOutsideTheApiShareOneSeries) {
  Metrics metrics("1.2.3");
  metrics.RpcEnded("/scalelab.v1.StudyService/GetStudy", 5, absl::Milliseconds(3));
  const auto lines = std::ranges::count(metrics.Text(), '\n');
  for (int i = 0; i < 100; ++i) metrics.RpcEnded(absl::StrCat("/evil/", i), 1000 + i, absl::Milliseconds(3));
  const std::string text = metrics.Text();
  EXPECT_EQ(std::ranges::count(text, '\n'), lines);
  EXPECT_EQ(ValueOf(text, R"(scalelab_rpcs_total{code="NOT_FOUND",method="StudyService/GetStudy"})"), 1)
      << text;
  EXPECT_EQ(ValueOf(text, R"(scalelab_rpcs_total{code="UNKNOWN",method="other"})"), 100);
}

TEST(Metrics, EachMethodOfTheApiHasItsOwnSeries) {
  Metrics metrics("1.2.3");
  const auto services = ServicesOfTheApi();
  ASSERT_GE(services.size(), 11u);
  for (const auto* service : services) {
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string label = absl::StrCat(service->name(), "/", service->method(i)->name());
      metrics.RpcEnded(absl::StrCat("/", service->full_name(), "/", service->method(i)->name()), 0,
                       absl::Milliseconds(3));
      EXPECT_EQ(
          ValueOf(metrics.Text(), absl::StrCat(R"(scalelab_rpcs_total{code="OK",method=")", label, "\"}")), 1)
          << label;
    }
  }
  EXPECT_EQ(ValueOf(metrics.Text(), R"(scalelab_rpcs_total{code="OK",method="other"})"), 0);
  EXPECT_EQ(
      ValueOf(metrics.Text(), R"(scalelab_rpc_seconds_count{method="PredictionService/ListPredictions"})"),
      1);
}

TEST(Metrics, TheStateIsCounted) {
  OneRun world(1);
  world.Submit(World::Spec({1, 2}));
  Metrics metrics("1.2.3");
  metrics.SetState(world.state);
  const std::string text = metrics.Text();
  EXPECT_EQ(ValueOf(text, R"(scalelab_runs{state="running"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_runs{state="queued"})"), 2);
  EXPECT_EQ(ValueOf(text, R"(scalelab_attempts{state="running"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_studies{state="running"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_studies{state="queued"})"), 1);
  EXPECT_EQ(ValueOf(text, R"(scalelab_allocations{state="running"})"), 1);
  EXPECT_EQ(ValueOf(text, "scalelab_workers"), 1);
}

TEST(Metrics, ThoseOfTheProcessAreRead) {
  Metrics metrics("1.2.3");
  const std::string text = metrics.Text();
  EXPECT_GT(ValueOf(text, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(ValueOf(text, "process_open_fds"), 2);
  const double now = absl::ToUnixMillis(absl::Now()) / 1000.0;
  EXPECT_NEAR(ValueOf(text, "process_start_time_seconds"), now, 600);
  EXPECT_EQ(ValueOf(text, R"(scalelab_build_info{version="1.2.3"})"), 1);
}

TEST(Metrics, TheProblemOfTheServiceIsACheckThatFails) {
  Metrics metrics("1.2.3");
  metrics.SetProblem("database");
  EXPECT_EQ(ValueOf(metrics.Text(), R"(scalelab_check_failed{check="database"})"), 1);
  EXPECT_EQ(ValueOf(metrics.Text(), R"(scalelab_check_failed{check="core_thread"})"), 0);
  metrics.SetProblem("");
  EXPECT_EQ(ValueOf(metrics.Text(), R"(scalelab_check_failed{check="database"})"), 0);
}

TEST(Metrics, PromtoolAcceptsAllOfThem) {
  if (!HasPromtool()) GTEST_SKIP() << kNoPromtool;
  Metrics metrics("1.2.3");
  metrics.Committed({}, absl::Milliseconds(1), absl::OkStatus());
  metrics.SetPools({{"reads", 3}});
  EXPECT_EQ(Promtool("check metrics", metrics.Text()), "");
}

TEST(Metrics, PromtoolAcceptsTheAlertsAndTheyNameExistingMetrics) {
  const std::string file = SCALELAB_SOURCE_DIR "/deploy/prometheus/alerts.yaml";
  std::ifstream stream(file);
  const std::string rules((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  Metrics metrics("1.2.3");
  metrics.SetPools({{"reads", 0}});
  const std::string text = metrics.Text();
  size_t names = 0;
  for (const std::string& source :
       {rules, [] {
          std::ifstream dashboard(SCALELAB_SOURCE_DIR "/deploy/grafana/scalelab.json");
          return std::string((std::istreambuf_iterator<char>(dashboard)), std::istreambuf_iterator<char>());
        }()}) {
    ASSERT_FALSE(source.empty());
    for (size_t at = 0; (at = source.find("scalelab_", at)) != std::string::npos; ++names) {
      const size_t end = source.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at);
      const std::string name = source.substr(at, end - at);
      EXPECT_THAT(text, HasSubstr("\n" + name)) << "no such metric";
      at = end;
    }
  }
  EXPECT_GT(names, 20u);
  if (!HasPromtool()) GTEST_SKIP() << kNoPromtool;
  EXPECT_EQ(Promtool("check rules " + file), "");
}

TEST(Metrics, TheAlertsNameExistingDocuments) {
  std::ifstream stream(SCALELAB_SOURCE_DIR "/deploy/prometheus/alerts.yaml");
  const std::string rules((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  size_t names = 0;
  for (size_t at = 0; (at = rules.find("docs/", at)) != std::string::npos; ++names) {
    const size_t end = rules.find(".md", at) + 3;
    const std::string name = rules.substr(at, end - at);
    EXPECT_EQ(access((SCALELAB_SOURCE_DIR "/" + name).c_str(), R_OK), 0) << name;
    at = end;
  }
  EXPECT_GT(names, 0u);
}

// The service with metrics.
class MetricsOfTheService : public RpcServerTest {
 protected:
  MetricsOfTheService() {
    RpcServerOptions options = Options();
    options.metrics = &metrics_;
    Serve(options);
    ExporterOptions exporter;
    exporter.address = "127.0.0.1:0";
    exporter.database = directory_ + "/test.db";
    exporter.period = absl::Milliseconds(20);
    exporter.problem = [this] { return rpc_->problem(); };
    exporter.connections = [this] { return rpc_->connections(); };
    exporter.pool_queues = [this] { return rpc_->queued_calls(); };
    auto started = Exporter::Start(std::move(exporter), metrics_, *coordinator_);
    EXPECT_TRUE(started.ok()) << started.status();
    exporter_ = *std::move(started);
  }
  ~MetricsOfTheService() override {
    exporter_.reset();
    coordinator_->Stop();  // `metrics_` ends before the base class
    rpc_.reset();
  }
  // Waits until the series has the value.
  bool Becomes(const std::string& series, double value) {
    for (const absl::Time limit = absl::Now() + absl::Seconds(20); absl::Now() < limit;) {
      if (ValueOf(metrics_.Text(), series) == value) return true;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  Metrics metrics_{"1.2.3"};
  std::unique_ptr<Exporter> exporter_;
};

TEST_F(MetricsOfTheService, CallsAreCountedByMethodAndCode) {
  ASSERT_TRUE(List(Unix()).ok());
  EXPECT_FALSE(List(Tcp(), "wrong").ok());
  EXPECT_TRUE(Becomes(R"(scalelab_rpcs_total{code="OK",method="StudyService/ListStudies"})", 1))
      << metrics_.Text();
  EXPECT_TRUE(Becomes(R"(scalelab_rpcs_total{code="UNAUTHENTICATED",method="StudyService/ListStudies"})", 1));
  EXPECT_GT(ValueOf(metrics_.Text(), R"(scalelab_rpc_seconds_count{method="StudyService/ListStudies"})"), 0);
}

TEST_F(MetricsOfTheService, SamplesShowTheStateAndTheDatabase) {
  Submit();
  EXPECT_TRUE(Becomes(R"(scalelab_runs{state="queued"})", 1));
  const std::string text = metrics_.Text();
  EXPECT_GT(ValueOf(text, "scalelab_database_bytes"), 4096);
  EXPECT_GT(ValueOf(text, "scalelab_data_disk_free_bytes"), 4096);
  EXPECT_GE(ValueOf(text, "scalelab_connections"), 0);
  EXPECT_EQ(ValueOf(text, R"(scalelab_pool_queue_length{pool="reads"})"), 0);
}

TEST_F(MetricsOfTheService, AScrapeIsAnsweredWhileTheCoreThreadIsBlocked) {
  absl::Notification blocked, release, over;
  coordinator_->Read([&](const State*) {
    blocked.Notify();
    release.WaitForNotification();
  });
  blocked.WaitForNotification();
  EXPECT_THAT(metrics_.Text(), HasSubstr("scalelab_runs"));
  release.Notify();
  // The earlier tasks, which use `release`, have ended.
  coordinator_->Read([&](const State*) { over.Notify(); });
  over.WaitForNotification();
}

TEST_F(MetricsOfTheService, ScrapesUnderLoadAreCompleteAndValid) {
  std::atomic<bool> over = false;
  std::atomic<int> calls = 0;
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      const auto channel = Unix();
      while (!over) {
        EXPECT_TRUE(List(channel).ok());
        ++calls;
      }
    });
  }
  callers.emplace_back([&] {
    for (int i = 0; i < 20 && !over; ++i) Submit();
  });
  std::string text;
  for (int i = 0; i < 30; ++i) {
    const std::string answer = HttpGet(exporter_->port(), "/metrics");
    const size_t body = answer.find("\r\n\r\n");
    ASSERT_NE(body, std::string::npos) << answer;
    text = answer.substr(body + 4);
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
    EXPECT_THAT(text, HasSubstr("scalelab_rpcs_total"));
    EXPECT_EQ(text.back(), '\n');
  }
  over = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(calls, 0);
  EXPECT_TRUE(Becomes(R"(scalelab_rpcs_total{code="OK",method="StudyService/ListStudies"})", calls));
  if (!HasPromtool()) GTEST_SKIP() << kNoPromtool;
  EXPECT_EQ(Promtool("check metrics", text), "");
}

}  // namespace
}  // namespace scalelab::server
