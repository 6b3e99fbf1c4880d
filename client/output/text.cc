#include "client/output/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdint>
#include <cwchar>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace scalelab::client {
namespace {

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

bool IsSet(const google::protobuf::Timestamp& time) { return time.seconds() != 0 || time.nanos() != 0; }

// Returns 15 digits, which hide errors of arithmetic: "0.3" for 0.1 + 0.2.
std::string NumberText(double value) {
  return std::trunc(value) == value ? Exact(value) : absl::StrFormat("%.15g", value);
}

int AxisOrder(absl::string_view axis) {
  constexpr std::array<absl::string_view, 5> kFirst = {"engine", "model", "dataset", "precision", "backend"};
  const auto it = std::find(kFirst.begin(), kFirst.end(), axis);
  if (it != kFirst.end()) return static_cast<int>(it - kFirst.begin());
  return axis == "ranks" ? 100 : 50;
}

}  // namespace

std::string Exact(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  // Uses the shortest form, except for whole numbers, which are printed in full: 100000, not 1e+05.
  const bool whole = std::trunc(value) == value && std::abs(value) < 1e15;
  const auto end = whole ? std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed)
                         : std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, end.ptr);
}

std::string Short(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return Exact(value);
  if (size == 0) return "0";
  if (size >= 1e9 || size < 1e-4) return absl::StrFormat("%.3g", value);
  if (size >= 1000) return absl::StrFormat("%.0f", value);
  if (size >= 100) return absl::StrFormat("%.1f", value);
  if (size >= 10) return absl::StrFormat("%.2f", value);
  if (size >= 1) return absl::StrFormat("%.3f", value);
  return absl::StrFormat("%.4f", value);
}

std::string Bytes(double bytes) {
  constexpr std::array<absl::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0 || bytes >= 100) return absl::StrFormat("%.0f %s", bytes, kUnits[unit]);
  return absl::StrFormat("%.*f %s", bytes >= 10 ? 1 : 2, bytes, kUnits[unit]);
}

std::string Percent(double share) { return absl::StrFormat("%.1f", share * 100); }

std::string Span(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 10) return absl::StrFormat("%.1fs", seconds);
  const int64_t s = std::llround(seconds);
  if (s < 60) return absl::StrFormat("%ds", s);
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

double Seconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + time.nanos() * 1e-9;
}

double Since(const google::protobuf::Timestamp& time, absl::Time now) {
  return absl::ToDoubleSeconds(now - TimeOf(time));
}

std::string LocalTime(const google::protobuf::Timestamp& time) {
  if (!IsSet(time)) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", TimeOf(time), absl::LocalTimeZone());
}

std::string UtcTime(const google::protobuf::Timestamp& time) {
  if (!IsSet(time)) return "";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E*SZ", TimeOf(time), absl::UTCTimeZone());
}

std::string ValueText(const google::protobuf::Value& value) {
  switch (value.kind_case()) {
    case google::protobuf::Value::kStringValue:
      return value.string_value();
    case google::protobuf::Value::kNumberValue:
      return NumberText(value.number_value());
    case google::protobuf::Value::kBoolValue:
      return value.bool_value() ? "true" : "false";
    case google::protobuf::Value::kListValue:
      return absl::StrCat(
          "[",
          absl::StrJoin(value.list_value().values(), ", ",
                        [](std::string* out, const auto& v) { absl::StrAppend(out, ValueText(v)); }),
          "]");
    case google::protobuf::Value::kStructValue:
      return absl::StrCat("{", KeyText(value.struct_value()), "}");
    default:
      return "null";
  }
}

std::vector<std::string> AxesOf(const std::vector<const google::protobuf::Struct*>& keys) {
  std::set<std::string> names;
  for (const auto* key : keys) {
    for (const auto& [name, value] : key->fields()) names.insert(name);
  }
  std::vector<std::string> axes(names.begin(), names.end());
  std::stable_sort(axes.begin(), axes.end(),
                   [](const auto& a, const auto& b) { return AxisOrder(a) < AxisOrder(b); });
  return axes;
}

std::string KeyText(const google::protobuf::Struct& key) {
  return absl::StrJoin(AxesOf({&key}), " ", [&key](std::string* out, const std::string& axis) {
    absl::StrAppend(out, axis, "=", ValueText(key.fields().at(axis)));
  });
}

std::string ShortKeyText(const google::protobuf::Struct& key) {
  return absl::StrJoin(AxesOf({&key}), " ", [&key](std::string* out, const std::string& axis) {
    const auto& value = key.fields().at(axis);
    if (!value.has_string_value()) absl::StrAppend(out, axis, "=");
    absl::StrAppend(out, ValueText(value));
  });
}

std::string EnumText(const std::string& name) {
  return absl::EndsWith(name, "_UNSPECIFIED") ? "" : absl::AsciiStrToLower(name);
}

std::string LastPart(absl::string_view name) {
  const size_t slash = name.rfind('/');
  return std::string(slash == absl::string_view::npos ? name : name.substr(slash + 1));
}

// Returns the number of bytes if the text starts with a character that changes the direction of what follows it
// (Unicode Standard Annex #9, section 2), otherwise 0. With these a name could show text in another order.
static size_t DirectionControl(absl::string_view text) {
  for (const absl::string_view control : {"\u061c", "\u200e", "\u200f", "\u202a", "\u202b", "\u202c",
                                          "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"}) {
    if (absl::StartsWith(text, control)) return control.size();
  }
  return 0;
}

std::string Printable(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\n' || c == '\t' || c == '\r') {
      out += ' ';
    } else if (c < 0x20 || c == 0x7f) {
      out += '?';
    } else if (c == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80) {
      out += '?';  // U+0080 to U+009F are control characters, too
      ++i;
    } else if (const size_t length = DirectionControl(text.substr(i)); length > 0) {
      out += '?';
      i += length - 1;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Returns the number of columns of a code point according to the C library, or 1 if it has no number.
static int ColumnsOf(wchar_t code_point) {
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const locale_t before = uselocale(utf8);  // of this thread
  const int columns = wcwidth(code_point);
  uselocale(before);
  return columns < 0 ? 1 : columns;
}

// Returns the number of columns of the character that begins at `at`, and sets `at` to the character's end.
static int TakeCharacter(absl::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t begin = at++;
  uint32_t tail = 0;  // the bits of the other bytes
  for (; at < text.size() && (text[at] & 0xc0) == 0x80; ++at)
    tail = (tail << 6) | (static_cast<unsigned char>(text[at]) & 0x3fU);
  const size_t bytes = at - begin;
  if (bytes == 1 || bytes > 4 || first < 0xc0) return 1;  // ASCII, or no UTF-8
  const uint32_t head = first & (0x7fU >> bytes);
  return ColumnsOf(static_cast<wchar_t>((head << (6 * (bytes - 1))) | tail));
}

int DisplayWidth(absl::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) columns += TakeCharacter(text, at);
  return columns;
}

std::string Cut(absl::string_view text, int width, absl::string_view ellipsis) {
  if (DisplayWidth(text) <= width) return std::string(text);
  if (width <= 0) return "";
  size_t end = 0;
  for (size_t at = 0; at < text.size(); end = at) {
    width -= TakeCharacter(text, at);
    if (width < 1) break;  // one column is for the ellipsis
  }
  return absl::StrCat(text.substr(0, end), ellipsis);
}

}  // namespace scalelab::client
