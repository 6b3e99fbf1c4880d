#include "proto/status.h"

#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Status, CarriesItsReason) {
  absl::Status status = MakeError(absl::StatusCode::kNotFound, "STUDY_NOT_FOUND", "no study 'a'");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "no study 'a'");
  EXPECT_EQ(ReasonOf(status), "STUDY_NOT_FOUND");
  EXPECT_EQ(ReasonOf(absl::NotFoundError("plain")), "");
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
}

TEST(Status, NamesTheFirstViolationAndCountsTheOthers) {
  EXPECT_EQ(InvalidFields({{"fixed.model", "unknown model 'x'"}}).message(),
            "fixed.model: unknown model 'x'");
  absl::Status three = InvalidFields({{"a", "one"}, {"b", "two"}, {"c", "three"}});
  EXPECT_EQ(three.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(three.message(), "a: one (and 2 more)");
  EXPECT_THAT(ViolationsOf(three), ElementsAre(FieldViolation{"a", "one"}, FieldViolation{"b", "two"},
                                               FieldViolation{"c", "three"}));
  EXPECT_THAT(ViolationsOf(absl::InvalidArgumentError("plain")), IsEmpty());
}

TEST(Status, EveryCodeSurvivesTheWire) {
  for (int code = 1; code <= 16; ++code) {
    absl::Status status = MakeError(static_cast<absl::StatusCode>(code), "A_REASON", "a sentence");
    grpc::Status wire = ToGrpc(status);
    EXPECT_EQ(wire.error_code(), code);
    EXPECT_EQ(FromGrpc(wire), status) << code;
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(Status, ViolationsSurviveTheWire) {
  absl::Status status = InvalidFields({{"matrix.engine[1]", "unknown engine"}, {"repeats", "too few"}});
  absl::Status back = FromGrpc(ToGrpc(status));
  EXPECT_EQ(back, status);
  EXPECT_THAT(ViolationsOf(back), ElementsAre(FieldViolation{"matrix.engine[1]", "unknown engine"},
                                              FieldViolation{"repeats", "too few"}));
}

TEST(Status, DetailsAreAGoogleRpcStatusWithTheSameCodeAndMessage) {
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(ToGrpc(InvalidFields({{"a", "one"}})).error_details()));
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), "a: one");
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.domain(), "scalelab");
  google::rpc::BadRequest request;
  EXPECT_TRUE(details.details(1).UnpackTo(&request));
}

TEST(Status, ManyViolationsAreCutToWhatTrailersCanCarry) {
  std::vector<FieldViolation> many;
  for (int i = 0; i < 500; ++i) {
    many.push_back({"matrix.learning_rate[" + std::to_string(i) + "]", std::string(100, 'x')});
  }
  grpc::Status wire = ToGrpc(InvalidFields(many));
  EXPECT_LE(wire.error_details().size(), 4500u);
  absl::Status back = FromGrpc(wire);
  EXPECT_EQ(ReasonOf(back), "INVALID_FIELDS");
  std::vector<FieldViolation> some = ViolationsOf(back);
  ASSERT_GT(some.size(), 5u);
  EXPECT_EQ(some[0], many[0]);
  EXPECT_EQ(some.back().description, "and " + std::to_string(500 - (some.size() - 1)) + " more like these");
}

TEST(Status, LongMessagesAreCutBetweenCharacters) {
  std::string message;
  for (int i = 0; i < 400; ++i) message += "\xC3\xA4";  // two bytes each
  grpc::Status wire = ToGrpc(absl::InternalError(message));
  EXPECT_THAT(wire.error_message(), EndsWith("\xC3\xA4..."));
  EXPECT_LE(wire.error_message().size(), 603u);
}

TEST(Status, BytesThatAreNoTextAreReplaced) {
  for (const char* bad : {"\xFF", "\xC3", "\xC0\xAF", "\xED\xA0\x80", "\xF5\x80\x80\x80"}) {
    absl::Status back =
        FromGrpc(ToGrpc(MakeError(absl::StatusCode::kInternal, "R", std::string("a") + bad + "b")));
    EXPECT_THAT(std::string(back.message()), testing::MatchesRegex("a\\?+b"));
    EXPECT_EQ(ReasonOf(back), "R") << "the details must still parse";
  }
}

TEST(Status, TakesAnythingFromTheWire) {
  // An undefined code within the range of the enumeration's bits; larger values would be undefined behaviour.
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(20), "strange")).code(),
            absl::StatusCode::kUnknown);
  absl::Status garbage = FromGrpc(grpc::Status(grpc::StatusCode::INTERNAL, "broken", "\xFFnot a message"));
  EXPECT_EQ(garbage.message(), "broken");
  EXPECT_EQ(ReasonOf(garbage), "");
}

TEST(Status, ViolationsCanBeAttachedToAnyCode) {
  absl::Status status = WithViolations(
      MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", "big"), {{"repeats", "big"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "STUDY_TOO_LARGE");
  EXPECT_THAT(ViolationsOf(status), ElementsAre(FieldViolation{"repeats", "big"}));
}

}  // namespace
}  // namespace scalelab
