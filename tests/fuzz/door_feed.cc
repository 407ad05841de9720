#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/fuzz/mesh_feed.h"
#include "tests/fuzz/script.h"
#include "worker/mesh/door.h"
#include "worker/mesh/keys.h"

namespace prd {
namespace {

constexpr Incarnation kSelf = 1;
constexpr RunId kRun = 7;
constexpr std::size_t kWorkers = 5;
constexpr std::size_t kMute = kWorkers - 1;  // its key is none that anybody can have drawn
constexpr DurationNs kPatience = 10 * kSecond;

MeshKeyPair Drawn() {
  const Result<MeshKeyPair> keys = DrawMeshKeys();
  PRD_CHECK(keys.ok());
  return *keys;
}

// A transport where the script knocks.
class Knocks : public Transport {
 public:
  const std::vector<std::string>& endpoints() const override { return none_; }
  Result<std::unique_ptr<Link>> Open(const Opening&) override {
    return Status(Code::kUnavailable, "none");
  }
  void ShowKeys(bool, const MeshKeyPair&) override {}
  std::optional<Knock> TakeKnock() override {
    if (waiting.empty()) return std::nullopt;
    Knock knock = std::move(waiting.front());
    waiting.pop_front();
    return knock;
  }
  void Answer(std::uint64_t knock, std::optional<std::uint64_t> visitor) override {
    answers.emplace_back(knock, visitor.has_value());
  }
  bool Receive(Arrival*) override { return false; }
  void Attribute(Incarnation) override {}
  void End(Incarnation) override {}
  void Allow(std::size_t, std::uint64_t) override {}
  Counters counters() const override { return {}; }

  std::deque<Knock> waiting;
  std::vector<std::pair<std::uint64_t, bool>> answers;

 private:
  std::vector<std::string> none_;
};

class DoorFeed {
 public:
  DoorFeed() : directory_(Drawn()), door_(&knocks_, &directory_) {
    for (std::size_t w = 0; w < kWorkers; ++w) {
      Played& played = workers_[w];
      played.member = {.rank = static_cast<Rank>(w % 3), .incarnation = 100 + w, .weight = 1};
      const MeshKeyPair keys = Drawn();
      if (w != kMute) played.member.mesh_key = keys.public_key;
      const auto agreed =
          AgreeOnKeys(keys, directory_.own().public_key,
                      {.run = kRun, .from = played.member.incarnation, .to = kSelf});
      played.key = agreed.value().out;
    }
  }

  std::string Run(std::string_view bytes, MeshTally* tally) {
    Script script(bytes);
    tally_ = tally;
    fault_.clear();
    directory_.Join(kSelf, kRun);
    announced_.clear();
    Join(MeshSecurity::kAead);
    while (!script.over() && fault_.empty()) Step(&script);
    Serve();
    now_ = now_ + kPatience + 1;
    Serve();
    if (fault_.empty() && !asked_.empty()) fault_ = "a question was never answered";
    asked_.clear();
    return fault_;
  }

 private:
  struct Played {
    GroupMember member;
    SecretKey key{};
  };
  struct Asked {
    std::optional<Pass> pass;  // with its proof
    std::optional<Incarnation> key;
  };

  void Step(Script* script) {
    switch (script->Below(9)) {
      case 0:
      case 1:
        return ShowPass(script, false);
      case 2:
      case 3:
        return ShowPass(script, true);
      case 4: {
        Transport::Knock knock = Question(script, script->Below(2) == 0);
        for (std::size_t n = script->Below(4); n > 0; --n) knock.shown.push_back(script->Text(70));
        return Ask(std::move(knock), {});
      }
      case 5:
        return ShowKey(script);
      case 6:
        return Announce(script->Below(kWorkers));
      case 7:
        if (script->Below(4) == 0) Join(static_cast<MeshSecurity>(script->Below(3)));
        return;
      default:
        now_ = now_ + static_cast<DurationNs>(script->Number() % kPatience);
        Serve();
    }
  }

  // Nobody is announced again after another one in its place.
  void Announce(std::size_t w) {
    const Rank rank = workers_[w].member.rank;
    const auto [newest, first] = announced_.try_emplace(rank, w);
    if (newest->second > w) return;
    newest->second = w;
    directory_.Announce(workers_[w].member);
  }

  void Join(MeshSecurity security) {
    security_ = security;
    newest_.clear();
    door_.Join(security, kPatience);
  }

  void ShowPass(Script* script, bool spoil) {
    const Played& as = workers_[script->Below(kWorkers)];
    const Pass pass{.from = as.member.incarnation,
                    .number = script->Number(),
                    .purpose = script->Below(2) == 0 ? Purpose::kData : Purpose::kSignals};
    std::string user = EncodePass(pass);
    std::string proof = ProofOf(as.key, pass);
    bool good = true;
    if (spoil) {
      const std::string was = user + proof;
      Spoil(script, script->Below(2) == 0 ? &user : &proof);
      good = user + proof == was;
    }
    Transport::Knock knock = Question(script, false);
    knock.shown = {user, proof};
    Ask(std::move(knock), {.pass = good ? std::optional(pass) : std::nullopt});
  }

  void ShowKey(Script* script) {
    const Played& as = workers_[script->Below(kWorkers)];
    MeshKey key = as.member.mesh_key;
    const bool spoil = script->Below(2) == 0;
    if (spoil) key.bytes[script->Below(key.bytes.size())] ^= script->Byte() | 1;
    std::string text(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
    const bool whole = script->Below(8) != 0;
    if (!whole) text += script->Text(40);
    const bool good = !spoil && text.size() == key.bytes.size();
    Transport::Knock knock = Question(script, true);
    knock.shown = {text};
    Ask(std::move(knock), {.key = good ? std::optional(as.member.incarnation) : std::nullopt});
  }

  void Spoil(Script* script, std::string* text) {
    const std::size_t at = script->Below(text->size());
    switch (script->Below(4)) {
      case 0:
        text->resize(at);
        return;
      case 1:
        *text += script->Text(80);
        return;
      case 2:
        *text = script->Text(120);
        return;
      default:
        (*text)[at] ^= static_cast<char>(script->Byte());
    }
  }

  Transport::Knock Question(Script* script, bool key) {
    const bool local = script->Below(2) == 0;
    return {.address = local ? "localhost:0:0:1" : "192.0.2.1", .local = local, .key = key};
  }

  void Ask(Transport::Knock knock, Asked asked) {
    ++tally_->knocks;
    knock.id = ++number_;
    asked_.emplace(number_, std::move(asked));
    knocks_.waiting.push_back(std::move(knock));
  }

  void Serve() {
    const std::uint64_t admitted = door_.counters().admitted;
    door_.Serve(now_);
    std::uint64_t let_in = 0;
    for (const auto& [knock, yes] : std::exchange(knocks_.answers, {})) {
      const auto asked = asked_.find(knock);
      if (asked == asked_.end()) return Fault("an answer that nobody waits for");
      let_in += yes ? 1 : 0;
      Check(asked->second, yes);
      asked_.erase(asked);
    }
    tally_->admitted += let_in;
    if (door_.counters().admitted != admitted + let_in) Fault("it has let in others");
    if (asked_.size() > Door::kMaxHeld) Fault("too many wait");
    // Peers that are let in wait no longer.
    for (const auto& [number, asked] : asked_) {
      if (asked.pass && security_ != MeshSecurity::kCurve && MayEnter(asked.pass->from)) {
        Fault("who is announced waits");
      }
    }
  }

  bool MayEnter(Incarnation who) const { return directory_.KeysOf(who) != nullptr; }

  void Check(const Asked& asked, bool yes) {
    if (security_ == MeshSecurity::kCurve) {
      const bool may = asked.key && directory_.Find(*asked.key) != nullptr;
      if (yes && !may) Fault("let in without the key of an announced worker");
      return;
    }
    if (!asked.pass) {
      if (yes) Fault("let in without a proof");
      return;
    }
    std::uint64_t& newest = newest_[{asked.pass->from, asked.pass->purpose}];
    const bool fresh = asked.pass->number > newest;
    const bool may = MayEnter(asked.pass->from);
    if (yes && !may) return Fault("let in, and not announced");
    if (yes && !fresh) return Fault("let in twice");
    if (yes) newest = asked.pass->number;
    if (!yes && may && fresh) return Fault("not let in");
  }

  void Fault(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  Knocks knocks_;
  Directory directory_;
  Door door_;
  std::array<Played, kWorkers> workers_;
  std::map<Rank, std::size_t> announced_;  // the last one in each place
  MeshSecurity security_ = MeshSecurity::kNone;
  Instant now_{1};
  std::uint64_t number_ = 0;
  std::map<std::uint64_t, Asked> asked_;
  std::map<std::pair<Incarnation, Purpose>, std::uint64_t> newest_;
  MeshTally* tally_ = nullptr;
  std::string fault_;
};

}  // namespace

std::string FeedDoor(std::string_view script, MeshTally* tally) {
  static DoorFeed feed;
  return feed.Run(script, tally);
}

}  // namespace prd
