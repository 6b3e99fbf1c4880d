// The contract of AccessStore: personal tokens and the audit log.
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kDay = int64_t{24} * 3600 * 1'000'000;

class StoreAccess : public testing::TestWithParam<Implementation> {
 protected:
  StoreAccess() { Reopen(); }
  void Reopen() {
    store_.reset();
    store_ = *GetParam().open(directory_.path());
  }
  static TokenRow Token(const std::string& user, const std::string& hash) {
    TokenRow token;
    token.user = user;
    token.hash = hash;
    token.scope = 1;
    token.description = "laptop";
    token.created = 100 * kDay;
    token.expires = 130 * kDay;
    return token;
  }
  static AuditRow Entry(int64_t time, const std::string& user, bool refused = false) {
    AuditRow row;
    row.time = time;
    row.user = user;
    row.source = "munge";
    row.address = "10.0.0.1";
    row.action = "CancelStudy";
    row.target = "studies/7";
    row.result = refused ? "PERMISSION_DENIED" : "OK";
    row.detail = "why";
    row.count = 3;
    row.refused = refused;
    return row;
  }
  static std::vector<int64_t> Times(const std::vector<AuditRow>& rows) {
    std::vector<int64_t> times;
    for (const AuditRow& row : rows) times.push_back(row.time);
    return times;
  }
  TemporaryDirectory directory_ = TemporaryDirectory::InMemory();
  std::unique_ptr<Store> store_;
};

TEST_P(StoreAccess, TokensAreDurableAndCanBeChanged) {
  EXPECT_EQ(*store_->PutToken(Token("alice", "h1")), 1);
  EXPECT_EQ(*store_->PutToken(Token("bob", "h2")), 2);
  TokenRow changed = Token("alice", "h1");
  changed.id = 1;
  changed.revoked = 110 * kDay;
  changed.last_used = 109 * kDay;
  EXPECT_EQ(*store_->PutToken(changed), 1);
  Reopen();
  const std::vector<TokenRow> tokens = store_->ListTokens().value();
  ASSERT_THAT(tokens, SizeIs(2));
  EXPECT_EQ(tokens[0].user, "alice");
  EXPECT_EQ(tokens[0].hash, "h1");
  EXPECT_EQ(tokens[0].revoked, 110 * kDay);
  EXPECT_EQ(tokens[0].last_used, 109 * kDay);
  EXPECT_EQ(tokens[1].user, "bob");
  EXPECT_EQ(tokens[1].description, "laptop");
  EXPECT_EQ(tokens[1].expires, 130 * kDay);
  EXPECT_EQ(tokens[1].scope, 1);
}

TEST_P(StoreAccess, AHashIsStoredOnceAndAMissingTokenIsNotChanged) {
  ASSERT_TRUE(store_->PutToken(Token("alice", "h")).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store_->PutToken(Token("bob", "h")).status()));
  TokenRow missing = Token("bob", "h3");
  missing.id = 9;
  EXPECT_TRUE(absl::IsNotFound(store_->PutToken(missing).status()));
}

TEST_P(StoreAccess, TokensThatAreDeadForLongAreDeletedAndTheirIdsNotUsedAgain) {
  ASSERT_TRUE(store_->PutToken(Token("alice", "h1")).ok());
  TokenRow late = Token("alice", "h2");
  late.created = 161 * kDay;
  late.expires = 0;
  EXPECT_EQ(*store_->PutToken(late), 2);
  ASSERT_THAT(store_->ListTokens().value(), SizeIs(1));
  late.id = 2;
  late.revoked = 162 * kDay;
  ASSERT_TRUE(store_->PutToken(late).ok());
  Reopen();
  TokenRow last = Token("alice", "h3");
  last.created = 200 * kDay;
  EXPECT_EQ(*store_->PutToken(last), 3);
  EXPECT_THAT(store_->ListTokens().value(), SizeIs(1));
}

TEST_P(StoreAccess, AuditEntriesAreFilteredNewestFirst) {
  ASSERT_TRUE(store_->AppendAudit({Entry(1, "alice"), Entry(2, "bob", true), Entry(3, "alice", true)}).ok());
  ASSERT_TRUE(store_->AppendAudit({Entry(4, "bob")}).ok());
  Reopen();
  AuditFilter filter;
  const std::vector<AuditRow> all = store_->ListAudit(filter).value();
  EXPECT_THAT(Times(all), ElementsAre(4, 3, 2, 1));
  EXPECT_EQ(all[1].user, "alice");
  EXPECT_EQ(all[1].source, "munge");
  EXPECT_EQ(all[1].address, "10.0.0.1");
  EXPECT_EQ(all[1].action, "CancelStudy");
  EXPECT_EQ(all[1].target, "studies/7");
  EXPECT_EQ(all[1].result, "PERMISSION_DENIED");
  EXPECT_EQ(all[1].detail, "why");
  EXPECT_EQ(all[1].count, 3);
  EXPECT_TRUE(all[1].refused);
  filter.limit = 2;
  filter.before_id = all[1].id;
  EXPECT_THAT(Times(store_->ListAudit(filter).value()), ElementsAre(2, 1));
  filter = {};
  filter.user = "alice";
  EXPECT_THAT(Times(store_->ListAudit(filter).value()), ElementsAre(3, 1));
  filter = {};
  filter.since = 3;
  filter.refused_only = true;
  EXPECT_THAT(Times(store_->ListAudit(filter).value()), ElementsAre(3));
}

TEST_P(StoreAccess, RefusedCallsDoNotDisplaceChanges) {
  ASSERT_TRUE(store_->AppendAudit({Entry(1, "alice")}).ok());
  std::vector<AuditRow> flood(static_cast<size_t>(kAuditRefusals) + 3000, Entry(2, "", true));
  ASSERT_TRUE(store_->AppendAudit(flood).ok());
  AuditFilter filter;
  filter.limit = 1'000'000;
  const std::vector<AuditRow> rows = store_->ListAudit(filter).value();
  EXPECT_EQ(rows.size(), static_cast<size_t>(kAuditRefusals) + 1);
  EXPECT_EQ(rows.back().time, 1) << "the change is still there";
}

INSTANTIATE_TEST_SUITE_P(All, StoreAccess, testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace scalelab::db
