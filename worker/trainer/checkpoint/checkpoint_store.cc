#include "worker/trainer/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

#include "nlohmann/json.hpp"
#include "worker/trainer/checkpoint/durable_file.h"
#include "worker/trainer/checkpoint/safetensors.h"
#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kManifest[] = "/manifest.json", kShared[] = "shared.safetensors", kStep[] = "step-";
constexpr char kDamaged[] = "damaged-";

std::string NameOf(int rank) { return "rank-" + std::to_string(rank) + ".safetensors"; }

// Parameters that change what is trained, but may differ between the attempts of a run.
constexpr std::string_view kMayDiffer[] = {"ranks", "batch_per_rank", "epochs", "max_steps"};

enum class Effect { Recipe, Execution };

// Runs `work`. Returns the message of the exception that it threw; "" if it threw none.
std::string ErrorOf(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Returns whether a file certainly does not exist. If its file system fails, it may exist.
bool IsAbsent(const fs::path& path) {
  std::error_code error;
  return !fs::exists(path, error) && !error;
}

[[noreturn]] void Refuse(const std::string& path, const std::string& why) {
  throw TrainerError(path + " " + why, ErrorKind::kData);
}

// A file as the manifest lists it.
struct Listed {
  std::string name;
  FileSum sum;
};

NamedTensors ReadListed(const std::string& directory, const std::vector<Listed>& files,
                        const std::string& name) {
  const auto listed = std::ranges::find(files, name, &Listed::name);
  const std::string path = directory + "/" + name;
  if (listed == files.end()) Refuse(path, "is not in the manifest");
  const std::string bytes = ReadWhole(path);
  if (std::ssize(bytes) != listed->sum.bytes) {
    Refuse(path, "has " + std::to_string(bytes.size()) + " bytes, not " + std::to_string(listed->sum.bytes));
  }
  if (SumOf(bytes) != listed->sum) Refuse(path, "has changed since it was written");
  return ReadSafetensors(bytes, path);
}

json ReadManifest(const std::string& path) {
  const std::string text = ReadWhole(path);
  const size_t end = text.find('\n');
  const std::string body = end == std::string::npos ? "" : text.substr(end + 1);
  if (body.empty() || text.substr(0, end) != SumOf(body).sum)
    Refuse(path, "has changed since it was written");
  return json::parse(body);
}

// Throws if the checkpoint is that of another run.
void CheckRecipe(const json& theirs, const json& ours, const std::string& path) {
  for (const auto& [name, value] : ours.items()) {
    const auto it = theirs.find(name);
    if (it == theirs.end() || *it == value) continue;  // absent: the checkpoint is older than the parameter
    throw TrainerError("checkpoint " + path + " was written with " + name + " " + it->dump() +
                       ", this run has " + value.dump() + ": restore " + name +
                       ", or remove the checkpoints of the run");
  }
}

}  // namespace

const at::Tensor& Find(const NamedTensors& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensors::value_type::first);
  if (found != tensors.end()) return found->second;
  throw TrainerError("the checkpoint has no tensor \"" + std::string(name) +
                     "\": another version wrote it; remove the checkpoints of the run");
}

void Assign(const NamedTensors& from, const NamedTensors& into) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : into) {
    const at::Tensor& saved = Find(from, name);
    if (saved.sizes() != tensor.sizes()) {
      throw TrainerError("tensor \"" + name + "\" of the checkpoint has another shape than that of this run");
    }
    tensor.detach().copy_(saved);
  }
}

std::string RecipeOf(const TrainingSpec& spec) {
  json recipe = {{"engine", spec.engine}};
#define PARAMETER(number, name, type, default_value, values, unit, group, set_by, effect, ...)          \
  if (Effect::effect == Effect::Recipe && std::ranges::find(kMayDiffer, #name) == std::end(kMayDiffer)) \
    recipe[#name] = spec.name;
#include "catalog/run_parameters.def"
#undef PARAMETER
  return recipe.dump();
}

CheckpointStore::CheckpointStore(std::string directory, int64_t keep, const TrainingSpec& spec,
                                 Communicator& communicator)
    : directory_(std::move(directory)), keep_(keep), recipe_(RecipeOf(spec)), communicator_(communicator) {}

std::string CheckpointStore::PathOf(int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof name, "%s%012lld", kStep, static_cast<long long>(step));
  return directory_ + "/" + name;
}

// Returns the steps of the checkpoints with a manifest, newest first.
std::vector<int64_t> CheckpointStore::Steps(std::error_code& error) const {
  std::vector<int64_t> steps;
  for (fs::directory_iterator it(directory_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!name.starts_with(kStep)) continue;
    int64_t step = 0;
    const char* const first = name.data() + std::strlen(kStep);
    const auto [last, wrong] = std::from_chars(first, name.data() + name.size(), step);
    if (wrong == std::errc() && last == name.data() + name.size() && !IsAbsent(PathOf(step) + kManifest))
      steps.push_back(step);
  }
  std::ranges::sort(steps, std::greater());
  return steps;
}

bool CheckpointStore::AnyFails(bool failed) {
  const at::Tensor flag = at::full({1}, failed ? 1.0 : 0.0, at::kDouble);
  communicator_.AllReduce(flag, ReduceOp::kMax);
  return flag.item<double>() > 0;
}

std::optional<int64_t> CheckpointStore::Save(int64_t step, const NamedTensors& shared,
                                             const NamedTensors& mine) {
  const std::string path = PathOf(step);
  const int rank = communicator_.rank();
  FileSum own, common;
  std::string error = ErrorOf([&] {
    fs::create_directories(path);  // by every rank: another node may not see that of rank 0 yet
    own = WriteDurably(path + "/" + NameOf(rank), [&](std::ostream& out) { WriteSafetensors(mine, out); });
    if (rank == 0)
      common = WriteDurably(path + "/" + kShared, [&](std::ostream& out) { WriteSafetensors(shared, out); });
  });
  json entry = {{"name", NameOf(rank)}, {"bytes", own.bytes}, {"sum", own.sum}};
  std::string text = error.empty() ? entry.dump() : "";
  text.resize(128, ' ');  // all ranks must pass the same number of bytes
  const std::vector<std::string> entries = communicator_.AllGather(text);
  json files = json::array({{{"name", kShared}, {"bytes", common.bytes}, {"sum", common.sum}}});
  bool complete = true;
  int64_t bytes = common.bytes;
  for (const std::string& of_rank : entries) {
    json listed = json::parse(of_rank, nullptr, /*allow_exceptions=*/false);
    complete = complete && listed.is_object();
    if (!complete) break;
    bytes += listed["bytes"].get<int64_t>();
    files.push_back(std::move(listed));
  }
  if (rank == 0 && complete) {
    error = ErrorOf([&] {
      const std::string body = json{{"format", 1},
                                    {"step", step},
                                    {"ranks", communicator_.size()},
                                    {"recipe", json::parse(recipe_)},
                                    {"files", files}}
                                   .dump(1) +
                               "\n";
      // The worker creates the directory of the run before the first attempt, and does not sync it.
      directory_synced_ ? SyncDirectory(directory_) : SyncDirectories(directory_);
      directory_synced_ = true;
      WriteDurably(path + kManifest, [&](std::ostream& out) { out << SumOf(body).sum << '\n' << body; });
    });
  }
  if (!error.empty()) {
    std::fprintf(stderr, "no checkpoint after step %lld: %s\n", static_cast<long long>(step), error.c_str());
  }
  const bool failed = AnyFails(!error.empty());  // afterwards, no rank writes
  if (rank == 0) RemoveOld();                    // also the files of this checkpoint, if it is not complete
  if (failed) return std::nullopt;
  return bytes;
}

void CheckpointStore::RemoveOld() const {
  std::error_code ignored;  // the next call of Save tries again
  const std::vector<int64_t> steps = Steps(ignored);
  for (size_t i = keep_; i < steps.size(); ++i) fs::remove(PathOf(steps[i]) + kManifest, ignored);
  std::vector<fs::path> old;
  for (fs::directory_iterator it(directory_, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename();
    const bool incomplete = name.starts_with(kStep) && IsAbsent(it->path().string() + kManifest);
    if (incomplete || name.starts_with(kDamaged)) old.push_back(it->path());
  }
  for (const fs::path& path : old) fs::remove_all(path, ignored);
}

Checkpoint CheckpointStore::Load(int64_t step) const {
  const std::string path = PathOf(step);
  const json manifest = ReadManifest(path + kManifest);
  CheckRecipe(manifest.at("recipe"), json::parse(recipe_), path);
  std::vector<Listed> files;
  for (const json& file : manifest.at("files"))
    files.push_back({file.at("name"), {file.at("bytes").get<int64_t>(), file.at("sum")}});
  Checkpoint loaded;
  loaded.step = manifest.at("step");
  loaded.ranks = manifest.at("ranks");
  loaded.shared = ReadListed(path, files, kShared);
  const bool same = loaded.ranks == communicator_.size();
  for (int rank = 0; rank < loaded.ranks; ++rank) {
    if (!same || rank == communicator_.rank())
      loaded.of_ranks.push_back(ReadListed(path, files, NameOf(rank)));
  }
  return loaded;
}

std::optional<Checkpoint> CheckpointStore::LoadNewest() {
  // All ranks use the list of rank 0, because another node may still see an older state of the directory.
  std::error_code error;
  const std::vector<int64_t> found = communicator_.rank() == 0 ? Steps(error) : std::vector<int64_t>();
  if (error && !IsAbsent(directory_ + "/")) {  // without a checkpoint there is no directory
    throw TrainerError("cannot list " + directory_ + ": " + error.message() +
                       "; start again when its file system works");
  }
  const at::Tensor count = at::full({1}, static_cast<int64_t>(found.size()), at::kLong);
  communicator_.Broadcast(count, 0);
  if (count.item<int64_t>() == 0) return std::nullopt;
  at::Tensor steps = at::zeros({count.item<int64_t>()}, at::kLong);
  std::ranges::copy(found, static_cast<int64_t*>(steps.data_ptr()));
  communicator_.Broadcast(steps, 0);
  for (int64_t i = 0; i < steps.numel(); ++i) {
    const int64_t step = steps[i].item<int64_t>();
    Checkpoint loaded;
    std::string damage;
    std::exception_ptr failure;  // an error that is not damage, such as another recipe
    try {
      loaded = Load(step);
    } catch (const json::exception& wrong) {
      damage = wrong.what();
    } catch (const TrainerError& wrong) {
      if (wrong.kind() == ErrorKind::kData) {
        damage = wrong.what();
      } else {
        failure = std::current_exception();
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const bool damaged = AnyFails(!damage.empty());
    if (failure) std::rethrow_exception(failure);
    if (!damaged) return loaded;
    ++damaged_;
    if (!damage.empty()) {
      std::fprintf(stderr, "checkpoint after step %lld is damaged, the one before it is used: %s\n",
                   static_cast<long long>(step), damage.c_str());
    }
    std::error_code ignored;
    if (communicator_.rank() == 0) {
      const fs::path path = PathOf(step);
      fs::remove_all(path.parent_path() / (kDamaged + path.filename().string()), ignored);
      fs::rename(path, path.parent_path() / (kDamaged + path.filename().string()), ignored);
    }
  }
  return std::nullopt;
}

void CheckpointStore::RemoveAll() {
  communicator_.Barrier();
  std::error_code ignored;
  if (communicator_.rank() == 0) fs::remove_all(directory_, ignored);
  directory_synced_ = false;
}

}  // namespace scalelab::trainer
