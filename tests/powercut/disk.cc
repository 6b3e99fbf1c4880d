#include "tests/powercut/disk.h"

#include <algorithm>
#include <cstring>

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

}  // namespace

Disk::Disk(const Image& image) {
  for (const auto& [path, data] : image) files_[path] = std::make_shared<File>(File{next_inode_++, data});
}

Disk::Result Disk::Step(Operation operation, bool needs_space) {
  const int64_t number = operations_++;
  if (number >= fault_.first && number <= fault_.last) {
    if (!fault_.no_space) return Result::kInputOutputError;
    if (needs_space) return Result::kNoSpace;
  }
  if (recording_) log_.push_back(std::move(operation));
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

Disk::Result Disk::SyncDirectory() { return Step({Operation::Kind::kSyncDirectory}, true); }

Disk::Result Disk::Read() {
  const int64_t number = operations_++;
  const bool fails = number >= fault_.first && number <= fault_.last && !fault_.no_space;
  return fails ? Result::kInputOutputError : Result::kOk;
}

bool PowerCuts::Advance() {
  if (position_ == log_.size()) return false;
  const size_t index = position_++;
  const Operation& operation = log_[index];
  switch (operation.kind) {
    case Operation::Kind::kWrite:
    case Operation::Kind::kTruncate:
      files_[operation.inode].pending.push_back(index);
      break;
    case Operation::Kind::kCreate:
    case Operation::Kind::kUnlink:
      pending_entries_.push_back(index);
      break;
    case Operation::Kind::kSync: {
      if (flaws_.ignores_sync) break;
      File& file = files_[operation.inode];
      for (const size_t change : file.pending) Redo(file.durable, log_[change]);
      file.pending.clear();
      break;
    }
    case Operation::Kind::kSyncDirectory:
      if (flaws_.ignores_sync || flaws_.ignores_directory_sync) break;
      for (const size_t entry : pending_entries_) {
        if (log_[entry].kind == Operation::Kind::kCreate) {
          directory_[log_[entry].path] = log_[entry].inode;
        } else {
          directory_.erase(log_[entry].path);
        }
      }
      pending_entries_.clear();
      break;
  }
  return true;
}

Image PowerCuts::Cut(std::mt19937_64& random) const {
  // Nothing, everything, a prefix, or any subset of the changes that were not synced; the subset with whole or torn
  // writes.
  enum { kNothing, kEverything, kPrefix, kSubset, kTorn };
  const int mode = static_cast<int>(random() % 5);
  // For a prefix in the order of all files: changes from here on are lost.
  const size_t end =
      mode == kPrefix && position_ > 0 ? position_ - random() % std::min<size_t>(position_, 64) : position_;
  const auto survives = [&](size_t index) {
    return mode == kEverything || (mode == kPrefix && index < end) || (mode >= kSubset && random() % 2 == 0);
  };
  std::map<std::string, int> directory = directory_;
  for (const size_t entry : pending_entries_) {
    if (!survives(entry)) continue;
    if (log_[entry].kind == Operation::Kind::kCreate) {
      directory[log_[entry].path] = log_[entry].inode;
    } else {
      directory.erase(log_[entry].path);
    }
  }
  Image image;
  for (const auto& [path, inode] : directory) {
    std::string& data = image[path];
    const auto it = files_.find(inode);
    if (it == files_.end()) continue;
    data = it->second.durable;
    for (const size_t change : it->second.pending) {
      const Operation& operation = log_[change];
      if (mode == kTorn && operation.kind == Operation::Kind::kWrite && random() % 4 != 0) {
        Tear(data, operation, random);
      } else if (survives(change)) {
        Redo(data, operation);
      }
    }
  }
  return image;
}

}  // namespace scalelab::powercut
