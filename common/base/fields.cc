#include "common/base/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace prd {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string WholeAllowed(const WholeRange& range) {
  std::string text =
      "a whole number from " + std::to_string(range.least) + " to " + std::to_string(range.most);
  if (!range.unit.empty()) text += " (" + std::string(range.unit) + ")";
  return text;
}

std::string Quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

std::string NamesAllowed(Field::Names names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += Quoted(names[i]);
  }
  return text;
}

}  // namespace

std::string Allowed(const Field& field) {
  return std::visit(Overloaded{
                        // A rule says what it allows when it is given what it refuses.
                        [](const Field::Text& of) { return of.rule("\x7f"); },
                        [](const Field::Flag&) { return std::string("true or false"); },
                        [](const Field::Whole& of) {
                          std::string text;
                          for (const Field::NamedNumber& named : of.names)
                            text += Quoted(named.name) + ", ";
                          return text + (text.empty() ? "" : "or ") + WholeAllowed(of.range);
                        },
                        [](const Field::Real& of) {
                          return "a number from " + TomlReal(of.range.least) + " to below " +
                                 TomlReal(of.range.below);
                        },
                        [](const Field::Name& of) { return NamesAllowed(of.names); },
                        [](const Field::NameOrPairs& of) {
                          std::string text;
                          for (const std::string_view name : of.names) text += Quoted(name) + ", ";
                          return text + "or a list of pairs [a, b] of whole numbers from " +
                                 std::to_string(of.least) + " to " + std::to_string(of.most);
                        },
                    },
                    field.kind);
}

bool IsAllowed(const Field& field) {
  return std::visit(
      Overloaded{
          [](const Field::Text& of) { return of.rule(*of.value).empty(); },
          [](const Field::Flag&) { return true; },
          [](const Field::Whole& of) {
            return (*of.value >= of.range.least && *of.value <= of.range.most) ||
                   std::any_of(of.names.begin(), of.names.end(),
                               [&](const auto& named) { return named.value == *of.value; });
          },
          [](const Field::Real& of) {
            return *of.value >= of.range.least && *of.value < of.range.below;  // not a NaN
          },
          [](const Field::Name& of) { return *of.value < of.names.size(); },
          [](const Field::NameOrPairs& of) {
            const auto fits = [&](std::int32_t end) { return end >= of.least && end <= of.most; };
            return *of.value < of.names.size() ||
                   std::all_of(of.pairs->begin(), of.pairs->end(), [&](const auto& pair) {
                     return fits(pair.first) && fits(pair.second);
                   });
          },
      },
      field.kind);
}

std::string ValueText(const Field& field) {
  const auto name = [](Field::Names names, std::size_t index) {
    return index < names.size() ? TomlText(names[index]) : std::to_string(index);
  };
  return std::visit(
      Overloaded{
          [](const Field::Text& of) { return TomlText(*of.value); },
          [](const Field::Flag& of) { return std::string(*of.value ? "true" : "false"); },
          [](const Field::Whole& of) {
            for (const Field::NamedNumber& named : of.names) {
              if (named.value == *of.value) return TomlText(named.name);
            }
            return std::to_string(*of.value);
          },
          [](const Field::Real& of) { return TomlReal(*of.value); },
          [&](const Field::Name& of) { return name(of.names, *of.value); },
          [&](const Field::NameOrPairs& of) {
            if (*of.value < of.names.size()) return name(of.names, *of.value);
            std::string text;
            for (const auto& [a, b] : *of.pairs) {
              text +=
                  (text.empty() ? "[" : ", [") + std::to_string(a) + ", " + std::to_string(b) + "]";
            }
            return "[" + text + "]";
          },
      },
      field.kind);
}

std::string TomlText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string TomlReal(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  std::string out(text.data(), end.ptr);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

Status Wrong(std::string_view key, std::string_view found, std::string_view allowed) {
  return Status(Code::kInvalidArgument, std::string(key) + ": found " + std::string(found) +
                                            ", allowed is " + std::string(allowed));
}

}  // namespace prd
