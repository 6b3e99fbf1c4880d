# Writes a C++ file with the text of the JSON Schema: cmake -D OUT=FILE -D FILE=SCHEMA -P embed.cmake
file(READ ${FILE} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "// Made by study/sections/embed.cmake.
#include \"study/sections/embedded_schema.h\"

namespace scalelab {
namespace {
constexpr unsigned char kBytes[] = {${bytes}};
}  // namespace

absl::string_view EmbeddedStudySchema() { return {reinterpret_cast<const char*>(kBytes), ${size}}; }

}  // namespace scalelab
")
