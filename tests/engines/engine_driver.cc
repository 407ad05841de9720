#include "tests/engines/engine_driver.h"

#include <algorithm>

#include "engines/violation.h"
#include "tests/engines/group_driver.h"
#include "tests/engines/neighbour_driver.h"
#include "tests/engines/store_driver.h"

namespace prd {

std::unique_ptr<EngineDriver> MakeDriver(Engine* engine, std::uint64_t seed, Rank max_workers) {
  const Plan plan = engine->plan();
  if (HasNeighbours(plan)) {
    return std::make_unique<NeighbourDriver>(engine, seed, max_workers);
  }
  if (HasStore(plan)) {
    return std::make_unique<StoreDriver>(engine, seed, max_workers);
  }
  return std::make_unique<GroupDriver>(engine, seed, max_workers);
}

std::string EngineDriver::Apply(const Event& event) {
  if (const auto* left = std::get_if<LeftEvent>(&event)) broken_.Forget(left->rank);
  Applied& applied = applied_.emplace_back();
  applied.now = now_;
  applied.event = event;
  try {
    engine_->Step(now_, event, &next_group_, &applied.effects);
  } catch (const Violation& violation) {
    return violation.what();
  }
  const Effects effects = applied.effects;
  for (const Effect& effect : effects) {
    if (auto wrong = Heed(effect, event); !wrong.empty()) return wrong;
  }
  return Look();
}

std::string EngineDriver::PassDeadline() {
  now_ = std::max(now_, *engine_->NextDeadline());
  if (auto wrong = Apply(DeadlineEvent{}); !wrong.empty()) return wrong;
  const auto next = engine_->NextDeadline();
  return next && *next <= now_ ? "a deadline that has passed is still there" : "";
}

Rank EngineDriver::FreeRank() {
  const std::vector<Rank> present = Present();
  auto rank = static_cast<Rank>(random_.Below(static_cast<std::uint64_t>(max_workers_)));
  while (std::find(present.begin(), present.end(), rank) != present.end()) {
    rank = (rank + 1) % max_workers_;
  }
  return rank;
}

std::string EngineDriver::SetLink(Rank a, Rank b, bool works) {
  if (a == b || broken_.Has(a, b) != works) return "";
  broken_.Set(a, b, works);
  return Apply(LinkEvent{.a = std::min(a, b), .b = std::max(a, b), .works = works});
}

// One link, or all of a worker's, or all.
std::string EngineDriver::ChangeLinks() {
  const std::vector<Rank> present = Present();
  if (present.empty()) return "";
  const Rank a = present[link_draws_.Below(present.size())];
  const Rank b = present[link_draws_.Below(present.size())];
  const std::uint64_t dice = link_draws_.Below(20);
  if (dice > 1) return SetLink(a, b, broken_.Has(a, b));
  for (const Rank one : present) {
    for (const Rank other : present) {
      if (dice == 1 && one != a) continue;
      if (auto wrong = SetLink(one, other, dice == 0); !wrong.empty()) return wrong;
    }
  }
  return "";
}

std::string EngineDriver::Storm(int events) {
  for (int i = 0; i < events; ++i) {
    now_.ns += static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(pace_)));
    if (breaks_links_ && link_draws_.Below(20) == 0) {
      if (auto wrong = ChangeLinks(); !wrong.empty()) return wrong;
    }
    const auto deadline = engine_->NextDeadline();
    const std::vector<Rank> present = Present();
    const std::uint64_t dice = random_.Below(100);
    std::string wrong;
    if (Urgent(&wrong)) {
    } else if (deadline && *deadline <= now_ && dice < 90) {
      wrong = PassDeadline();
    } else if (present.empty() || (dice < 4 && std::ssize(present) < max_workers_ && JoinsNow())) {
      wrong = JoinOne();
    } else if (dice < 4 + leaves_) {
      wrong = LeaveOne(Pick(present));
    } else if (!Act(true, dice, &wrong) && deadline) {
      wrong = PassDeadline();
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string EngineDriver::Calm(int steps) {
  ForgetSteps();
  const int limit = 1000 * (steps + 2) * static_cast<int>(Present().size() + 1);
  for (int i = 0; !AllHave(steps); ++i) {
    if (i == limit) return "no progress for some worker";
    now_.ns += static_cast<std::int64_t>(random_.Below(kMillisecond));
    const auto deadline = engine_->NextDeadline();
    std::string wrong;
    if (Urgent(&wrong)) {
    } else if (deadline && *deadline <= now_) {
      wrong = PassDeadline();
    } else if (!Act(false, random_.Below(100), &wrong)) {
      if (deadline) {
        wrong = PassDeadline();
      } else {
        wrong = "deadlock: every worker waits, and there is no deadline";
        for (const Rank rank : Present()) {
          wrong += "; rank " + std::to_string(rank) + ": " + engine_->Explain(now_, rank);
        }
      }
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string EngineDriver::Drain() {
  while (!Present().empty()) {
    std::string wrong = Calm(2);
    if (wrong.empty()) wrong = LeaveOne(Pick(Present()));
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string EngineDriver::Run() {
  for (int round = 0; round < 3; ++round) {
    if (auto wrong = Storm(500); !wrong.empty()) return wrong;
    if (auto wrong = Calm(10); !wrong.empty()) return wrong;
  }
  return Drain();
}

}  // namespace prd
