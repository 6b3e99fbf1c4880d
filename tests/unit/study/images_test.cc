// Tests the rules for data sets and images in studies.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/study/study_spec_builder.h"

namespace scalelab {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

TEST(StudyImages, ImagesThatDoNotSuitTheModel) {
  const auto with = [](const std::string& fixed) {
    return Spec(R"({"study": "s", "fixed": {"ranks": 1, )" + fixed + "}}");
  };
  EXPECT_THAT(
      Wrong(with(R"("model": "alexnet", "dataset": "cifar10", "data_dir": "/d")")),
      Only("fixed.model",
           "model alexnet needs images of at least 63 x 63 pixels, those of cifar10 have 32 x 32; use "
           "dataset synthetic or imagefolder with image_size: 63"));
  EXPECT_THAT(Wrong(with(R"("model": "inception_v3", "dataset": "imagefolder", "data_dir": "/d")")),
              Only("fixed.model",
                   "model inception_v3 needs images of at least 299 x 299 pixels, those of imagefolder have "
                   "224 x 224; set image_size: 299"));
  EXPECT_THAT(Wrong(with(R"("model": "vgg16", "dataset": "synthetic", "image_size": 31)")),
              ElementsAre(Field(&FieldViolation::description, HasSubstr("at least 32 x 32"))));
  for (const char* fits :
       {R"("model": "vgg16", "dataset": "synthetic")", R"("model": "mobilenet_v2", "dataset": "synthetic")",
        R"("model": "alexnet", "dataset": "synthetic", "image_size": 63)",
        R"("model": "vgg16", "dataset": "cifar10", "data_dir": "/d")",
        R"("model": "inception_v3", "dataset": "imagefolder", "data_dir": "/d", "image_size": 299)"}) {
    EXPECT_TRUE(ExpandStudy(with(fits)).ok()) << fits;
  }
}

TEST(StudyTokens, ModelsOfTextTrainOnTokensAndAllOthersOnImages) {
  const auto with = [](const std::string& fixed) {
    return Spec(R"({"study": "s", "fixed": {"ranks": 1, )" + fixed + "}}");
  };
  EXPECT_THAT(Wrong(with(R"("model": "gpt-nano", "dataset": "synthetic")")),
              Only("fixed.model",
                   "model gpt-nano trains on tokens, not on dataset synthetic; use dataset tokens or "
                   "synthetic-tokens"));
  EXPECT_THAT(Wrong(with(R"("model": "resnet20", "dataset": "synthetic-tokens")")),
              Only("fixed.model",
                   "model resnet20 trains on images, not on dataset synthetic-tokens; use dataset cifar10, "
                   "imagefolder or "
                   "synthetic"));
  EXPECT_THAT(Wrong(with(R"("model": "gpt-nano", "dataset": "synthetic-tokens", "sequence_length": 129)")),
              Only("fixed.sequence_length", "model gpt-nano takes samples of at most 128 tokens, not 129"));
  EXPECT_THAT(Wrong(with(R"("model": "resnet20", "dataset": "synthetic", "vocabulary": 5)")),
              Only("fixed.vocabulary",
                   "vocabulary is for dataset tokens or synthetic-tokens, not synthetic; remove it"));
  EXPECT_THAT(Wrong(with(R"("model": "gpt-small", "dataset": "tokens")")),
              Only("fixed.data_dir",
                   "dataset tokens needs data_dir, the directory that contains train.bin and val.bin"));
  EXPECT_TRUE(ExpandStudy(with(R"("model": "gpt-small", "dataset": "tokens", "data_dir": "/d")")).ok());
}

TEST(StudyImages, WhatADataSetNeedsAndHasItself) {
  const auto with = [](const std::string& fixed) {
    return Spec(R"({"study": "s", "fixed": {"ranks": 1, "model": "resnet20", )" + fixed + "}}");
  };
  EXPECT_THAT(Wrong(with(R"("dataset": "imagefolder")")),
              Only("fixed.data_dir",
                   "dataset imagefolder needs data_dir, the directory that contains train and val"));
  EXPECT_THAT(Wrong(with(R"("dataset": "imagefolder", "data_dir": "/d", "classes": 10)")),
              Only("fixed.classes", "classes is for dataset synthetic, not imagefolder; remove it"));
  EXPECT_THAT(
      Wrong(with(R"("dataset": "cifar10", "data_dir": "/d", "image_size": 64)")),
      Only("fixed.image_size", "image_size is for dataset synthetic or imagefolder, not cifar10; remove it"));
  const auto study = ExpandStudy(with(R"("dataset": "imagefolder", "data_dir": "/d")"));
  ASSERT_TRUE(study.ok()) << study.status();
  EXPECT_EQ(study->cells[0].spec.image_size(), 224);
  EXPECT_TRUE(study->cells[0].spec.augment());
}

}  // namespace
}  // namespace scalelab
