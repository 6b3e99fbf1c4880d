#include "worker/trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include "nlohmann/json.hpp"
#include "worker/trainer/checkpoint/durable_file.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLengthBytes = 8, kAlignment = 8;

struct Type {
  std::string_view name;
  at::ScalarType type;
};

constexpr Type kTypes[] = {{"F32", at::kFloat},     {"F64", at::kDouble}, {"F16", at::kHalf},
                           {"BF16", at::kBFloat16}, {"I64", at::kLong},   {"I32", at::kInt},
                           {"U8", at::kByte},       {"BOOL", at::kBool}};

std::string_view NameOf(const std::string& tensor, at::ScalarType type) {
  const Type* found = std::ranges::find(kTypes, type, &Type::type);
  if (found != std::end(kTypes)) return found->name;
  throw TrainerError("tensor \"" + tensor + "\" has type " + c10::toString(type) +
                     ", which the safetensors format does not support");
}

std::string Header(const NamedTensors& tensors) {
  ordered_json header = ordered_json::object();
  size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t end = offset + tensor.numel() * tensor.element_size();
    header[name] = {{"dtype", NameOf(name, tensor.scalar_type())},
                    {"shape", std::vector<int64_t>(tensor.sizes().begin(), tensor.sizes().end())},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');  // aligns the data
  return text;
}

// Returns the tensor that one entry of the header describes. Throws std::out_of_range if the entry does
// not fit `data`.
at::Tensor Take(const ordered_json& entry, std::string_view data) {
  const Type* type = std::ranges::find(kTypes, entry.at("dtype").get<std::string>(), &Type::name);
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto begin = entry.at("data_offsets").at(0).get<size_t>();
  const auto end = entry.at("data_offsets").at(1).get<size_t>();
  if (type == std::end(kTypes) || begin > end || end > data.size()) throw std::out_of_range("entry");
  uint64_t bytes = c10::elementSize(type->type);
  for (int64_t length : shape) {
    if (length < 0 || (length > 0 && bytes > data.size() / length)) throw std::out_of_range("shape");
    bytes *= length;
  }
  if (bytes != end - begin) throw std::out_of_range("shape");
  at::Tensor tensor = at::empty(shape, type->type);
  if (bytes > 0)
    std::memcpy(tensor.data_ptr(), data.data() + begin, bytes);  // data_ptr() of an empty tensor is null
  return tensor;
}

}  // namespace

void WriteSafetensors(const NamedTensors& tensors, std::ostream& out) {
  const std::string header = Header(tensors);
  char length[kLengthBytes];
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  out.write(length, kLengthBytes);
  out << header;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = tensor.detach().cpu().contiguous();
    out.write(static_cast<const char*>(flat.data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
  }
  if (!out.flush())
    throw TrainerError("cannot write the parameters: check the free space of their file system");
}

void SaveSafetensors(const NamedTensors& tensors, const std::string& path) {
  WriteDurably(path, [&](std::ostream& out) { WriteSafetensors(tensors, out); });
}

NamedTensors ReadSafetensors(std::string_view bytes, const std::string& source) {
  const auto fail = [&]() -> NamedTensors {
    throw TrainerError(source + " is not a complete safetensors file: write it again", ErrorKind::kData);
  };
  if (bytes.size() < kLengthBytes) return fail();
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  if (length > bytes.size() - kLengthBytes) return fail();
  const auto header =
      ordered_json::parse(bytes.substr(kLengthBytes, length), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return fail();
  NamedTensors tensors;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__")
        tensors.emplace_back(name, Take(entry, bytes.substr(kLengthBytes + length)));
    }
  } catch (const nlohmann::json::exception&) {
    return fail();
  } catch (const std::out_of_range&) {
    return fail();
  }
  return tensors;
}

}  // namespace scalelab::trainer
