#include "client/commands/access/token_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/output/text.h"

namespace scalelab::client {

std::string ScopeText(scalelab::v1::Scope scope) {
  const std::string name = EnumText(scalelab::v1::Scope_Name(scope));
  return std::string(absl::StripSuffix(name, "_scope"));
}

Section TokenTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Token>& tokens, absl::Time now) {
  Section table;
  table.columns = {{"name"},
                   {"user", Column::In::kAll, false, true},
                   {"scope"},
                   {"state"},
                   {"description", Column::In::kAll, false, true},
                   {"created", Column::In::kTables, false, false, 2},
                   {"expires", Column::In::kTables},
                   {"last_used", Column::In::kTables, false, false, 1},
                   {"create_time", Column::In::kCsv},
                   {"expire_time", Column::In::kCsv},
                   {"last_use_time", Column::In::kCsv}};
  table.empty = "there are no tokens; `scalelab token create` makes one";
  table.rows = [&tokens, now](const RowSink& sink) {
    for (const auto& t : tokens) {
      const bool expired = t.has_expire_time() && Since(t.expire_time(), now) >= 0;
      const Cell state = t.has_revoke_time() ? Cell("revoked", Tone::kDim)
                         : expired           ? Cell("expired", Tone::kDim)
                                             : Cell("valid", Tone::kGood);
      sink({t.name(), t.user(), ScopeText(t.scope()), state, t.description(), LocalTime(t.create_time()),
            LocalTime(t.expire_time()), LocalTime(t.last_use_time()), UtcTime(t.create_time()),
            UtcTime(t.expire_time()), UtcTime(t.last_use_time())});
    }
  };
  return table;
}

}  // namespace scalelab::client
