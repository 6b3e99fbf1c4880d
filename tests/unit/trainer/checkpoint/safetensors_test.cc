#include "worker/trainer/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "worker/trainer/checkpoint/parameters.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

std::string Bytes(const NamedTensors& tensors) {
  std::ostringstream out;
  WriteSafetensors(tensors, out);
  return out.str();
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const TrainerError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Safetensors, AreTheLengthOfTheHeaderTheHeaderAndTheData) {
  const std::string bytes =
      Bytes({{"a.weight", at::tensor({1.0f, 2.0f}).view({1, 2})}, {"n", at::full({}, 3, at::kLong)}});
  const std::string header = R"({"a.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                             R"("n":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})";
  const size_t length = (header.size() + 7) / 8 * 8;
  ASSERT_EQ(bytes.size(), 8 + length + 16);
  EXPECT_EQ(static_cast<uint8_t>(bytes[0]), length);
  EXPECT_EQ(bytes.substr(1, 7), std::string(7, '\0'));
  EXPECT_EQ(bytes.substr(8, length), header + std::string(length - header.size(), ' '));
  EXPECT_EQ(bytes.substr(8 + length, 8), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  EXPECT_EQ(bytes[8 + length + 8], 3);
}

TEST(Safetensors, BringBackEveryTypeAndShapeInLogicalOrder) {
  const NamedTensors written = {{"last", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
                                {"first", at::randn({3, 2}).t()},
                                {"half", at::randn({7}).to(at::kHalf)},
                                {"brain", at::randn({7}).to(at::kBFloat16)},
                                {"double", at::randn({2, 2}, at::kDouble)},
                                {"int", at::arange(5, at::kInt)},
                                {"byte", at::arange(3, at::kByte)},
                                {"bool", at::arange(2).to(at::kBool)},
                                {"nothing", at::empty({0, 3})}};
  const NamedTensors read = ReadSafetensors(Bytes(written), "memory");
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].first, written[i].first);
    EXPECT_EQ(read[i].second.scalar_type(), written[i].second.scalar_type()) << read[i].first;
    EXPECT_TRUE(read[i].second.equal(written[i].second)) << read[i].first;
  }
}

TEST(Safetensors, RefuseATypeThatTheFormatLacks) {
  EXPECT_THAT(ErrorOf([] { Bytes({{"z", at::zeros({1}, at::kComplexFloat)}}); }), HasSubstr("\"z\""));
}

TEST(Safetensors, ThatAreCutOrWrongAreRefusedByName) {
  const std::string bytes = Bytes({{"a", at::randn({4})}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(ErrorOf([&] { ReadSafetensors(bytes.substr(0, length), "/x/p.safetensors"); }),
                HasSubstr("/x/p.safetensors"))
        << length;
  }
  std::string changed = bytes;
  changed[changed.find("[4]") + 1] = '5';
  EXPECT_THAT(ErrorOf([&] { ReadSafetensors(changed, "p"); }),
              HasSubstr("p is not a complete safetensors file"));
}

TEST(Safetensors, AreSavedAsAWholeAndNameAPathThatCannotBeWritten) {
  const std::string dir = testing::TempDir() + "/safetensors-" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  const NamedTensors tensors = {{"a", at::randn({4})}};
  SaveSafetensors(tensors, dir + "/p.safetensors");
  std::ostringstream text;
  text << std::ifstream(dir + "/p.safetensors", std::ios::binary).rdbuf();
  EXPECT_EQ(text.str(), Bytes(tensors));
  EXPECT_FALSE(std::filesystem::exists(dir + "/p.safetensors.new"));
  EXPECT_THAT(ErrorOf([&] { SaveSafetensors(tensors, dir + "/none/p.safetensors"); }),
              HasSubstr(dir + "/none/p.safetensors"));
  std::filesystem::remove_all(dir);
}

TEST(InitialParameters, DependOnTheSeedAloneAndAreThoseOfTheModel) {
  TrainingSpec spec;
  spec.model = "resnet20";
  spec.seed = 5;
  const auto print = [](const TrainingSpec& wanted) {
    std::ostringstream out;
    PrintInitialParameters(wanted, out);
    return out.str();
  };
  const std::string bytes = print(spec);
  at::randn({100});
  EXPECT_EQ(print(spec), bytes);
  const auto model = MakeInitialModel(spec, ImageShape(), nullptr);
  const auto parameters = model->named_parameters(), buffers = model->named_buffers();
  const NamedTensors read = ReadSafetensors(bytes, "memory");
  ASSERT_EQ(read.size(), parameters.size() + buffers.size());
  for (const auto& [name, tensor] : read) {
    const at::Tensor* expected = parameters.find(name);
    if (expected == nullptr) expected = buffers.find(name);
    ASSERT_NE(expected, nullptr) << name;
    EXPECT_TRUE(tensor.equal(*expected)) << name;
  }
  spec.seed = 6;
  EXPECT_NE(print(spec), bytes);
}

}  // namespace
}  // namespace scalelab::trainer
