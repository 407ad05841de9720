#include <algorithm>
#include <deque>
#include <map>

#include "engines/words.h"
#include "tools/prdctl/follow.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using Align = Table::Align;

constexpr std::size_t kChangesNamed = 8;

// Shares that were told anew at one time.
struct SharesRow {
  Instant at;
  SharesSet set;
  std::map<Rank, std::int64_t> before;  // shares; empty: these are the first
};

// "0: 128 > 142, 7: 128 > 28", or of a run's first shares and of lost ones, "0: 128, 1: 128".
std::string ChangesOf(const SharesRow& row) {
  std::vector<std::string> changes;
  std::map<Rank, std::int64_t> gone = row.before;
  for (const ShareGiven& share : row.set.shares) {
    const auto before = row.before.find(share.rank);
    const std::string to = std::to_string(share.samples);
    gone.erase(share.rank);
    const std::string rank = std::to_string(share.rank) + ": ";
    if (row.set.more) {
      changes.push_back(rank + "+" + to);
    } else if (before == row.before.end()) {
      changes.push_back(rank + to);
    } else if (before->second != share.samples) {
      changes.push_back(rank + std::to_string(before->second) + " > " + to);
    }
  }
  for (const auto& [rank, samples] : gone) {
    if (!row.set.more)
      changes.push_back(std::to_string(rank) + ": " + std::to_string(samples) + " > 0");
  }
  std::string text;
  for (std::size_t i = 0; i < changes.size() && i < kChangesNamed; ++i) {
    text += (i > 0 ? ", " : "") + changes[i];
  }
  if (changes.size() <= kChangesNamed) return text;
  return text + " and " + std::to_string(changes.size() - kChangesNamed) + " more";
}

class SharesView {
 public:
  SharesView(std::size_t last, const Console& console) : last_(last), console_(console) {}

  void Add(const Record& record) {
    if (record.index == 0) start_ = record.now;
    next_ = record.index + 1;
    if (const auto* ended = std::get_if<RunEnded>(&record.body)) {
      over_ = true;
      next_run_ = ended->next;
    }
    const auto* set = std::get_if<SharesSet>(&record.body);
    if (set == nullptr) return;
    const SharesRow row{.at = record.now, .set = *set, .before = shares_};
    if (!set->more) {
      shares_.clear();
      for (const ShareGiven& share : set->shares) shares_[share.rank] = share.samples;
    }
    if (live_) return Tell(row);
    rows_.push_back(row);
    if (last_ > 0 && rows_.size() > last_) rows_.pop_front();
  }

  void Print(const RunInfo& run) const {
    if (console_.json) {
      Json all = Json::array();
      for (const SharesRow& row : rows_) all.push_back(JsonOf(row));
      console_.out << Dump({{"run", ToJson(run)}, {"changes", std::move(all)}}) << '\n';
      return;
    }
    if (rows_.empty()) {
      console_.out << "the job has no batch: each worker chooses its own\n";
      return;
    }
    Table table({{"AT", Align::kRight}, {"FROM STEP", Align::kRight}, {"SHARES"}, {"REASON"}});
    for (const SharesRow& row : rows_) {
      table.Add({At(row), row.set.from > 0 ? std::to_string(row.set.from) : "", ChangesOf(row),
                 row.set.reason});
    }
    table.Print(console_.out);
  }
  // From now on each change is told as it comes; those so far at once.
  void Live() {
    live_ = true;
    for (const SharesRow& row : rows_) Tell(row);
    rows_.clear();
  }

  std::uint64_t next() const { return next_; }
  bool over() const { return over_; }
  RunId next_run() const { return next_run_; }

 private:
  std::string At(const SharesRow& row) const { return Number(Seconds(row.at - start_), 3) + " s"; }
  Json JsonOf(const SharesRow& row) const {
    Json shares = Json::array();
    for (const ShareGiven& share : row.set.shares) {
      shares.push_back({{"rank", share.rank},
                        {"first", share.first},
                        {"samples", share.samples},
                        {"expected_ns", share.expected_ns}});
    }
    return {{"at_s", Seconds(row.at - start_)}, {"from", row.set.from},
            {"batch", row.set.batch},           {"more", row.set.more},
            {"shares", std::move(shares)},      {"reason", row.set.reason}};
  }
  void Tell(const SharesRow& row) const {
    if (console_.json) {
      console_.out << Dump(JsonOf(row)) << '\n';
      return;
    }
    console_.out << At(row)
                 << (row.set.from > 0 ? "  from step " + std::to_string(row.set.from) : "") << "  "
                 << ChangesOf(row) << "  " << Harmless(row.set.reason) << '\n';
  }

  const std::size_t last_;
  const Console& console_;
  Instant start_;
  std::uint64_t next_ = 0;
  bool over_ = false, live_ = false;
  RunId next_run_ = kNoRun;
  std::map<Rank, std::int64_t> shares_;
  std::deque<SharesRow> rows_;
};

Status ShowSharesOf(HistorySource& source, const RunInfo& info, std::size_t last, bool follow,
                    const Console& console, RunId* next) {
  SharesView view(last, console);
  PRD_RETURN_IF_ERROR(ForEachRecord(source, info.run, 0, [&](const Record& record) {
    view.Add(record);
    return true;
  }));
  if (!follow) {
    PRD_RETURN_IF_ERROR(PrintInTurn(source, info, console));
    view.Print(info);
    return Status::Ok();
  }
  view.Live();
  return FollowRun(source, info.run, console, &view, next);
}

}  // namespace

Status ShowShares(HistorySource& source, const std::string& run, std::size_t last, bool follow,
                  const Console& console) {
  return ShowInTurn(source, run, follow, console, [&](const RunInfo& info, RunId* next) {
    return ShowSharesOf(source, info, last, follow, console, next);
  });
}

}  // namespace prd::ctl
