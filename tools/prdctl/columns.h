// Columns of tables, each described once: the human-readable table, the keys of --json and the list
// in
// --help all come from one description.
#ifndef PRD_TOOLS_PRDCTL_COLUMNS_H_
#define PRD_TOOLS_PRDCTL_COLUMNS_H_

#include <functional>
#include <string>
#include <vector>

#include "tools/prdctl/json.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {

// When the table has a column. JSON has every value of every row.
enum class Shown {
  kAlways,
  kWhereTold,     // some row has a value, 0 among them
  kWhereNotZero,  // some row has a value that is neither 0 nor empty
  kInJson,        // never
};

template <typename Row>
struct Column {
  std::string title;  // "": the table's column has none
  std::string key;    // in JSON; "": in the table only
  std::string unit;   // "ns" is shown as words::Duration; "": there is none
  std::string help;
  std::function<Json(const Row&)> value;  // null: nothing is told
  Shown shown = Shown::kWhereNotZero;
  std::function<std::string(const Row&)> text = nullptr;  // the cell; null: the value as it is
  Table::Align align = Table::Align::kRight;
};

// A value as a cell; "" for null.
std::string CellOf(const Json& value, const std::string& unit);
// Neither null nor 0 nor empty.
bool IsNotZero(const Json& value);

// Lines for --help: title, key and unit of each column, and what it is.
struct ColumnLine {
  std::string title, key, unit, help;
};
std::string HelpOf(const std::vector<ColumnLine>& lines);

template <typename Row>
std::string HelpOf(const std::vector<Column<Row>>& columns) {
  std::vector<ColumnLine> lines;
  for (const auto& column : columns) {
    const bool in_table = column.shown != Shown::kInJson;
    lines.push_back({in_table ? column.title : "", column.key, column.unit, column.help});
  }
  return HelpOf(lines);
}

template <typename Row>
bool IsShown(const Column<Row>& column, const std::vector<Row>& rows) {
  if (column.shown == Shown::kAlways) return true;
  if (column.shown == Shown::kInJson) return false;
  for (const Row& row : rows) {
    const Json value = column.value(row);
    if (column.shown == Shown::kWhereTold ? !value.is_null() : IsNotZero(value)) return true;
  }
  return false;
}

template <typename Row>
Table TableOf(const std::vector<Column<Row>>& columns, const std::vector<Row>& rows) {
  std::vector<const Column<Row>*> shown;
  std::vector<Table::Column> titles;
  for (const auto& column : columns) {
    if (!IsShown(column, rows)) continue;
    shown.push_back(&column);
    titles.push_back({column.title, column.align});
  }
  Table table(std::move(titles));
  for (const Row& row : rows) {
    std::vector<std::string> cells;
    for (const Column<Row>* column : shown) {
      cells.push_back(column->text ? column->text(row) : CellOf(column->value(row), column->unit));
    }
    table.Add(std::move(cells));
  }
  return table;
}

// Adds the row's values to an object.
template <typename Row>
void AddValues(const std::vector<Column<Row>>& columns, const Row& row, Json* to) {
  for (const auto& column : columns) {
    if (!column.key.empty()) (*to)[column.key] = column.value(row);
  }
}

// The same columns over rows that `find` makes one of; it gives null where there is none.
template <typename Row, typename Other, typename Find>
void Append(const std::vector<Column<Other>>& columns, const Find& find,
            std::vector<Column<Row>>* to) {
  for (const auto& column : columns) {
    Column<Row> wider{.title = column.title,
                      .key = column.key,
                      .unit = column.unit,
                      .help = column.help,
                      .value =
                          [column, find](const Row& row) {
                            const auto other = find(row);
                            return other ? column.value(*other) : Json(nullptr);
                          },
                      .shown = column.shown,
                      .text = nullptr,
                      .align = column.align};
    if (column.text) {
      wider.text = [column, find](const Row& row) {
        const auto other = find(row);
        return other ? column.text(*other) : std::string();
      };
    }
    to->push_back(std::move(wider));
  }
}

}  // namespace prd::ctl

#endif  // PRD_TOOLS_PRDCTL_COLUMNS_H_
