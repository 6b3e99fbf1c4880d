// Values as words: what tables, plots and progress show.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace scalelab::client {

// The shortest text that reads back as the same number ("0.1", "1795000000.25", "nan"): for CSV.
std::string Exact(double value);
// About four digits for a person: "0.03120", "12.35", "81240".
std::string Short(double value);
// Bytes with a binary unit, "1.25 GiB".
std::string Bytes(double bytes);
// A share of 0 to 1 in percent without the sign, "12.5".
std::string Percent(double share);
// Seconds as "0.8s", "42s", "3m07s", "2h05m", "4d03h".
std::string Span(double seconds);

// Seconds since 1970; 0 when `time` is not set.
double Seconds(const google::protobuf::Timestamp& time);
// Seconds from `time` to `now`; negative when it is still to come.
double Since(const google::protobuf::Timestamp& time, absl::Time now);
// "2026-11-21 13:37:00" in local time; empty when not set.
std::string LocalTime(const google::protobuf::Timestamp& time);
// "2026-11-21T13:37:00Z"; empty when not set.
std::string UtcTime(const google::protobuf::Timestamp& time);

// "native/ddp", "4", "true", "[a, b]".
std::string ValueText(const google::protobuf::Value& value);
// Names of all axes in `keys`: engine, model, dataset, precision, backend first, ranks last, others by name
// between.
std::vector<std::string> AxesOf(const std::vector<const google::protobuf::Struct*>& keys);
// "engine=native/ddp ranks=4".
std::string KeyText(const google::protobuf::Struct& key);
// "native/ddp fp32 ranks=4": like KeyText, but strings stand alone.
std::string ShortKeyText(const google::protobuf::Struct& key);

// "OUT_OF_MEMORY" -> "out_of_memory"; "..._UNSPECIFIED" -> "".
std::string EnumText(const std::string& name);
// "studies/7/runs/12" -> "12".
std::string LastPart(absl::string_view name);

// Without control characters (line breaks become spaces), so that nothing a server sends can steer a
// terminal.
std::string Printable(absl::string_view text);
// Columns that UTF-8 text takes, counting a code point as one.
int DisplayWidth(absl::string_view text);
// At most `width` columns; what is cut ends in `ellipsis` (one column).
std::string Cut(absl::string_view text, int width, absl::string_view ellipsis);

}  // namespace scalelab::client
