#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>
#include <vector>
#include <zmq.hpp>

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

// As libzmq asks, in place of libzmq.
class DoorFeed {
 public:
  DoorFeed() : directory_(Drawn()), door_(&context_, &directory_) {
    asks_.set(zmq::sockopt::linger, 0);
    asks_.connect("inproc://zeromq.zap.01");
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
        std::vector<std::string> parts{""};
        for (std::size_t n = script->Below(10); n > 0; --n) parts.push_back(script->Text(70));
        return Ask(parts, {});
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
    std::vector<std::string> parts = Question(script, "PLAIN");
    parts.insert(parts.end(), {user, proof});
    Ask(parts, {.pass = good ? std::optional(pass) : std::nullopt});
  }

  void ShowKey(Script* script) {
    const Played& as = workers_[script->Below(kWorkers)];
    MeshKey key = as.member.mesh_key;
    const bool spoil = script->Below(2) == 0;
    if (spoil) key.bytes[script->Below(key.bytes.size())] ^= script->Byte() | 1;
    std::vector<std::string> parts = Question(script, "CURVE");
    parts.emplace_back(reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size());
    const bool whole = script->Below(8) != 0;
    if (!whole) parts.back() += script->Text(40);
    const bool good = !spoil && parts.back().size() == key.bytes.size();
    Ask(parts, {.key = good ? std::optional(as.member.incarnation) : std::nullopt});
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

  std::vector<std::string> Question(Script* script, const char* mechanism) {
    const bool ipc = script->Below(2) == 0;
    return {"", "1.0", "", Door::kDomain, ipc ? "localhost:0:0:1" : "192.0.2.1", "", mechanism};
  }

  // The request's number is put in its place, where there is one.
  void Ask(std::vector<std::string> parts, Asked asked) {
    constexpr std::size_t kRequest = 2;
    constexpr std::size_t kWhole = 7;
    ++tally_->knocks;
    if (parts.size() >= kWhole) {
      parts[kRequest] = std::to_string(++number_);
      asked_.emplace(number_, std::move(asked));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      (void)asks_.send(zmq::buffer(parts[i]),
                       i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

  void Serve() {
    const std::uint64_t admitted = door_.counters().admitted;
    door_.Serve(now_);
    std::uint64_t let_in = 0;
    for (zmq::message_t part; asks_.recv(part, zmq::recv_flags::dontwait);) {
      std::vector<std::string> answer{part.to_string()};
      while (part.more()) {
        (void)asks_.recv(part, zmq::recv_flags::none);
        answer.push_back(part.to_string());
      }
      if (answer.size() != 7 || answer[1] != "1.0") return Fault("an answer that is none");
      const auto asked = asked_.find(std::strtoull(answer[2].c_str(), nullptr, 10));
      if (asked == asked_.end()) return Fault("an answer that nobody waits for");
      const bool yes = answer[3] == "200";
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

  zmq::context_t context_;
  Directory directory_;
  Door door_;
  zmq::socket_t asks_{context_, zmq::socket_type::dealer};
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
