// Tests the energy meters with a simulated NVML and a simulated powercap folder of the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/worker/no_threads.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/power/cpu_energy.h"
#include "worker/power/nvml.h"
#include "worker/power/power_sampler.h"
#include "worker/power/power_source.h"

namespace scalelab::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsNan;
using ::testing::Optional;

class PowerTest : public ::testing::Test {
 protected:
  PowerTest() { unsetenv("FAKE_NVML"); }
  ~PowerTest() override { unsetenv("FAKE_NVML"); }

  // Writes a zone of the powercap folder.
  void Zone(const std::string& zone, const std::string& name, int64_t energy, int64_t range = 1'000'000'000) {
    const std::string folder = dir_ / zone;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/name") << name << "\n";
    std::ofstream(folder + "/energy_uj") << energy << "\n";
    std::ofstream(folder + "/max_energy_range_uj") << range << "\n";
  }

  TempDir dir_;
};

TEST_F(PowerTest, ALibraryThatIsAbsentOrFindsNoDriverIsNotAnError) {
  EXPECT_EQ(Nvml::Load(dir_ / "libnvidia-ml.so.1"), nullptr);
  setenv("FAKE_NVML", "none", 1);
  EXPECT_EQ(Nvml::Load(FAKE_NVML_LIBRARY), nullptr);
}

TEST_F(PowerTest, NvmlShowsTheStateOfEachGpu) {
  setenv("FAKE_NVML", "throttled", 1);
  const auto nvml = Nvml::Load(FAKE_NVML_LIBRARY);
  ASSERT_NE(nvml, nullptr);
  ASSERT_EQ(nvml->gpus().size(), 2u);
  EXPECT_EQ(nvml->gpus()[1].uuid, "GPU-10000000-0000");
  const GpuReading first = nvml->Read(0), second = nvml->Read(1);
  EXPECT_EQ(first.watts, 100);
  EXPECT_EQ(second.watts, 200);
  EXPECT_DOUBLE_EQ(second.utilisation, 0.9);
  EXPECT_EQ(second.clock_mhz, 1600);
  EXPECT_EQ(first.throttled, 1);
  EXPECT_EQ(second.throttled, 0) << "clocks that an application has set are no throttling";
  EXPECT_EQ(second.memory_bytes, 2.0 * (1 << 30));
  EXPECT_GT(first.joules, 0);
}

TEST_F(PowerTest, AGpuWithoutAnEnergyCounterShowsTheRest) {
  setenv("FAKE_NVML", "old", 1);
  const auto nvml = Nvml::Load(FAKE_NVML_LIBRARY);
  ASSERT_NE(nvml, nullptr);
  EXPECT_THAT(nvml->Read(0).joules, IsNan());
  EXPECT_EQ(nvml->Read(0).watts, 100);
}

TEST_F(PowerTest, GpusOfOtherJobsAreLeftOut) {
  setenv("FAKE_NVML", "hidden", 1);
  const auto nvml = Nvml::Load(FAKE_NVML_LIBRARY);
  ASSERT_NE(nvml, nullptr);
  ASSERT_EQ(nvml->gpus().size(), 1u);
  EXPECT_EQ(nvml->Read(0).watts, 200);
}

TEST_F(PowerTest, SelectsTheGpusThatCudaShowsToTheRanks) {
  const std::vector<Nvml::Gpu> gpus = {{"GPU-aa1", "A"}, {"GPU-bb2", "A"}, {"GPU-cc3", "A"}};
  EXPECT_THAT(SelectGpus(gpus, {2, std::nullopt}), Optional(ElementsAre(0, 1)));
  EXPECT_THAT(SelectGpus(gpus, {2, "2,0,1"}), Optional(ElementsAre(2, 0)));
  EXPECT_THAT(SelectGpus(gpus, {1, "GPU-bb2"}), Optional(ElementsAre(1)));
  EXPECT_THAT(SelectGpus(gpus, {1, "GPU-cc"}), Optional(ElementsAre(2)));
  for (const char* unclear : {"", "0", "0,7", "GPU-dd4,0", "MIG-1,0"})
    EXPECT_EQ(SelectGpus(gpus, {2, unclear}), std::nullopt) << unclear;
}

TEST_F(PowerTest, WithDifferentModelsOnlyTheWholeSetIsClear) {
  const std::vector<Nvml::Gpu> gpus = {{"GPU-aa1", "A"}, {"GPU-bb2", "B"}};
  EXPECT_EQ(SelectGpus(gpus, {1, std::nullopt}), std::nullopt);
  EXPECT_THAT(SelectGpus(gpus, {2, std::nullopt}), Optional(ElementsAre(0, 1)));
}

TEST_F(PowerTest, PackagesAreSummedAndEachIsCountedOnce) {
  Zone("intel-rapl:0", "package-0", 5'000'000);
  Zone("intel-rapl:1", "package-1", 7'000'000);
  Zone("intel-rapl:0:0", "core", 1);
  Zone("intel-rapl-mmio:0", "package-0", 5'000'000);
  Zone("intel-rapl:2", "psys", 100);
  CpuEnergy energy(dir_.path());
  EXPECT_EQ(energy.Joules(), 0);
  Zone("intel-rapl:0", "package-0", 8'500'000);
  Zone("intel-rapl:1", "package-1", 7'500'000);
  Zone("intel-rapl:0:0", "core", 1'000'000);
  Zone("intel-rapl-mmio:0", "package-0", 8'500'000);
  Zone("intel-rapl:2", "psys", 9'000'000);
  EXPECT_EQ(energy.Joules(), 4);
}

TEST_F(PowerTest, ACounterOfAPackageWrapsAround) {
  Zone("intel-rapl:0", "package-0", 9'000'000, 10'000'000);
  CpuEnergy energy(dir_.path());
  EXPECT_EQ(energy.Joules(), 0);
  Zone("intel-rapl:0", "package-0", 2'000'000, 10'000'000);
  EXPECT_EQ(energy.Joules(), 3);
}

TEST_F(PowerTest, WithoutPackagesOrPermissionTheEnergyOfCpusIsUnknown) {
  EXPECT_THAT(CpuEnergy(dir_ / "missing").Joules(), IsNan());
  Zone("intel-rapl:0", "package-0", 1);
  CpuEnergy energy(dir_.path());
  std::filesystem::remove(dir_ / "intel-rapl:0/energy_uj");  // root may read any file
  EXPECT_THAT(energy.Joules(), IsNan());
}

TEST_F(PowerTest, TheSamplerRecordsTheGpusOfAnAttempt) {
  PowerSampler sampler({FAKE_NVML_LIBRARY, dir_.path()});
  const auto history = sampler.Start({2, std::nullopt});
  const double begin = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  PowerValues use = UnknownPower();
  // Wait for each reading. A span of time has a value after the second reading.
  for (int i = 0; i < 600 && std::isnan(use[kJoules]); ++i) {
    absl::SleepFor(absl::Milliseconds(50));
    use = history->Between(history->begin(), history->begin() + 0.1);
  }
  EXPECT_NEAR(use[kJoules], 0.1 * 300, 3);
  EXPECT_NEAR(use[kWatts], 0.1 * 150, 1e-3) << "the mean of both GPUs";
  EXPECT_NEAR(use[kUtilisation], 0.1 * 0.85, 1e-5);
  EXPECT_EQ(history->peak_memory(), 2.0 * (1 << 30));
  EXPECT_GE(history->begin(), begin - 1);
  sampler.Stop(history);
}

TEST_F(PowerTest, TheSamplerRecordsTheNextAttemptIfItGotNoThread) {
  PowerSampler sampler({FAKE_NVML_LIBRARY, dir_.path()});
  {
    const NoThreads no_threads;
    const auto history = sampler.Start({2, std::nullopt});
    EXPECT_THAT(history->begin(), IsNan());
    sampler.Stop(history);
  }
  const auto history = sampler.Start({2, std::nullopt});
  for (int i = 0; i < 600 && std::isnan(history->begin()); ++i) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(std::isnan(history->begin()));
  sampler.Stop(history);
}

TEST_F(PowerTest, OfGpusWithoutALibraryNothingIsKnown) {
  Zone("intel-rapl:0", "package-0", 1);
  PowerSource source({dir_ / "libnvidia-ml.so.1", dir_.path()});
  EXPECT_FALSE(source.Select({1, std::nullopt}));
  EXPECT_THAT(source.Read(1).values[kJoules], IsNan()) << "the energy of the CPUs is another quantity";
  EXPECT_TRUE(source.Select({}));
  EXPECT_EQ(source.Read(1).values[kJoules], 0);
}

TEST_F(PowerTest, WithDifferentModelsAnIndexIsNotClear) {
  const std::vector<Nvml::Gpu> gpus = {{"GPU-aa1", "A"}, {"GPU-bb2", "B"}};
  EXPECT_EQ(SelectGpus(gpus, {1, "0"}), std::nullopt);
  EXPECT_THAT(SelectGpus(gpus, {1, "GPU-bb2"}), Optional(ElementsAre(1)));
  EXPECT_THAT(SelectGpus(gpus, {2, "1,0"}), Optional(ElementsAre(1, 0)));
}

TEST_F(PowerTest, APartOfAGpuHasNoFigure) {
  setenv("FAKE_NVML", "mig", 1);
  PowerSource source({FAKE_NVML_LIBRARY, dir_.path()});
  EXPECT_FALSE(source.Select({1, std::nullopt}));
  EXPECT_FALSE(source.Select({1, "0"}));
}

}  // namespace
}  // namespace scalelab::worker
