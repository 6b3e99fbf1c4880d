// Tests the metrics of a real service while it trains and many clients call it. Prometheus' own tool must
// accept every scrape.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <regex>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/e2e/raw_connection.h"
#include "tests/e2e/service.h"
#include "tests/unit/server/metrics/http_get.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Returns the value of each series: "name{labels}" -> value.
std::map<std::string, double> Series(const std::string& text) {
  std::map<std::string, double> series;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line[0] != '#' && absl::SimpleAtod(line.substr(space + 1), &value))
      series[std::string(line.substr(0, space))] = value;
  }
  return series;
}

class ServiceMetrics : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(service_.Start(), ""); }
  std::string Scrape() {
    const std::string answer = server::HttpGet(port_, "/metrics");
    EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 200"));
    const size_t body = answer.find("\r\n\r\n");
    return body == std::string::npos ? "" : answer.substr(body + 4);
  }
  // Returns what `promtool check metrics` finds; empty if it finds nothing.
  std::string Promtool(const std::string& text) {
    const Output output =
        RunProgram({"sh", "-c", "promtool check metrics <\"$1\"", "sh", service_.File("metrics.txt", text)});
    return output.code == 0 ? output.out + output.err : absl::StrCat("failed: ", output.out, output.err);
  }
  // Lists the studies until `over`, and counts the answers.
  void Load(const std::atomic<bool>& over, std::atomic<int>* answers, const std::string& token) const {
    const auto stub =
        v1::StudyService::NewStub(grpc::CreateChannel(service_.socket(), grpc::InsecureChannelCredentials()));
    while (!over) {
      grpc::ClientContext context;
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
      v1::ListStudiesResponse studies;
      EXPECT_EQ(stub->ListStudies(&context, {}, &studies).ok(), token.empty());
      ++*answers;
    }
  }

  const int port_ = FreeTcpPort();
  Service service_{{"--local-slots", "2", "--metrics", absl::StrCat("127.0.0.1:", port_)}};
};

TEST_F(ServiceMetrics, PromtoolAcceptsEveryScrapeUnderLoad) {
  if (RunProgram({"promtool", "--version"}).code != 0)
    GTEST_SKIP() << "promtool is missing; install the Debian package prometheus";
  const std::string trains =
      service_.Submit("study: trains\nfixed: {model: resnet8, dataset: synthetic, epochs: 1000, ranks: 1}\n");
  const std::string fails = service_.Submit(
      "study: fails\nfixed: {engine: custom, ranks: 1, max_steps: 1, command: [\"false\"]}\nrepeats: 5\n");
  service_.WaitUntilTraining(trains, 3);
  std::atomic<bool> over = false;
  std::atomic<int> listed = 0, refused = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) clients.emplace_back([&] { Load(over, &listed, ""); });
  clients.emplace_back([&] { Load(over, &refused, "slt_wrong"); });

  std::map<std::string, double> before;
  for (int scrape = 0; scrape < 20; ++scrape) {
    const std::string text = Scrape();
    EXPECT_THAT(Promtool(text), IsEmpty()) << text;
    std::map<std::string, double> now = Series(text);
    for (const auto& [name, value] : before) {
      const bool counts = absl::StrContains(name, "_total") || absl::StrContains(name, "_bucket") ||
                          absl::StrContains(name, "_count");
      EXPECT_TRUE(now.contains(name)) << name << " has disappeared";
      EXPECT_TRUE(!counts || now[name] >= value) << name << " fell from " << value << " to " << now[name];
    }
    before = std::move(now);
  }
  EXPECT_EQ(service_.WaitFor(fails, 120), 5);
  over = true;
  for (std::thread& client : clients) client.join();
  EXPECT_GT(listed, 0);
  EXPECT_GT(refused, 0);

  const std::string text = Scrape();
  EXPECT_THAT(Promtool(text), IsEmpty());
  const auto last = Series(text);
  // The count is larger than `answers`, because the command line has listed studies too.
  EXPECT_GE(last.at(R"(scalelab_rpcs_total{code="OK",method="StudyService/ListStudies"})"), listed);
  EXPECT_EQ(last.at(R"(scalelab_rpcs_total{code="UNAUTHENTICATED",method="StudyService/ListStudies"})"),
            refused);
  EXPECT_EQ(last.at(R"(scalelab_attempts_ended_total{cause="trainer_error"})"), 5);
  EXPECT_GT(last.at("scalelab_points_stored_total"), 0);
  EXPECT_GT(last.at("scalelab_database_bytes"), 0);
  // The number of series does not grow with studies and runs, because no label names one.
  for (const auto& [name, value] : last)
    EXPECT_FALSE(std::regex_search(name, std::regex("studies/|runs/|trains|fails"))) << name;
  EXPECT_THAT(server::HttpGet(port_, "/healthz"), HasSubstr("ok"));
}

}  // namespace
}  // namespace scalelab::e2e
