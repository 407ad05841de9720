#include "worker/mesh/door.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

namespace prd {
namespace {

constexpr const char* kInprocZap = "inproc://zeromq.zap.01";
constexpr std::size_t kPlainCredentials = 2;
// As libzmq writes it, with the other process's credentials; tcp addresses are numbers.
bool IsIpc(const std::string& address) { return address.starts_with("localhost:"); }
constexpr char kAnyPurpose = '*';

}  // namespace

Door::Door(zmq::context_t* context, const Directory* directory)
    : directory_(directory), zap_(*context, zmq::socket_type::router) {
  zap_.set(zmq::sockopt::linger, 0);
  zap_.bind(kInprocZap);
}

void Door::Join(MeshSecurity security, DurationNs patience) {
  security_ = security;
  patience_ = patience;
  visitors_.clear();
  senders_.clear();
}

// A question is: version, request, domain, address, identity, mechanism, credentials.
bool Door::Receive(Instant now, Knock* knock) {
  zmq::message_t part;
  if (!zap_.recv(part, zmq::recv_flags::dontwait)) return false;
  std::vector<std::string> parts{part.to_string()};
  while (part.more()) {
    (void)zap_.recv(part, zmq::recv_flags::none);
    parts.push_back(part.to_string());
  }
  constexpr std::size_t kEnvelope = 2;  // the asking connection's id, and an empty part
  constexpr std::size_t kFixed = 6;
  knock->since = now;
  if (parts.size() < kEnvelope + kFixed) return true;
  knock->envelope = {parts[0], parts[1]};
  knock->request = parts[kEnvelope + 1];
  knock->address = parts[kEnvelope + 3];
  knock->mechanism = parts[kEnvelope + 5];
  knock->credentials.assign(parts.begin() + kEnvelope + kFixed, parts.end());
  return true;
}

void Door::Serve(Instant now) {
  std::erase_if(held_, [&](const Knock& knock) {
    const Judgement judgement = Judge(knock);
    const bool waits = judgement.verdict == Verdict::kHold;
    if (waits && now - knock.since <= patience_) return false;
    Answer(knock,
           waits ? Judgement{.text = "the controller has announced no such worker"} : judgement);
    return true;
  });
  for (Knock knock; Receive(now, &knock); knock = {}) {
    const Judgement judgement = Judge(knock);
    if (judgement.verdict == Verdict::kHold) {
      Hold(std::move(knock));
    } else {
      Answer(knock, judgement);
    }
  }
}

Door::Judgement Door::Judge(const Knock& knock) {
  if (knock.mechanism == "PLAIN" && security_ != MeshSecurity::kCurve) return JudgePass(knock);
  if (knock.mechanism == "CURVE" && security_ == MeshSecurity::kCurve) return JudgeKey(knock);
  return {.text = "another mechanism than this job's"};
}

Door::Judgement Door::JudgePass(const Knock& knock) {
  if (knock.credentials.size() != kPlainCredentials) return {.text = "no pass"};
  const std::optional<Pass> pass = DecodePass(knock.credentials[0]);
  if (!pass) return {.text = "no pass"};
  if (directory_->IsOut(pass->from)) return {.text = "of a worker that is out"};
  if (directory_->Find(pass->from) == nullptr) return {.verdict = Verdict::kHold, .text = {}};
  const PairKeys* keys = directory_->KeysOf(pass->from);
  if (keys == nullptr) return {.text = "of a worker without a key"};
  if (!SameProof(knock.credentials[1], ProofOf(keys->in, *pass))) {
    return {.text = "in the name of a worker whose key it does not have"};
  }
  Sender& sender = senders_[{pass->from, static_cast<char>(pass->purpose)}];
  if (pass->number <= sender.newest) return {.text = "a pass that was used before"};
  sender.newest = pass->number;
  Visitor visitor{.from = pass->from,
                  .connections = CallConnectionsOf(pass->from),
                  .purpose = pass->purpose,
                  .opener = std::nullopt};
  if (Seals(security_, !IsIpc(knock.address))) {
    visitor.opener.emplace(SealKeyOf(keys->in, *pass));
  }
  return {.verdict = Verdict::kAdmit, .text = Admit(std::move(visitor))};
}

Door::Judgement Door::JudgeKey(const Knock& knock) {
  MeshKey key;
  const bool whole =
      knock.credentials.size() == 1 && knock.credentials[0].size() == key.bytes.size();
  if (!whole) return {.text = "no key"};
  std::memcpy(key.bytes.data(), knock.credentials[0].data(), key.bytes.size());
  const std::optional<Incarnation> from = directory_->HolderOf(key);
  if (!from) return {.verdict = Verdict::kHold, .text = {}};
  return {.verdict = Verdict::kAdmit,
          .text = Admit({.from = *from,
                         .connections = CallConnectionsOf(*from),
                         .purpose = std::nullopt,
                         .opener = std::nullopt})};
}

std::string Door::Admit(Visitor visitor) {
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
  return std::to_string(names_);
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
  if (!admitted)
    refusal_ = "a connection from " + knock.address + " was refused: " + judgement.text;
  if (knock.envelope.empty()) return;
  // version, request, status, text, name, metadata
  const std::array<std::string, 6> answer = {
      "1.0", knock.request, admitted ? "200" : "400", "", admitted ? judgement.text : "", ""};
  for (const std::string& part : knock.envelope) {
    (void)zap_.send(zmq::buffer(part), zmq::send_flags::sndmore);
  }
  for (std::size_t i = 0; i < answer.size(); ++i) {
    (void)zap_.send(zmq::buffer(answer[i]),
                    i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

void Door::Hold(Knock knock) {
  held_.push_back(std::move(knock));
  if (held_.size() <= kMaxHeld) return;
  std::map<std::string, std::size_t> by_address;
  for (const Knock& each : held_) ++by_address[each.address];
  const auto most = std::max_element(by_address.begin(), by_address.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  const auto oldest = std::find_if(held_.begin(), held_.end(),
                                   [&](const Knock& each) { return each.address == most->first; });
  Answer(*oldest, {.text = "too many wait for an announcement"});
  held_.erase(oldest);
}

Door::Visitor* Door::VisitorOf(zmq::message_t* part) {
  const char* text = zmq_msg_gets(part->handle(), "User-Id");
  if (text == nullptr) return nullptr;
  std::uint64_t name = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, name).ptr != end) return nullptr;
  const auto found = visitors_.find(name);
  if (found == visitors_.end() || directory_->Find(found->second.from) == nullptr) return nullptr;
  return &found->second;
}

std::optional<Instant> Door::NextDeadline() const {
  if (held_.empty()) return std::nullopt;
  return held_.front().since + patience_ + 1;
}

}  // namespace prd
