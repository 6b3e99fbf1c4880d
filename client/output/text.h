// Formatting of values for tables, plots and progress.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace scalelab::client {

// Returns the shortest text that parses to the same number ("0.1", "1795000000.25", "nan"). For CSV.
std::string Exact(double value);
// Returns about four significant digits: "0.03120", "12.35", "81240".
std::string Short(double value);
// Returns bytes with a binary unit, "1.25 GiB".
std::string Bytes(double bytes);
// Returns a fraction from 0 to 1 in percent, without the sign: "12.5".
std::string Percent(double share);
// Returns seconds as "0.8s", "42s", "3m07s", "2h05m" or "4d03h".
std::string Span(double seconds);

// Returns seconds since 1970; 0 if `time` is not set.
double Seconds(const google::protobuf::Timestamp& time);
// Returns seconds from `time` to `now`; negative if `time` is in the future.
double Since(const google::protobuf::Timestamp& time, absl::Time now);
// Returns for example "2026-11-21 13:37:00" in local time; empty if not set.
std::string LocalTime(const google::protobuf::Timestamp& time);
// Returns for example "2026-11-21T13:37:00Z"; empty if not set.
std::string UtcTime(const google::protobuf::Timestamp& time);

// Returns for example "native/ddp", "4", "true" or "[a, b]". Numbers have at most 15 digits.
std::string ValueText(const google::protobuf::Value& value);
// Returns the names of all axes in `keys`: first engine, model, dataset, precision and backend, then other
// axes by name, ranks last.
std::vector<std::string> AxesOf(const std::vector<const google::protobuf::Struct*>& keys);
// Returns for example "engine=native/ddp ranks=4".
std::string KeyText(const google::protobuf::Struct& key);
// Like KeyText, but without the names of axes whose values are strings: "native/ddp fp32 ranks=4".
std::string ShortKeyText(const google::protobuf::Struct& key);

// Converts an enum name: "OUT_OF_MEMORY" to "out_of_memory", "..._UNSPECIFIED" to "".
std::string EnumText(const std::string& name);
// Returns the last part of a resource name: "12" for "studies/7/runs/12".
std::string LastPart(absl::string_view name);

// Removes control characters (line breaks become spaces), so that data from a server cannot
// control a terminal.
std::string Printable(absl::string_view text);
// Returns the number of columns that UTF-8 text needs on a terminal. Chinese characters and most emoji need
// two columns, combining characters none.
int DisplayWidth(absl::string_view text);
// Truncates to at most `width` columns. Truncated text ends in `ellipsis` (one column).
std::string Cut(absl::string_view text, int width, absl::string_view ellipsis);

}  // namespace scalelab::client
