#include "worker/mesh/door.h"

#include <algorithm>
#include <cstring>

namespace prd {
namespace {

constexpr std::size_t kNameAndProof = 2;
constexpr char kAnyPurpose = '*';

}  // namespace

void Door::Join(MeshSecurity security, DurationNs patience) {
  security_ = security;
  patience_ = patience;
  visitors_.clear();
  senders_.clear();
}

void Door::Serve(Instant now) {
  std::erase_if(held_, [&](const Held& held) {
    const Judgement judgement = Judge(held.knock);
    const bool waits = judgement.verdict == Verdict::kHold;
    if (waits && now - held.since <= patience_) return false;
    Answer(held.knock,
           waits ? Judgement{.why = "the controller has announced no such worker"} : judgement);
    return true;
  });
  while (std::optional<Knock> knock = transport_->TakeKnock()) {
    const Judgement judgement = Judge(*knock);
    if (judgement.verdict == Verdict::kHold) {
      Hold(now, *std::move(knock));
    } else {
      Answer(*knock, judgement);
    }
  }
}

Door::Judgement Door::Judge(const Knock& knock) {
  if (knock.key != (security_ == MeshSecurity::kCurve)) {
    return {.why = "another mechanism than this job's"};
  }
  return knock.key ? JudgeKey(knock) : JudgePass(knock);
}

Door::Judgement Door::JudgePass(const Knock& knock) {
  if (knock.shown.size() != kNameAndProof) return {.why = "no pass"};
  const std::optional<Pass> pass = DecodePass(knock.shown[0]);
  if (!pass) return {.why = "no pass"};
  if (directory_->IsOut(pass->from)) return {.why = "of a worker that is out"};
  if (directory_->Find(pass->from) == nullptr) return {.verdict = Verdict::kHold};
  const PairKeys* keys = directory_->KeysOf(pass->from);
  if (keys == nullptr) return {.why = "of a worker without a key"};
  if (!SameProof(knock.shown[1], ProofOf(keys->in, *pass))) {
    return {.why = "in the name of a worker whose key it does not have"};
  }
  Sender& sender = senders_[{pass->from, static_cast<char>(pass->purpose)}];
  if (pass->number <= sender.newest) return {.why = "a pass that was used before"};
  sender.newest = pass->number;
  Visitor visitor{.from = pass->from, .purpose = pass->purpose, .opener = std::nullopt};
  if (Seals(security_, !knock.local)) {
    visitor.opener.emplace(SealKeyOf(keys->in, *pass));
  }
  return {.verdict = Verdict::kAdmit, .visitor = Admit(std::move(visitor))};
}

Door::Judgement Door::JudgeKey(const Knock& knock) {
  MeshKey key;
  const bool whole = knock.shown.size() == 1 && knock.shown[0].size() == key.bytes.size();
  if (!whole) return {.why = "no key"};
  std::memcpy(key.bytes.data(), knock.shown[0].data(), key.bytes.size());
  const std::optional<Incarnation> from = directory_->HolderOf(key);
  if (!from) return {.verdict = Verdict::kHold};
  return {.verdict = Verdict::kAdmit,
          .visitor = Admit({.from = *from, .purpose = std::nullopt, .opener = std::nullopt})};
}

std::uint64_t Door::Admit(Visitor visitor) {
  Forget();
  Sender& sender =
      senders_[{visitor.from, visitor.purpose ? static_cast<char>(*visitor.purpose) : kAnyPurpose}];
  sender.names.push_back(++names_);
  // Without passes, both purposes share the room.
  if (sender.names.size() > (visitor.purpose ? 1 : 2) * kMaxRemembered) {
    visitors_.erase(sender.names.front());
    sender.names.pop_front();
  }
  visitors_.emplace(names_, std::move(visitor));
  return names_;
}

void Door::Forget() {
  std::erase_if(senders_, [this](const auto& entry) {
    if (directory_->Find(entry.first.first) != nullptr) return false;
    for (const std::uint64_t name : entry.second.names) visitors_.erase(name);
    return true;
  });
}

void Door::Answer(const Knock& knock, const Judgement& judgement) {
  const bool admitted = judgement.verdict == Verdict::kAdmit;
  ++(admitted ? counters_.admitted : counters_.refused);
  if (!admitted) {
    refusal_ = "a connection from " + knock.address + " was refused: " + judgement.why;
  }
  transport_->Answer(knock.id, admitted ? std::optional(judgement.visitor) : std::nullopt);
}

void Door::Hold(Instant now, Knock knock) {
  held_.push_back({std::move(knock), now});
  if (held_.size() <= kMaxHeld) return;
  std::map<std::string, std::size_t> by_address;
  for (const Held& each : held_) ++by_address[each.knock.address];
  const auto most = std::max_element(by_address.begin(), by_address.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(held_.begin(), held_.end(), [&](const Held& each) {
    return each.knock.address == most->first;
  });
  Answer(oldest->knock, {.why = "too many wait for an announcement"});
  held_.erase(oldest);
}

Door::Visitor* Door::Find(std::uint64_t visitor) {
  const auto found = visitors_.find(visitor);
  if (found == visitors_.end() || directory_->Find(found->second.from) == nullptr) return nullptr;
  return &found->second;
}

std::optional<Instant> Door::NextDeadline() const {
  if (held_.empty()) return std::nullopt;
  return held_.front().since + patience_ + 1;
}

}  // namespace prd
