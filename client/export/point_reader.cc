#include "client/export/point_reader.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace scalelab::client {
namespace {

using scalelab::v1::ReadPointsRequest;
using scalelab::v1::ReadPointsResponse;

constexpr size_t kCalls = 8;           // in flight
constexpr size_t kMostHeld = 1 << 20;  // about 24 MB

// Returns the memory that a part takes, measured in points. The overhead of a part counts as 8 points.
size_t SizeOf(const ReadPointsResponse& part) { return part.value_size() + 8; }

}  // namespace

PointReader::PointReader(Connection& server, std::vector<std::string> runs, absl::Duration timeout)
    : server_(server), runs_(std::move(runs)), timeout_(timeout) {
  try {
    for (size_t i = 0; i < std::min(kCalls, runs_.size()); ++i) threads_.emplace_back([this] { Run(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // otherwise, fewer threads read all runs
  }
}

PointReader::~PointReader() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    for (const auto& [run, reading] : reading_) {
      if (reading.context != nullptr) reading.context->TryCancel();
    }
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status PointReader::Next(const Take& take) {
  std::unique_lock lock(mutex_);
  const size_t run = taken_++;
  changed_.notify_all();  // the thread of this run may wait until the caller takes points of other runs
  for (;;) {
    changed_.wait(lock, [&] {
      const auto it = reading_.find(run);
      return it != reading_.end() && (it->second.ended || !it->second.parts.empty());
    });
    Reading& reading = reading_.at(run);
    if (reading.parts.empty()) break;
    const std::deque<ReadPointsResponse> parts = std::exchange(reading.parts, {});
    for (const ReadPointsResponse& part : parts) held_ -= SizeOf(part);
    lock.unlock();
    changed_.notify_all();
    for (const ReadPointsResponse& part : parts) {
      if (absl::Status status = take(part); !status.ok()) return status;
    }
    lock.lock();
  }
  const auto node = reading_.extract(run);
  return node.mapped().status;
}

void PointReader::Run() {
  for (;;) {
    size_t run;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || held_ < kMostHeld || begun_ < taken_; });
      if (stop_ || begun_ == runs_.size()) return;
      run = begun_++;
    }
    std::unique_ptr<grpc::ClientContext> context = server_.MakeContext(absl::Now() + timeout_);
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      reading_[run].context = context.get();
    }
    const absl::Status status = ReadOne(run, context.get());
    {
      std::lock_guard lock(mutex_);
      Reading& reading = reading_.at(run);
      reading.ended = true;
      reading.status = status;
      reading.context = nullptr;
    }
    changed_.notify_all();
  }
}

absl::Status PointReader::ReadOne(size_t run, grpc::ClientContext* context) {
  ReadPointsRequest request;
  request.set_run(runs_[run]);
  const auto reader = server_.results().ReadPoints(context, request);
  ReadPointsResponse part;
  while (reader->Read(&part) && Put(run, std::move(part))) part.Clear();
  return server_.Explain(reader->Finish());
}

// Stores the part for the caller. Blocks while too many points are stored. Returns false if the
// reader is stopping.
bool PointReader::Put(size_t run, ReadPointsResponse part) {
  std::unique_lock lock(mutex_);
  Reading& reading = reading_.at(run);
  // The run that the caller waits for never blocks on the points of other runs.
  changed_.wait(lock, [&] { return stop_ || held_ < kMostHeld || (run < taken_ && reading.parts.empty()); });
  if (stop_) return false;
  held_ += SizeOf(part);
  reading.parts.push_back(std::move(part));
  if (run < taken_) changed_.notify_all();
  return true;
}

}  // namespace scalelab::client
