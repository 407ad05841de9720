#include "tools/sim/papers/papers.h"

#include <algorithm>
#include <utility>

namespace prd::sim {
namespace {

std::string PaperCell(const std::optional<double>& value, int digits) {
  return value ? Fixed(*value, digits) : "-";
}

template <typename Field>
std::vector<std::string> InOrder(const std::vector<PaperRow>& rows, Field PaperRow::*field) {
  std::vector<std::string> values;
  for (const PaperRow& row : rows) {
    if (std::find(values.begin(), values.end(), row.*field) == values.end()) {
      values.push_back(row.*field);
    }
  }
  return values;
}

const PaperRow* CellAt(const std::vector<PaperRow>& rows, const std::string& setting,
                       const std::string& unit) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const PaperRow& row) {
    return row.setting == setting && row.unit == unit;
  });
  return found == rows.end() ? nullptr : &*found;
}

// A line per setting, and a column per unit; three, where the paper has numbers for it.
std::string TableOf(const Paper& paper) {
  const std::vector<std::string> units = InOrder(paper.rows, &PaperRow::unit);
  std::vector<std::vector<std::string>> lines = {{"setting"}};
  std::vector<bool> beside;
  for (const std::string& unit : units) {
    beside.push_back(std::any_of(paper.rows.begin(), paper.rows.end(), [&](const PaperRow& row) {
      return row.unit == unit && row.paper;
    }));
    std::vector<std::string>& titles = lines.front();
    titles.push_back(beside.back() ? unit + ": paper" : unit);
    if (beside.back()) titles.emplace_back("ours");
    if (beside.back() && paper.compared) titles.emplace_back("off");
  }
  for (const std::string& setting : InOrder(paper.rows, &PaperRow::setting)) {
    std::vector<std::string> line = {setting};
    for (std::size_t i = 0; i < units.size(); ++i) {
      const PaperRow* row = CellAt(paper.rows, setting, units[i]);
      const PaperRow none;
      const PaperRow& cell = row != nullptr ? *row : none;
      if (beside[i]) line.push_back(PaperCell(cell.paper, cell.digits));
      line.push_back(PaperCell(cell.ours, cell.digits));
      if (!beside[i] || !paper.compared) continue;
      const bool both = cell.paper && cell.ours;
      line.push_back(both ? Fixed(100 * (*cell.ours / *cell.paper - 1), 1) + "%" : "-");
    }
    lines.push_back(std::move(line));
  }
  return Table(lines);
}

// The cells of each reason.
std::string WhysOf(const Paper& paper) {
  std::vector<std::pair<std::string, std::string>> whys;
  for (const PaperRow& row : paper.rows) {
    if (row.why.empty()) continue;
    const std::string cell = row.setting + " (" + row.unit + ")";
    const auto known = std::find_if(whys.begin(), whys.end(),
                                    [&](const auto& why) { return why.first == row.why; });
    if (known == whys.end()) {
      whys.emplace_back(row.why, cell);
    } else {
      known->second += "; " + cell;
    }
  }
  std::string text;
  for (const auto& [why, cells] : whys) text += "- " + cells + ": " + why + ".\n";
  return text;
}

}  // namespace

std::optional<double> SecondsToTarget(const Workload& workload, std::uint64_t seed) {
  const RunResult run = Simulate(workload, {.seed = seed, .stop_at_target = true});
  if (!run.target) return std::nullopt;
  return static_cast<double>(run.target->at.ns) / 1e9;
}

double StepsPerSecond(const RunResult& run) {
  double steps = 0;
  for (std::size_t i = 1; i < run.stats.workers.size(); ++i) {
    steps += static_cast<double>(run.stats.workers[i].steps);
  }
  const auto others = static_cast<double>(run.stats.workers.size() - 1);
  return run.seconds > 0 ? steps / others / run.seconds : 0;
}

std::optional<double> Over(std::optional<double> a, std::optional<double> b) {
  if (!a || !b || *a == 0 || *b == 0) return std::nullopt;
  return *a / *b;
}

std::vector<Paper> RunPapers(std::uint64_t seed, std::int64_t updates) {
  std::vector<Paper> papers;
  for (const auto run :
       {PartialReducePapers, EagerPapers, EsyncPapers, PraguePapers, HopPapers, SspPapers}) {
    for (Paper& paper : run(seed, updates)) papers.push_back(std::move(paper));
  }
  return papers;
}

std::string TextPapers(const std::vector<Paper>& papers) {
  std::string text;
  for (const Paper& paper : papers) {
    text += (text.empty() ? "" : "\n") + paper.about + "\n\n" + TableOf(paper);
    const std::string whys = WhysOf(paper);
    if (!whys.empty()) text += "\nWhy ours differ:\n" + whys;
    if (!paper.notes.empty()) text += "\n" + paper.notes + "\n";
  }
  return text;
}

Json JsonPapers(const std::vector<Paper>& papers) {
  Json rows = Json::array();
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  for (const Paper& paper : papers) {
    for (const PaperRow& row : paper.rows) {
      rows.push_back({{"engine", row.engine},
                      {"figure", row.figure},
                      {"setting", row.setting},
                      {"unit", row.unit},
                      {"paper", number(row.paper)},
                      {"ours", number(row.ours)},
                      {"why", row.why}});
    }
  }
  return {{"papers", std::move(rows)}};
}

}  // namespace prd::sim
