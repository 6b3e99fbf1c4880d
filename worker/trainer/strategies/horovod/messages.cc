#include "worker/trainer/strategies/horovod/messages.h"

#include <cstring>

#include "worker/trainer/errors.h"

namespace scalelab::trainer::horovod {
namespace {

// Numbers are 8 bytes in the byte order of the machine, as all ranks run the same binary. Strings
// follow their length.
class Writer {
 public:
  void Number(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Text(const std::string& text) {
    Number(std::ssize(text));
    bytes_ += text;
  }
  void Requests(const std::vector<Request>& requests) {
    Number(std::ssize(requests));
    for (const Request& request : requests) {
      Text(request.name);
      Number(static_cast<int64_t>(request.type));
      Number(std::ssize(request.sizes));
      for (int64_t size : request.sizes) Number(size);
    }
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  int64_t Number() {
    int64_t value = 0;
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    return value;
  }
  // Reads the number of items that follow; each takes at least one byte.
  int64_t Count() {
    const int64_t count = Number();
    if (count < 0 || count > std::ssize(left_)) Fail();
    return count;
  }
  std::string Text() { return std::string(Take(Count())); }
  std::vector<Request> Requests() {
    std::vector<Request> requests(Count());
    for (Request& request : requests) {
      request.name = Text();
      request.type = static_cast<at::ScalarType>(Number());
      request.sizes.resize(Count());
      for (int64_t& size : request.sizes) size = Number();
    }
    return requests;
  }
  void End() const {
    if (!left_.empty()) Fail();
  }

 private:
  [[noreturn]] static void Fail() {
    throw TrainerError(
        "native/horovod: a rank sent a negotiation message that cannot be read: run the same "
        "scalelab-trainer on all nodes",
        ErrorKind::kCommunication);
  }
  std::string_view Take(int64_t count) {
    if (count > std::ssize(left_)) Fail();
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  std::string_view left_;
};

}  // namespace

int64_t Request::elements() const {
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

std::string Encode(const RequestList& list) {
  Writer writer;
  writer.Number(list.closed);
  writer.Requests(list.requests);
  return writer.Take();
}

std::string Encode(const std::vector<Response>& responses) {
  Writer writer;
  writer.Number(std::ssize(responses));
  for (const Response& response : responses) {
    writer.Requests(response.tensors);
    writer.Text(response.error);
  }
  return writer.Take();
}

RequestList DecodeRequests(std::string_view bytes) {
  Reader reader(bytes);
  RequestList list;
  list.closed = reader.Number() != 0;
  list.requests = reader.Requests();
  reader.End();
  return list;
}

std::vector<Response> DecodeResponses(std::string_view bytes) {
  Reader reader(bytes);
  std::vector<Response> responses(reader.Count());
  for (Response& response : responses) {
    response.tensors = reader.Requests();
    response.error = reader.Text();
  }
  reader.End();
  return responses;
}

}  // namespace scalelab::trainer::horovod
