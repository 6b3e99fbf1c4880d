#include "tests/powercut/disk.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace scalelab::powercut {
namespace {

constexpr size_t kSector = 512;

void Overwrite(std::string& file, int64_t offset, const char* data, size_t size) {
  const size_t at = static_cast<size_t>(offset);
  if (file.size() < at + size) file.resize(at + size);
  std::memcpy(file.data() + at, data, size);
}

// Writes some of the sectors of `write`.
void Tear(std::string& file, const Operation& write, std::mt19937_64& random) {
  for (size_t begin = 0; begin < write.data.size();) {
    const size_t in_sector = (static_cast<size_t>(write.offset) + begin) % kSector;
    const size_t size = std::min(kSector - in_sector, write.data.size() - begin);
    if (random() % 2 == 0) {
      Overwrite(file, write.offset + static_cast<int64_t>(begin), write.data.data() + begin, size);
    }
    begin += size;
  }
}

void Redo(std::string& file, const Operation& change) {
  if (change.kind == Operation::Kind::kTruncate) {
    file.resize(static_cast<size_t>(change.offset));
  } else {
    Overwrite(file, change.offset, change.data.data(), change.data.size());
  }
}

void Redo(std::map<std::string, int>& directory, const Operation& entry) {
  if (entry.kind != Operation::Kind::kCreate) directory.erase(entry.path);
  if (entry.kind == Operation::Kind::kCreate) directory[entry.path] = entry.inode;
  if (entry.kind == Operation::Kind::kRename) directory[entry.target] = entry.inode;
}

}  // namespace

Disk::Disk(Image image) {
  for (auto& [path, data] : image) {
    files_[path] = std::make_shared<File>(File{next_inode_++, std::move(data)});
  }
}

Disk::Result Disk::Step(Operation operation, bool needs_space) {
  const int64_t number = operations_++;
  if (number >= fault_.first && number <= fault_.last) {
    if (!fault_.no_space) return Result::kInputOutputError;
    if (needs_space) return Result::kNoSpace;
  }
  if (recording_) log_.push_back(std::make_shared<const Operation>(std::move(operation)));
  return Result::kOk;
}

std::shared_ptr<Disk::File> Disk::Find(const std::string& path) const {
  const auto it = files_.find(path);
  return it == files_.end() ? nullptr : it->second;
}

Disk::Result Disk::Create(const std::string& path, std::shared_ptr<File>& file) {
  const Result result = Step({Operation::Kind::kCreate, next_inode_, path}, true);
  if (result == Result::kOk) file = files_[path] = std::make_shared<File>(File{next_inode_++, ""});
  return result;
}

Disk::Result Disk::Write(File& file, int64_t offset, const char* data, size_t size) {
  const Result result = Step(
      {Operation::Kind::kWrite, file.inode, "", offset, recording_ ? std::string(data, size) : ""}, true);
  if (result == Result::kOk) Overwrite(file.data, offset, data, size);
  return result;
}

Disk::Result Disk::Truncate(File& file, int64_t size) {
  const Result result = Step({Operation::Kind::kTruncate, file.inode, "", size}, false);
  if (result == Result::kOk) file.data.resize(static_cast<size_t>(size));
  return result;
}

Disk::Result Disk::Sync(File& file) { return Step({Operation::Kind::kSync, file.inode}, true); }

Disk::Result Disk::Unlink(const std::string& path) {
  const Result result = Step({Operation::Kind::kUnlink, 0, path}, false);
  if (result == Result::kOk) files_.erase(path);
  return result;
}

Disk::Result Disk::Rename(const std::string& from, const std::string& to) {
  const std::shared_ptr<File> file = Find(from);
  Operation operation{Operation::Kind::kRename, file->inode, from};
  operation.target = to;
  const Result result = Step(std::move(operation), true);
  if (result != Result::kOk) return result;
  files_.erase(from);
  files_[to] = file;
  return result;
}

Disk::Result Disk::SyncDirectory() { return Step({Operation::Kind::kSyncDirectory}, true); }

Disk::Result Disk::Read() {
  const int64_t number = operations_++;
  const bool fails = number >= fault_.first && number <= fault_.last && !fault_.no_space;
  return fails ? Result::kInputOutputError : Result::kOk;
}

Image Disk::Contents() const {
  Image image;
  for (const auto& [path, file] : files_) image[path] = file->data;
  return image;
}

PowerCuts::PowerCuts(const Flaws& flaws, const Image& durable) : flaws_(flaws) {
  int inode = 1;  // numbered as in Disk
  for (const auto& [path, data] : durable) {
    files_[inode].durable = data;
    directory_[path] = inode++;
  }
}

void PowerCuts::Apply(std::shared_ptr<const Operation> operation) {
  const size_t number = position_++;
  switch (operation->kind) {
    case Operation::Kind::kWrite:
    case Operation::Kind::kTruncate: {
      File& file = files_[operation->inode];
      file.pending.push_back({number, std::move(operation)});
      break;
    }
    case Operation::Kind::kCreate:
    case Operation::Kind::kUnlink:
    case Operation::Kind::kRename:
      pending_entries_.push_back({number, std::move(operation)});
      break;
    case Operation::Kind::kSync: {
      if (flaws_.ignores_sync) break;
      File& file = files_[operation->inode];
      for (const Change& change : file.pending) Redo(file.durable, *change.operation);
      file.pending.clear();
      break;
    }
    case Operation::Kind::kSyncDirectory:
      if (flaws_.ignores_sync || flaws_.ignores_directory_sync) break;
      for (const Change& entry : pending_entries_) Redo(directory_, *entry.operation);
      pending_entries_.clear();
      std::erase_if(files_, [this](const auto& file) {  // remove files that have no name any more
        return std::none_of(directory_.begin(), directory_.end(),
                            [&](const auto& entry) { return entry.second == file.first; });
      });
      break;
  }
}

Image PowerCuts::Cut(std::mt19937_64& random) const {
  // Of the changes that were not synced, keeps none, all, a prefix or any subset. The writes of a subset are
  // complete or torn.
  enum { kNothing, kEverything, kPrefix, kSubset, kTorn };
  const int mode = static_cast<int>(random() % 5);
  // kPrefix keeps the changes with a number below `end`, whichever file they belong to. Later changes are lost.
  const size_t end =
      mode == kPrefix && position_ > 0 ? position_ - random() % std::min<size_t>(position_, 64) : position_;
  const auto survives = [&](size_t number) {
    return mode == kEverything || (mode == kPrefix && number < end) || (mode >= kSubset && random() % 2 == 0);
  };
  std::map<std::string, int> directory = directory_;
  for (const Change& entry : pending_entries_) {
    if (survives(entry.number)) Redo(directory, *entry.operation);
  }
  Image image;
  for (const auto& [path, inode] : directory) {
    std::string& data = image[path];
    const auto it = files_.find(inode);
    if (it == files_.end()) continue;
    data = it->second.durable;
    for (const Change& change : it->second.pending) {
      const Operation& operation = *change.operation;
      if (mode == kTorn && operation.kind == Operation::Kind::kWrite && random() % 4 != 0) {
        Tear(data, operation, random);
      } else if (survives(change.number)) {
        Redo(data, operation);
      }
    }
  }
  return image;
}

size_t HashOf(const Image& image) {
  size_t hash = image.size();
  for (const auto& [path, data] : image) {
    for (const std::string& text : {std::cref(path), std::cref(data)})
      hash = hash * 0x9e3779b97f4a7c15u + std::hash<std::string>()(text);
  }
  return hash;
}

}  // namespace scalelab::powercut
