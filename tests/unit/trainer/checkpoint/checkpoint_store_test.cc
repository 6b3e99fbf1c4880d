#include "worker/trainer/checkpoint/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "worker/trainer/checkpoint/durable_file.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"

// If set, receives the paths of the files and directories that are synced, in order.
static std::vector<std::string>* synced_paths = nullptr;

// Replaces the function of the C library in this program.
extern "C" int fsync(int fd) {
  if (synced_paths != nullptr)
    synced_paths->push_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)));
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace scalelab::trainer {
namespace {

namespace fs = std::filesystem;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class CheckpointStoreTest : public testing::Test {
 protected:
  CheckpointStoreTest() : directory_(testing::TempDir() + "/checkpoints-" + std::to_string(getpid())) {
    fs::remove_all(directory_);
  }
  ~CheckpointStoreTest() override { fs::remove_all(directory_); }

  CheckpointStore Store() { return {directory_, 2, spec_, solo_}; }
  void Save(int64_t step) {
    ASSERT_TRUE(Store().Save(step, {{"weight", at::full({3}, static_cast<double>(step), at::kFloat)}},
                             {{"mine", at::full({2}, step, at::kLong)}}));
  }
  // Returns the steps of the newest checkpoint that can be read; 0 without one.
  int64_t Newest() {
    testing::internal::CaptureStderr();
    const auto loaded = Store().LoadNewest();
    message_ = testing::internal::GetCapturedStderr();
    if (!loaded) return 0;
    EXPECT_EQ(loaded->shared.at(0).second[0].item<float>(), static_cast<float>(loaded->step));
    EXPECT_EQ(loaded->of_ranks.at(0).at(0).second[0].item<int64_t>(), loaded->step);
    return loaded->step;
  }
  static std::string NameOf(int64_t step) {
    char name[40];
    std::snprintf(name, sizeof name, "step-%012lld", static_cast<long long>(step));
    return name;
  }
  std::string Path(int64_t step, const std::string& file) const {
    return directory_ + "/" + NameOf(step) + "/" + file;
  }

  const std::string directory_;
  TrainingSpec spec_;
  SoloCommunicator solo_;
  std::string message_;
};

TEST_F(CheckpointStoreTest, KeepsTheNewestOnesAndReadsTheLast) {
  EXPECT_EQ(Newest(), 0);
  for (int64_t step : {5, 10, 15}) Save(step);
  EXPECT_FALSE(fs::exists(Path(5, "")));
  EXPECT_TRUE(fs::exists(Path(10, "manifest.json")));
  EXPECT_EQ(Newest(), 15);
  EXPECT_EQ(message_, "");
  Store().RemoveAll();
  EXPECT_FALSE(fs::exists(directory_));
}

// A checkpoint with a manifest counts as complete. So its other files, and the directories that contain them,
// must survive a power failure before the manifest is written.
TEST_F(CheckpointStoreTest, SyncsAllNewDirectoriesBeforeTheManifest) {
  const fs::path run = fs::canonical(testing::TempDir()) / fs::path(directory_).filename() / "study" / "run";
  const fs::path checkpoints = run / "checkpoints";
  CheckpointStore store(checkpoints, 2, spec_, solo_);
  std::vector<std::string> synced;
  const auto save = [&](int64_t step) {
    synced.clear();
    synced_paths = &synced;
    const bool saved = store.Save(step, {{"weight", at::ones({3})}}, {{"mine", at::ones({2})}}).has_value();
    synced_paths = nullptr;
    ASSERT_TRUE(saved);
    const std::string manifest = checkpoints / NameOf(step) / "manifest.json.new";
    const auto found = std::ranges::find(synced, manifest);
    ASSERT_NE(found, synced.end());
    synced.erase(found, synced.end());
  };
  save(5);
  const std::string step = checkpoints / NameOf(5);
  for (const std::string& path :
       {step + "/rank-0.safetensors.new", step + "/shared.safetensors.new", step, checkpoints.string(),
        run.string(), run.parent_path().string(), run.parent_path().parent_path().string(),
        fs::canonical(testing::TempDir()).string()})
    EXPECT_THAT(synced, testing::Contains(path));
  save(10);
  EXPECT_THAT(synced, testing::Contains(checkpoints.string()));
  EXPECT_THAT(synced, testing::Not(testing::Contains(run.string()))) << "only new names have to be synced";
  store.RemoveAll();
  save(15);
  EXPECT_THAT(synced, testing::Contains(run.string()));
}

TEST_F(CheckpointStoreTest, DetectsAFileThatIsCutOffOrChangedAtAnyByte) {
  Save(5);
  Save(10);
  const fs::path newest = fs::path(Path(10, "")).parent_path(), copy = directory_ + "/copy";
  fs::copy(newest, copy);
  int64_t bytes = 0;
  const auto expect_damage = [&](const std::string& file, const std::string& text, size_t at,
                                 const char* what) {
    fs::remove_all(newest);
    fs::copy(copy, newest);
    Write(newest / file, text);
    EXPECT_EQ(Newest(), 5) << file << " " << what << " at byte " << at;
    EXPECT_THAT(message_, testing::HasSubstr("checkpoint after step 10 is damaged"));
    ++bytes;
  };
  for (const char* file : {"manifest.json", "shared.safetensors", "rank-0.safetensors"}) {
    const std::string whole = Read(copy / file);
    ASSERT_GT(whole.size(), 50u);
    for (size_t at = 0; at < whole.size(); ++at) {
      expect_damage(file, whole.substr(0, at), at, "cut off");
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
      expect_damage(file, changed, at, "changed");
    }
  }
  fs::remove_all(newest);
  fs::copy(copy, newest);
  EXPECT_EQ(Newest(), 10) << "undamaged";
  std::printf("%lld damaged files\n", static_cast<long long>(bytes));
}

TEST_F(CheckpointStoreTest, PassesOverOnesThatAreNotComplete) {
  Save(5);
  Save(10);
  fs::remove(Path(10, "manifest.json"));  // it is written last
  EXPECT_EQ(Newest(), 5);
  Save(10);
  fs::remove(Path(10, "rank-0.safetensors"));
  EXPECT_EQ(Newest(), 5);
  Save(15);
  EXPECT_EQ(Newest(), 15);
  for (const auto& entry : fs::directory_iterator(directory_))
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("step-")) << "damaged ones are removed";
}

// A directory at the path of a file makes the write fail, as a full disk does.
TEST_F(CheckpointStoreTest, RemovesTheFilesOfOneThatCannotBeWritten) {
  Save(5);
  for (const char* file : {"rank-0.safetensors.new", "shared.safetensors.new", "manifest.json.new"}) {
    fs::create_directories(Path(10, file));
    testing::internal::CaptureStderr();
    EXPECT_FALSE(Store().Save(10, {{"weight", at::ones({3})}}, {{"mine", at::ones({2})}})) << file;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("no checkpoint after step 10"));
    EXPECT_FALSE(fs::exists(Path(10, ""))) << file;
    EXPECT_EQ(Newest(), 5);
  }
}

// Symlinks to themselves stand for a disk that cannot be read for some time.
TEST_F(CheckpointStoreTest, KeepsOnesThatCannotBeRead) {
  Save(5);
  Save(10);
  for (const char* file : {"rank-0.safetensors", "shared.safetensors", "manifest.json"}) {
    const fs::path path = Path(10, file), copy = directory_ + "/copy";
    fs::rename(path, copy);
    fs::create_symlink(path, path);
    try {
      Newest();
      ADD_FAILURE() << file << " was read";
    } catch (const TrainerError& error) {
      testing::internal::GetCapturedStderr();
      EXPECT_THAT(error.what(), testing::HasSubstr("cannot read " + path.string()));
    }
    Save(4);
    EXPECT_TRUE(fs::is_symlink(path)) << "it is removed neither as damaged nor as incomplete";
    fs::rename(copy, path);
    EXPECT_EQ(Newest(), 10);
  }
}

TEST_F(CheckpointStoreTest, RefusesThoseOfAnotherRecipeButNotOfOtherRanksOrLengths) {
  spec_.learning_rate = 0.1;
  Save(5);
  spec_.epochs = 7;
  spec_.ranks = 4;
  EXPECT_EQ(Newest(), 5);
  spec_.learning_rate = 0.2;
  try {
    Store().LoadNewest();
    FAIL();
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("learning_rate 0.1, this run has 0.2"));
  }
}

TEST(ByteSum, DoesNotDependOnHowTheBytesArrive) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37);
  for (size_t part : {1, 3, 7, 8, 9, 64, 100}) {
    ByteSum sum;
    for (size_t at = 0; at < text.size(); at += part) sum.Add(std::string_view(text).substr(at, part));
    EXPECT_EQ(sum.Hex(), SumOf(text).sum) << part;
  }
  EXPECT_NE(SumOf(text + '\0').sum, SumOf(text).sum);
}

}  // namespace
}  // namespace scalelab::trainer
