#include "tools/prdctl/commands_exchange.h"

#include <algorithm>
#include <set>

#include "engines/words.h"
#include "tools/prdctl/sync.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

bool Shards(const ExchangeMeter& meter) { return HasStore(meter.plan()); }

bool Contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Iteration IterationOf(const ExchangeMeter& meter, Rank rank) {
  const auto worker = meter.workers().find(rank);
  return worker == meter.workers().end() ? 0 : worker->second.iteration;
}

struct Held {
  std::uint64_t owned = 0;
  std::uint64_t copies = 0;
};
Held HeldOf(const ExchangeMeter& meter, Rank rank) {
  Held held;
  if (meter.placement() == nullptr) return held;
  for (const ShardPlace& place : meter.placement()->set.shards) {
    if (place.owner == rank) ++held.owned;
    if (Contains(place.holders, rank)) ++held.copies;
  }
  return held;
}

std::string TokensText(const ExchangeMeter& meter, Rank rank) {
  const std::optional<Tokens> tokens = meter.FewestTokens(rank);
  if (!tokens) return "";
  return std::to_string(tokens->count) + " (of rank " + std::to_string(tokens->of) + ")";
}

// Why the worker does not go on, as far as the records tell; empty: nothing keeps it.
std::string WaitText(const ExchangeMeter& meter, Rank rank) {
  const auto worker = meter.workers().find(rank);
  if (worker == meter.workers().end()) return "";
  if (!worker->second.trains) return "has finished, or is gone";
  if (worker->second.signalled) {
    const std::vector<Rank> by = meter.HeldBy(rank);
    const std::string asks = "asks for " + std::to_string(worker->second.iteration + 1);
    if (by.empty()) return asks;
    return asks + (Shards(meter) ? ": clocks of " : ": tokens of ") + words::Ranks(by);
  }
  const std::vector<Rank> missing = meter.UpdatesMissing(rank);
  return missing.empty() ? "" : "no update yet of " + words::Ranks(missing);
}

std::string StateOf(const PlacementRow& row) {
  return row.opened ? "open" : "closed: shards are on their way";
}

std::string Quoted(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return '"' + quoted + '"';
}

std::string NodesDot(const ExchangeMeter& meter, const std::set<Rank>& ranks) {
  std::string dot;
  for (const Rank rank : ranks) {
    const auto worker = meter.workers().find(rank);
    const bool waits = worker != meter.workers().end() && worker->second.signalled.has_value();
    dot += "  " + std::to_string(rank) + " [label=\"" + std::to_string(rank) + "\\n" +
           (Shards(meter) ? "clock " : "at ") + std::to_string(IterationOf(meter, rank)) + "\"" +
           (waits ? ", color=red" : "") + "];\n";
  }
  return dot;
}

std::string NeighboursDot(const ExchangeMeter& meter) {
  std::set<Rank> ranks;
  for (const auto& [rank, set] : meter.graph()) ranks.insert(rank);
  std::string dot = NodesDot(meter, ranks);
  for (const auto& [rank, set] : meter.graph()) {
    const std::vector<Rank> missing = meter.UpdatesMissing(rank);
    for (const InEdge& edge : set.in) {
      dot += "  " + std::to_string(edge.rank) + " -> " + std::to_string(rank) + " [label=\"" +
             Number(edge.weight, 3) + "\"" + (Contains(missing, edge.rank) ? ", color=red" : "") +
             "];\n";
    }
    for (const Rank of : meter.HeldBy(rank)) {
      dot += "  " + std::to_string(of) + " -> " + std::to_string(rank) +
             " [label=\"no token\", style=dashed, color=red];\n";
    }
  }
  return dot;
}

// From each owner to who has copies of its shards.
std::string ShardsDot(const ExchangeMeter& meter) {
  const PlacementRow* row = meter.placement();
  if (row == nullptr) return "";
  std::map<std::pair<Rank, Rank>, std::string> edges;
  for (std::size_t shard = 0; shard < row->set.shards.size(); ++shard) {
    const ShardPlace& place = row->set.shards[shard];
    for (const Rank holder : place.holders) {
      std::string& label = edges[{place.owner, holder}];
      label += (label.empty() ? "" : ", ") + std::to_string(shard);
    }
  }
  std::string dot = NodesDot(meter, {row->set.members.begin(), row->set.members.end()});
  for (const auto& [edge, label] : edges) {
    dot += "  " + std::to_string(edge.first) + " -> " + std::to_string(edge.second) + " [label=\"" +
           label + "\"];\n";
  }
  return dot;
}

void AddExchange(const ExchangeMeter& meter, Rank rank, Json* worker) {
  const std::optional<ExchangeLine> line = LineOf(meter, rank);
  if (!line) return;
  (*worker)["iteration"] = line->worker->iteration;
  AddValues(ExchangeColumns(), *line, worker);
}

Json NeighboursJson(const ExchangeMeter& meter) {
  Json json = {{"max_iteration_gap", meter.max_iteration_gap()},
               {"workers", Json::array()},
               {"edges", Json::array()}};
  for (const auto& [rank, set] : meter.graph()) {
    Json worker = {{"rank", rank},
                   {"own_weight", set.own_weight},
                   {"out", set.out},
                   {"slots", set.slots},
                   {"updates_missing", meter.UpdatesMissing(rank)},
                   {"held_by", meter.HeldBy(rank)},
                   {"reason", set.reason}};
    AddExchange(meter, rank, &worker);
    json["workers"].push_back(std::move(worker));
    for (const InEdge& edge : set.in) {
      json["edges"].push_back(
          {{"from", edge.rank}, {"to", rank}, {"weight", edge.weight}, {"since", edge.from}});
    }
  }
  return json;
}

Json ShardsJson(const ExchangeMeter& meter) {
  Json json = {{"epoch", nullptr}, {"shards", Json::array()}, {"workers", Json::array()}};
  const PlacementRow* row = meter.placement();
  if (row == nullptr) return json;
  json["epoch"] = row->set.epoch;
  json["open"] = row->opened.has_value();
  json["since_s"] = Seconds(row->since - meter.start());
  json["opened_s"] = row->opened ? Json(Seconds(*row->opened - meter.start())) : Json(nullptr);
  json["reason"] = row->set.reason;
  for (const Rank rank : row->set.members) {
    json["workers"].push_back({{"rank", rank}, {"held_by", meter.HeldBy(rank)}});
    AddExchange(meter, rank, &json["workers"].back());
  }
  for (std::size_t shard = 0; shard < row->set.shards.size(); ++shard) {
    const ShardPlace& place = row->set.shards[shard];
    json["shards"].push_back(
        {{"shard", shard},
         {"owner", place.owner},
         {"holders", place.holders},
         {"source", place.source == kNoRank ? Json(nullptr) : Json(place.source)}});
  }
  return json;
}

void PrintNeighbours(const ExchangeMeter& meter, const Console& console) {
  if (meter.graph().empty()) {
    console.out << "no graph is in force yet\n";
    return;
  }
  Table table({{"RANK", Align::kRight},
               {"ITERATION", Align::kRight},
               {"TOKENS", Align::kRight},
               {"OWN WEIGHT", Align::kRight},
               {"UPDATES OF (WEIGHT)"},
               {"TO"},
               {"WAITS"}});
  for (const auto& [rank, set] : meter.graph()) {
    std::string in, out;
    for (const InEdge& edge : set.in) {
      in += (in.empty() ? "" : ", ") + std::to_string(edge.rank) + " (" + Number(edge.weight, 3) +
            ")";
    }
    for (const Rank to : set.out) out += (out.empty() ? "" : ", ") + std::to_string(to);
    table.Add({std::to_string(rank), std::to_string(IterationOf(meter, rank)),
               TokensText(meter, rank), Number(set.own_weight, 3), in, out, WaitText(meter, rank)});
  }
  table.Print(console.out);
}

void PrintShards(const ExchangeMeter& meter, const Console& console) {
  const PlacementRow* row = meter.placement();
  if (row == nullptr) {
    console.out << "no placement yet\n";
    return;
  }
  console.out << "placement " << row->set.epoch << ", " << StateOf(*row) << ", set at "
              << Number(Seconds(row->since - meter.start()), 3) << " s";
  if (row->opened) {
    console.out << ", opened " << words::Duration(*row->opened - row->since) << " later";
  }
  console.out << ": " << Harmless(row->set.reason) << '\n';
  Table table({{"SHARD", Align::kRight}, {"OWNER", Align::kRight}, {"HOLDERS"}, {"TAKEN FROM"}});
  for (std::size_t shard = 0; shard < row->set.shards.size(); ++shard) {
    const ShardPlace& place = row->set.shards[shard];
    std::string holders;
    for (const Rank rank : place.holders) {
      holders += (holders.empty() ? "" : ", ") + std::to_string(rank);
    }
    table.Add({std::to_string(shard), std::to_string(place.owner), holders,
               place.source == kNoRank       ? "the owner's replica"
               : place.source == place.owner ? "the owner had it"
                                             : RankName(place.source)});
  }
  table.Print(console.out);
}

}  // namespace

Result<ExchangeMeter> MeasureExchange(HistorySource& source, const RunInfo& run) {
  ExchangeMeter meter;
  PRD_RETURN_IF_ERROR(ForEachRecord(source, run.run, 0, [&](const Record& record) {
    meter.Add(record);
    return true;
  }));
  return meter;
}

std::optional<ExchangeLine> LineOf(const ExchangeMeter& meter, Rank rank) {
  const auto found = meter.workers().find(rank);
  if (found == meter.workers().end()) return std::nullopt;
  return ExchangeLine{&meter, &found->second};
}

const std::vector<Column<ExchangeLine>>& ExchangeColumns() {
  using Line = ExchangeLine;
  static const std::vector<Column<Line>> columns = {
      {"", "waits", "", "its signal, which asks for the next iteration, stands",
       [](const Line& of) { return of.worker->signalled.has_value(); }, Shown::kInJson},
      {"AHEAD", "ahead", "iterations", "how far it is ahead of the slowest worker",
       [](const Line& of) {
         const std::optional<Iteration> slowest = of.meter->Slowest();
         return of.worker->trains && slowest ? Json(of.worker->iteration - *slowest)
                                             : Json(nullptr);
       }},
      {"TOKENS", "tokens", "", "the fewest tokens that it has, and of whom",
       [](const Line& of) {
         const std::optional<Tokens> tokens = of.meter->FewestTokens(of.worker->rank);
         return tokens ? Json(tokens->count) : Json(nullptr);
       },
       Shown::kWhereTold,
       [](const Line& of) {
         return of.worker->trains ? TokensText(*of.meter, of.worker->rank) : std::string();
       }},
      {"", "tokens_of", "", "whose these are",
       [](const Line& of) {
         const std::optional<Tokens> tokens = of.meter->FewestTokens(of.worker->rank);
         return tokens ? Json(tokens->of) : Json(nullptr);
       },
       Shown::kInJson},
      {"QUEUED", "queued_updates", "updates", "in its queues, at its last signal",
       [](const Line& of) { return of.worker->queued; }},
      {"JUMPS (SKIPPED)", "jumps", "",
       "times that it went on by more than one iteration, and the iterations skipped with them",
       [](const Line& of) { return of.worker->jumps; }, Shown::kWhereNotZero,
       [](const Line& of) {
         return std::to_string(of.worker->jumps) +
                (of.worker->jumps > 0 ? " (" + std::to_string(of.worker->skipped) + ")" : "");
       }},
      {"", "skipped_iterations", "iterations", "the iterations skipped",
       [](const Line& of) { return of.worker->skipped; }, Shown::kInJson},
      {"DROPPED", "dropped_updates", "updates", "updates that came to it and were never used",
       [](const Line& of) { return of.worker->dropped; }},
      {"SUPPRESSED", "suppressed_updates", "updates",
       "updates of its own that were not sent: their receiver was past them",
       [](const Line& of) { return of.worker->suppressed; }},
      {"OWNS", "shards_owned", "shards", "shards that it owns",
       [](const Line& of) { return HeldOf(*of.meter, of.worker->rank).owned; }},
      {"HOLDS", "shards_held", "shards", "shards of others that it has copies of",
       [](const Line& of) { return HeldOf(*of.meter, of.worker->rank).copies; }},
  };
  return columns;
}

std::vector<std::pair<Rank, std::string>> OthersOf(const ExchangeMeter& meter, Rank rank) {
  std::vector<std::pair<Rank, std::string>> others;
  const auto worker = meter.workers().find(rank);
  if (worker == meter.workers().end() || !worker->second.trains) return others;
  const std::vector<Rank> by = meter.HeldBy(rank);
  if (Shards(meter)) {
    for (const auto& [other, row] : meter.workers()) {
      if (other == rank || !row.trains) continue;
      others.emplace_back(other, "at clock " + std::to_string(row.iteration) +
                                     (Contains(by, other) ? ", which holds it up" : ""));
    }
    return others;
  }
  const auto set = meter.graph().find(rank);
  if (set == meter.graph().end()) return others;
  const std::vector<Rank> missing = meter.UpdatesMissing(rank);
  std::set<Rank> neighbours(set->second.out.begin(), set->second.out.end());
  for (const InEdge& edge : set->second.in) neighbours.insert(edge.rank);
  for (const Rank other : neighbours) {
    const Iteration at = IterationOf(meter, other);
    std::string does = "at iteration " + std::to_string(at);
    if (Contains(missing, other)) does += "; its next update has not been sent";
    if (meter.max_iteration_gap() > 0 && Contains(set->second.out, other)) {
      const Iteration tokens = at - worker->second.iteration + meter.max_iteration_gap();
      does += "; " + std::to_string(tokens) + (tokens == 1 ? " token" : " tokens") + " of it";
    }
    others.emplace_back(other, std::move(does));
  }
  return others;
}

Json GraphJson(const ExchangeMeter& meter) {
  return Shards(meter) ? ShardsJson(meter) : NeighboursJson(meter);
}

std::string GraphDot(const ExchangeMeter& meter, const std::string& title) {
  return "digraph exchange {\n  label=" + Quoted(title) +
         ";\n  layout=circo;\n  node [shape=circle];\n" +
         (Shards(meter) ? ShardsDot(meter) : NeighboursDot(meter)) + "}\n";
}

void PrintGraph(const ExchangeMeter& meter, const Console& console) {
  Shards(meter) ? PrintShards(meter, console) : PrintNeighbours(meter, console);
}

std::string Shares(const std::map<Iteration, std::uint64_t>& counts) {
  constexpr std::size_t kShown = 8;
  if (counts.size() > kShown) {
    return "median " + std::to_string(Quantile(counts, 0.5)) + ", 90% up to " +
           std::to_string(Quantile(counts, 0.9)) + ", at most " +
           std::to_string(counts.rbegin()->first);
  }
  std::uint64_t all = 0;
  for (const auto& [ahead, count] : counts) all += count;
  std::string text;
  for (const auto& [ahead, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(ahead) + ": " +
            Number(100 * static_cast<double>(count) / static_cast<double>(all), 0) + "%";
  }
  return text;
}

}  // namespace prd::ctl
