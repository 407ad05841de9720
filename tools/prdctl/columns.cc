#include "tools/prdctl/columns.h"

#include <sstream>

#include "engines/words.h"

namespace prd::ctl {

std::string CellOf(const Json& value, const std::string& unit) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (unit == "ns") return words::Duration(value.get<DurationNs>());
  return value.dump();
}

bool IsNotZero(const Json& value) {
  if (value.is_number()) return value != 0;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get<std::string>().empty();
  return !value.empty();  // of null, true
}

std::string HelpOf(const std::vector<ColumnLine>& lines) {
  Table table({{"COLUMN"}, {"--json"}, {"UNIT"}, {"MEANING"}});
  for (const ColumnLine& line : lines) {
    if (!line.help.empty()) table.Add({line.title, line.key, line.unit, line.help});
  }
  std::ostringstream text;
  text << "A column without a value in any row is left out; --json has every value.\n";
  table.Print(text);
  return text.str();
}

}  // namespace prd::ctl
