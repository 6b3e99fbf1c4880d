#include <malloc.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scalelab/v1/run.grpc.pb.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/bench_rows.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/service_bench.h"

namespace scalelab::bench {
namespace {

Figure Target(std::string name, double value, std::string unit, double target) {
  return {absl::StrCat("cells/", name), value, std::move(unit), "target", target, value / target};
}

void AddAxis(v1::StudySpec& spec, const std::string& key, int values,
             const std::function<double(int)>& value) {
  auto* axis = spec.add_matrix();
  axis->set_key(key);
  for (int i = 0; i < values; ++i) axis->add_values()->set_number_value(value(i));
}

// Returns a study of a multiple of 1,000 cells: 5 numbers of ranks x 200 values of weight decay
// x several momenta.
v1::StudySpec ManyCells(int cells) {
  v1::StudySpec spec = BenchStudy(1);
  spec.mutable_fixed()->mutable_fields()->erase("ranks");
  AddAxis(spec, "ranks", 5, [](int i) { return 1 << i; });
  AddAxis(spec, "weight_decay", 200, [](int i) { return 1e-5 * (i + 1); });
  AddAxis(spec, "momentum", std::max(1, cells / 1000), [](int i) { return 0.001 * (i + 1); });
  return spec;
}

// Submits the study and returns the seconds that the call took.
double Submit(const BenchServer& server, const v1::StudySpec& spec) {
  const auto stub = v1::StudyService::NewStub(server.Connect());
  v1::CreateStudyRequest request;
  *request.mutable_spec() = spec;
  v1::CreateStudyResponse response;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::Status status;
  const double seconds = Seconds([&] { status = stub->CreateStudy(&context, request, &response); });
  if (!status.ok()) Check(absl::InternalError(status.error_message()));
  return seconds;
}

// Returns a line of /proc/self/status in MB: "VmRSS", "VmHWM".
double MemoryOf(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    double kib = 0;
    if (absl::ConsumePrefix(&rest, field + ":") && absl::SimpleAtod(absl::StripSuffix(rest, "kB"), &kib))
      return kib * 1024 / 1e6;
  }
  return 0;
}

double Megabytes(const std::string& file) {
  return static_cast<double>(std::filesystem::file_size(file)) / 1e6;
}

// Returns the median time of a call in ms.
template <class Request, class Call>
double CallMilliseconds(const Request& request, const Call& call) {
  return MedianMilliseconds(21, [&] {
    grpc::ClientContext context;
    const grpc::Status status = call(&context, request);
    if (!status.ok()) Check(absl::InternalError(status.error_message()));
  });
}

// Returns the time until a server that opens the database accepts calls.
double RestartSeconds(const BenchOptions& options, const std::string& database) {
  std::unique_ptr<BenchServer> server;
  return Seconds([&] { server = std::make_unique<BenchServer>(options.directory, false, database); });
}

void BenchQueries(const BenchServer& server, std::vector<Figure>& figures) {
  const auto stub = v1::RunService::NewStub(server.Connect());
  v1::GetRunRequest run;
  run.set_name("runs/77");
  v1::GetRunResponse one;
  const double get =
      CallMilliseconds(run, [&](auto* context, const auto& r) { return stub->GetRun(context, r, &one); });
  figures.push_back(Target("get_run", get, "ms", 2));
  v1::ListRunsRequest list;
  list.set_parent("studies/last");
  v1::ListRunsResponse page;
  const double lists =
      CallMilliseconds(list, [&](auto* context, const auto& r) { return stub->ListRuns(context, r, &page); });
  figures.push_back(Target("list_runs_page", lists, "ms", 20));
}

void BenchManyCells(const BenchOptions& options, std::vector<Figure>& figures) {
  const v1::StudySpec spec = ManyCells(static_cast<int>(100'000 * options.scale));
  std::string database;
  {
    BenchServer server(options.directory, false);
    database = server.database();
    Submit(server, BenchStudy(1));  // warms up connections and caches
    figures.push_back(Target("submit", Submit(server, spec), "s", 1));
    figures.push_back(Target("peak_memory", MemoryOf("VmHWM"), "MB", 150));
    malloc_trim(0);  // the service does the same
    figures.push_back(Target("memory", MemoryOf("VmRSS"), "MB", 150));
    BenchQueries(server, figures);
  }
  figures.push_back(Target("database", Megabytes(database), "MB", 20));
  {
    BenchServer server(options.directory, false, database);
    for (int i = 0; i < 2; ++i) Submit(server, spec);
  }
  figures.push_back(Target("restart_of_three", RestartSeconds(options, database), "s", 2));
}

void BenchManyRuns(const BenchOptions& options, std::vector<Figure>& figures) {
  const v1::StudySpec spec = BenchStudy(static_cast<int>(100'000 * options.scale));
  std::string database;
  {
    BenchServer server(options.directory, false);
    database = server.database();
    Submit(server, BenchStudy(1));
    figures.push_back(Target("submit_repeats", Submit(server, spec), "s", 0.25));
  }
  figures.push_back(Target("restart_repeats", RestartSeconds(options, database), "s", 1));
  BenchServer server(options.directory, false, database);
  for (int i = 0; i < 9; ++i) Submit(server, spec);
  const auto stub = v1::StudyService::NewStub(server.Connect());
  v1::ListStudiesResponse page;
  const double list = CallMilliseconds(v1::ListStudiesRequest(), [&](auto* context, const auto& r) {
    return stub->ListStudies(context, r, &page);
  });
  figures.push_back(Target("list_studies", list, "ms", 10));
}

// A program of 1 MB in each of 1,000 cells.
void BenchLongCommand(const BenchOptions& options, std::vector<Figure>& figures) {
  v1::StudySpec spec = ManyCells(1000);
  auto& fixed = *spec.mutable_fixed()->mutable_fields();
  fixed["engine"].set_string_value("custom");
  auto& command = *fixed["command"].mutable_list_value();
  for (const std::string& text : {std::string("sh"), std::string("-c"), std::string(1 << 20, '#')})
    command.add_values()->set_string_value(text);
  std::string database;
  {
    BenchServer server(options.directory, false);
    database = server.database();
    Submit(server, BenchStudy(1));
    figures.push_back(Target("submit_long_command", Submit(server, spec), "s", 1));
  }
  figures.push_back(Target("database_long_command", Megabytes(database), "MB", 8));
}

}  // namespace

std::vector<Figure> RunCellsBench(const BenchOptions& options) {
  std::vector<Figure> figures;
  BenchManyCells(options, figures);  // must be first, because the memory of other benchmarks would count
  BenchManyRuns(options, figures);
  BenchLongCommand(options, figures);
  return figures;
}

}  // namespace scalelab::bench
