// The wire format between worker and spawner: frames with a 32-bit length before the body, numbers in native
// byte order (both ends are the same program).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace scalelab::worker {

enum class Wire : uint8_t {
  kStart = 1,    // to the spawner: id, tag, grace, commands
  kStop = 2,     // to the spawner: id, grace
  kNotify = 6,   // to the spawner: id
  kStarted = 3,  // id, pid
  kFailed = 4,   // id, message, whether a file of the output could not be opened
  kEnded = 5,    // id, exit status, failed command, stopped
};

// Serializes one frame.
class FrameWriter {
 public:
  explicit FrameWriter(Wire type) : frame_(4, '\0') { Put(type); }
  template <typename T>
  FrameWriter& Put(T value) {
    frame_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  FrameWriter& Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    frame_ += text;
    return *this;
  }
  FrameWriter& Put(const std::vector<std::string>& texts) {
    Put(static_cast<uint32_t>(texts.size()));
    for (const std::string& text : texts) Put(text);
    return *this;
  }
  FrameWriter& Put(const std::vector<int>& numbers) {
    Put(static_cast<uint32_t>(numbers.size()));
    for (const int number : numbers) Put(number);
    return *this;
  }
  std::string Finish() {
    const uint32_t length = static_cast<uint32_t>(frame_.size() - 4);
    memcpy(frame_.data(), &length, 4);
    return std::move(frame_);
  }

 private:
  std::string frame_;
};

// Parses the body of a frame. Reads past the end return zeros and empty strings.
class FrameReader {
 public:
  explicit FrameReader(const std::string& body) : at_(body.data()), end_(at_ + body.size()) {}
  template <typename T>
  T Get() {
    T value{};
    if (static_cast<size_t>(end_ - at_) < sizeof value) return value;
    memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string GetString() {
    const uint32_t size = Get<uint32_t>();
    if (static_cast<size_t>(end_ - at_) < size) return {};
    std::string text(at_, size);
    at_ += size;
    return text;
  }
  std::vector<std::string> GetStrings() {
    const uint32_t count = Get<uint32_t>();
    std::vector<std::string> texts;
    for (uint32_t i = 0; i < count && at_ < end_; ++i) texts.push_back(GetString());
    return texts;
  }
  std::vector<int> GetNumbers() {
    const uint32_t count = Get<uint32_t>();
    std::vector<int> numbers;
    for (uint32_t i = 0; i < count && at_ < end_; ++i) numbers.push_back(Get<int>());
    return numbers;
  }

 private:
  const char* at_;
  const char* end_;
};

// Moves the body of the first complete frame from `input` to `body`; false if there is none yet.
inline bool TakeFrame(std::string* input, std::string* body) {
  uint32_t length;
  if (input->size() < sizeof length) return false;
  memcpy(&length, input->data(), sizeof length);
  if (input->size() - sizeof length < length) return false;
  body->assign(*input, sizeof length, length);
  input->erase(0, sizeof length + length);
  return true;
}

}  // namespace scalelab::worker
