#include "worker/trainer/metrics/event_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>

#include "nlohmann/json.hpp"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr std::chrono::milliseconds kFlushAfter(200);

template <typename... Args>
void AppendNumber(std::string& out, Args... args) {
  char text[400];
  out.append(text, std::to_chars(text, text + sizeof text, args...).ptr);
}

void AppendString(std::string& out, std::string_view text) {
  out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Writes the fields that all events have.
void Begin(std::string& out, std::string_view event) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  out = "{\"time\":";
  AppendNumber(out, now, std::chars_format::fixed, 6);
  out.append(",\"event\":\"").append(event).append("\"");
}

void AppendField(std::string& out, std::string_view key, int64_t value) {
  out.append(",\"").append(key).append("\":");
  AppendNumber(out, value);
}

void AppendMetricsField(std::string& out, std::span<const Metric> metrics) {
  out += ",\"metrics\":";
  AppendMetrics(metrics, out);
}

}  // namespace

void AppendMetrics(std::span<const Metric> metrics, std::string& out) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : metrics) {
    if (!first) out += ',';
    first = false;
    out.append("\"").append(key).append("\":");
    if (std::isfinite(value)) {
      AppendNumber(out, value);
    } else {
      out += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    }
  }
  out += '}';
}

EventWriter::EventWriter(const std::string& path) : path_(path.empty() ? "standard output" : path) {
  descriptor_ =
      path.empty() ? STDOUT_FILENO : open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw TrainerError("cannot open the event file " + path + " (SCALELAB_EVENTS): " + std::strerror(errno));
  }
  thread_ = std::thread(&EventWriter::FlushThread, this);
}

EventWriter::~EventWriter() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
  if (descriptor_ != STDOUT_FILENO) close(descriptor_);
}

void EventWriter::Start(int rank, int world_size, int64_t total_steps, std::string_view device,
                        int64_t resumed_step) {
  Begin(line_, "start");
  line_ += ",\"framework\":\"native\",\"version\":\"" SCALELAB_VERSION "\"";
  AppendField(line_, "world_size", world_size);
  AppendField(line_, "rank", rank);
  AppendField(line_, "total_steps", total_steps);
  if (!device.empty()) {
    line_ += ",\"device\":";
    AppendString(line_, device);
  }
  if (resumed_step > 0) AppendField(line_, "resumed_step", resumed_step);
  Add("}\n", true);
}

void EventWriter::Step(int64_t epoch, int64_t step, std::span<const Metric> metrics) {
  Begin(line_, "step");
  AppendField(line_, "epoch", epoch);
  AppendField(line_, "step", step);
  AppendMetricsField(line_, metrics);
  Add("}\n", false);
}

void EventWriter::Epoch(int64_t epoch, std::span<const Metric> metrics) {
  Begin(line_, "epoch");
  AppendField(line_, "epoch", epoch);
  AppendMetricsField(line_, metrics);
  Add("}\n", true);
}

void EventWriter::Checkpoint(int64_t steps, std::span<const Metric> metrics) {
  Begin(line_, "checkpoint");
  AppendField(line_, "step", steps);
  AppendMetricsField(line_, metrics);
  Add("}\n", true);
}

void EventWriter::Finish(std::span<const Metric> metrics, std::string_view parameter_hash) {
  Begin(line_, "finish");
  AppendMetricsField(line_, metrics);
  line_ += ",\"parameter_hash\":";
  AppendString(line_, parameter_hash);
  Add("}\n", true);
  // A network filesystem may report a failed write only when a descriptor of the file is closed.
  const int copy = dup(descriptor_);
  if (copy < 0 || close(copy) == 0) return;
  std::lock_guard lock(mutex_);
  write_error_ = errno;  // no event may follow
  FailToWrite(write_error_);
}

void EventWriter::Error(std::string_view message, std::string_view kind) {
  Begin(line_, "error");
  line_ += ",\"message\":";
  AppendString(line_, message.substr(0, 4000));
  line_ += ",\"kind\":";
  AppendString(line_, kind);
  Add("}\n", true);
}

void EventWriter::FailToWrite(int error) const {
  throw TrainerError("cannot write the event file " + path_ + ": " + std::strerror(error));
}

void EventWriter::Add(std::string_view end, bool now) {
  line_ += end;
  {
    std::lock_guard lock(mutex_);
    if (write_error_ != 0) FailToWrite(write_error_);
    const bool wake = pending_.empty();
    pending_ += line_;
    if (!now) {
      if (wake) changed_.notify_one();
      return;
    }
  }
  Flush();
  std::lock_guard lock(mutex_);
  if (write_error_ != 0) FailToWrite(write_error_);
}

void EventWriter::Flush() {
  std::lock_guard order(writing_);
  std::string lines;
  {
    std::lock_guard lock(mutex_);
    lines.swap(pending_);
  }
  WriteOut(lines);
}

void EventWriter::Sync() {
  Flush();
  std::lock_guard lock(mutex_);
  if (write_error_ != 0) FailToWrite(write_error_);
  if (fsync(descriptor_) != 0 && errno != EINVAL && errno != ENOTSUP) FailToWrite(errno);
}

void EventWriter::FlushThread() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !pending_.empty(); });
      changed_.wait_for(lock, kFlushAfter, [&] { return closing_; });
    }
    std::lock_guard order(writing_);
    std::string lines;
    bool last;
    {
      std::lock_guard lock(mutex_);
      lines.swap(pending_);
      last = closing_;
    }
    WriteOut(lines);
    if (last) return;
  }
}

void EventWriter::WriteOut(std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t written = write(descriptor_, lines.data(), lines.size());
    if (written >= 0) {
      lines.remove_prefix(written);
    } else if (errno != EINTR) {
      std::lock_guard lock(mutex_);
      write_error_ = errno;
      return;
    }
  }
}

}  // namespace scalelab::trainer
