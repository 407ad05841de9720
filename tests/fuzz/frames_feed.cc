#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/base/check.h"
#include "common/io/poll.h"
#include "tests/fuzz/mesh_feed.h"
#include "tests/fuzz/script.h"
#include "tests/plans.h"
#include "worker/mesh/mesh.h"
#include "worker/transport/zmq_transport.h"

namespace prd {
namespace {

constexpr RunId kRun = 1;
constexpr Incarnation kSelf = 200;
constexpr Incarnation kMember = 100;
constexpr Incarnation kOther = 300;  // announced, too
constexpr std::uint32_t kKinds = 19;
constexpr DurationNs kLost = 20 * kSecond;
constexpr std::size_t kFloats = 500;
constexpr std::size_t kRemembered = 16;

// libFuzzer's alarm interrupts what waits.
void SendPart(zmq::socket_t* to, const std::string& part, bool more) {
  for (;;) {
    try {
      to->send(zmq::buffer(part), more ? zmq::send_flags::sndmore : zmq::send_flags::none);
      return;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

Instant Now() {
  return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

MeshKeyPair Drawn() {
  const Result<MeshKeyPair> keys = DrawMeshKeys();
  PRD_CHECK(keys.ok());
  return *keys;
}

Plan PlanOf(std::uint8_t number) {
  const Plan all[] = {plans::kModels,     plans::kGradients, plans::kRounds,
                      plans::kNeighbours, plans::Store(3),   plans::kChangeEvery8};
  return all[number % std::size(all)];
}

// Where the member is: lets in whoever comes, and takes all that it is sent.
class Home {
 public:
  static Home& Instance() {
    static Home home;
    return home;
  }
  ~Home() {
    over_ = true;
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  zmq::context_t& context() { return context_; }

 private:
  Home() {
    door_.set(zmq::sockopt::linger, 0);
    door_.bind("inproc://zeromq.zap.01");
    pull_.set(zmq::sockopt::linger, 0);
    pull_.set(zmq::sockopt::zap_domain, "home");
    pull_.set(zmq::sockopt::plain_server, true);
    pull_.bind("tcp://127.0.0.1:*");
    endpoint_ = pull_.get(zmq::sockopt::last_endpoint);
    thread_ = std::thread([this] { Run(); });
  }
  void Run() {
    std::vector<zmq::pollitem_t> items = {{door_.handle(), 0, ZMQ_POLLIN, 0},
                                          {pull_.handle(), 0, ZMQ_POLLIN, 0}};
    while (!over_) {
      Poll(items, 50);
      zmq::message_t part;
      while (pull_.recv(part, zmq::recv_flags::dontwait)) {
      }
      while (door_.recv(part, zmq::recv_flags::dontwait)) LetIn(std::move(part));
    }
  }
  void LetIn(zmq::message_t part) {
    std::vector<std::string> asked{part.to_string()};
    while (part.more()) {
      (void)door_.recv(part, zmq::recv_flags::none);
      asked.push_back(part.to_string());
    }
    const std::string answer[] = {asked.at(0), "", "1.0", asked.at(3), "200", "", "somebody", ""};
    for (const std::string& text : answer) {
      (void)door_.send(zmq::buffer(text), &text != std::end(answer) - 1 ? zmq::send_flags::sndmore
                                                                        : zmq::send_flags::none);
    }
  }

  zmq::context_t context_;
  zmq::socket_t door_{context_, zmq::socket_type::router};
  zmq::socket_t pull_{context_, zmq::socket_type::pull};
  std::string endpoint_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// A worker, and a member of its run who has all keys of its own and means ill.
class FramesFeed : public MeshEvents {
 public:
  FramesFeed(const Plan& plan, MeshTally* tally)
      : plan_(plan), tally_(tally), parameters_(kFloats, 1.0f), gradients_(kFloats, 1.0f) {
    const auto tensor = [](std::vector<float>* of) {
      return std::vector<Tensor>{{.data = of->data(), .count = of->size()}};
    };
    store_.SetTensors(tensor(&parameters_), tensor(&gradients_), {});
    const MeshKeyPair keys = Drawn();
    const MeshKeyPair own = Drawn();
    const Mesh::Options options{
        .incarnation = kSelf, .host = "here", .keys = own, .direct_bytes = 1000};
    auto transport = ZmqTransport::Make(&context_, {.longest_part = options.LongestPart()});
    PRD_CHECK(transport.ok());
    transport_ = transport->get();
    auto made = Mesh::Create(std::move(transport).value(), options, &store_, this);
    PRD_CHECK(made.ok());
    mesh_ = std::move(made).value();
    mesh_->JoinRun(kRun, plan_, 60 * kSecond, {.security = MeshSecurity::kAead});
    member_ = {.rank = 1,
               .incarnation = kMember,
               .weight = 0.5,
               .host = "there",
               .endpoints = {Home::Instance().endpoint()},
               .mesh_key = keys.public_key};
    GroupMember other = member_;
    other.rank = 2;
    other.incarnation = kOther;
    other.mesh_key = Drawn().public_key;
    mesh_->Announce(Now(), {member_, other});
    const auto agreed =
        AgreeOnKeys(keys, own.public_key, {.run = kRun, .from = kMember, .to = kSelf});
    for (const Purpose purpose : {Purpose::kData, Purpose::kSignals}) {
      Line& line = LineOf(purpose);
      const Pass pass{.from = kMember, .number = 1, .purpose = purpose};
      line.push = zmq::socket_t(Home::Instance().context(), zmq::socket_type::push);
      line.push.set(zmq::sockopt::linger, 0);
      line.push.set(zmq::sockopt::plain_username, EncodePass(pass));
      line.push.set(zmq::sockopt::plain_password, ProofOf(agreed.value().out, pass));
      line.sealer = std::make_unique<FrameSealer>(SealKeyOf(agreed.value().out, pass));
      line.push.connect(mesh_->endpoints().back());
    }
  }

  std::string Run(Script* script) {
    while (!script->over() && fault_.empty()) Step(script);
    if (fault_.empty() && mesh_->counters().forged != forged_) fault_ = "forged frames miscounted";
    return fault_;
  }

  void OnReduced(GroupId, const Status&, std::uint64_t, const std::vector<Rank>&,
                 std::uint64_t) override {
    reducing_ = false;
  }
  void OnFetched(const Status&, Iteration) override { fetching_ = false; }
  void OnRequest(Incarnation, Request request, const PeerItem&) override {
    requests_.push_back(request);
  }

 private:
  struct Line {
    zmq::socket_t push;
    std::unique_ptr<FrameSealer> sealer;
    std::deque<std::vector<std::string>> sent;  // the newest
  };
  Line& LineOf(Purpose purpose) { return lines_[purpose == Purpose::kData ? 0 : 1]; }

  void Step(Script* script) {
    switch (script->Below(10)) {
      case 0:
        return Act(script);
      case 1:
      case 2: {  // changed on its way
        std::vector<std::string> parts;
        Line& line = Sealed(script, &parts, nullptr);
        const std::vector<std::string> was = parts;
        Spoil(script, &parts);
        if (parts == was) return;
        return Send(&line, parts, true);
      }
      case 3: {  // again, or on the other connection
        Line& from = lines_[script->Below(2)];
        if (from.sent.empty()) return;
        const std::vector<std::string> parts = from.sent[script->Below(from.sent.size())];
        return Send(&lines_[script->Below(2)], parts, true);
      }
      case 4: {  // of one part, or of three
        std::vector<std::string> parts;
        Line& line = Sealed(script, &parts, nullptr);
        if (script->Below(2) == 0) {
          parts.pop_back();
        } else {
          parts.push_back(script->Text(20));
        }
        return Send(&line, parts, false);
      }
      default: {
        std::vector<std::string> parts;
        bool own = false;
        Line& line = Sealed(script, &parts, &own);
        ++tally_->frames;
        line.sent.push_back(parts);
        if (line.sent.size() > kRemembered) line.sent.pop_front();
        return Send(&line, parts, !own);
      }
    }
  }

  // A frame as this member may send it, or nearly. `own`: it is of this member, for this
  // connection; else it is forged.
  Line& Sealed(Script* script, std::vector<std::string>* parts, bool* own) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(1 + script->Below(kKinds - 1));
    const std::uint8_t odd = script->Byte();
    header.run = odd % 16 == 1 ? script->Number() : kRun;
    header.group = odd % 4 == 2 ? script->Number() : group_;
    header.from = odd % 16 == 3 ? (odd % 32 == 3 ? kOther : script->Number()) : kMember;
    header.to = odd % 32 == 5 ? script->Number() : kSelf;
    header.stage = static_cast<std::uint32_t>(script->Number());
    header.chunk = static_cast<std::uint32_t>(script->Number());
    header.offset = script->Number();
    if (odd % 8 == 4) {
      header.stream = script->Below(6);
      header.number = script->Below(4);
    }
    if (odd % 8 == 0) header.done = script->Number();
    std::string payload = Payload(script, header.kind);
    header.length = payload.size();
    std::array<std::byte, kFrameHeaderBytes> bytes = EncodeHeader(header);
    const bool noise = odd % 32 == 6;
    if (noise) bytes[script->Below(bytes.size())] ^= static_cast<std::byte>(script->Byte());
    const bool wrong_line = odd % 32 == 7;
    const bool signals = IsSignal(header.kind) != wrong_line;
    const auto decoded = DecodeHeader(bytes, payload.size());
    // What does not decode is noise of a member: dropped, and not called forged.
    if (own != nullptr) {
      *own = !decoded || (decoded->from == kMember && IsSignal(decoded->kind) == signals);
    }
    Line& line = LineOf(signals ? Purpose::kSignals : Purpose::kData);
    const auto first = line.sealer->Seal(bytes, std::as_bytes(std::span(payload)),
                                         reinterpret_cast<std::byte*>(payload.data()));
    *parts = {std::string(reinterpret_cast<const char*>(first.data()), first.size()), payload};
    return line;
  }

  // A size that may fit.
  std::string Payload(Script* script, FrameKind kind) {
    if (script->Below(4) == 0) return script->Text(200);
    if (kind == FrameKind::kNote && script->Below(2) == 0) {
      const auto note = EncodeNote({.kind = static_cast<PeerMessage::Kind>(script->Below(3)),
                                    .parcel = Item(script),
                                    .version = static_cast<std::int64_t>(script->Below(9)),
                                    .workers = static_cast<std::uint32_t>(script->Below(3))});
      return TextOf(note);
    }
    if (kind == FrameKind::kPull) return TextOf(EncodeParcel(Item(script)));
    if (kind == FrameKind::kParcel) {
      return TextOf(EncodeParcelInfo(
          {.bytes = script->Below(2) == 0 ? 4 * kFloats : script->Number(), .enclosure = {}}));
    }
    constexpr std::size_t kSizes[] = {0, 4 * kFloats, 2 * kFloats, 8, 4 * kFloats + 8};
    return std::string(kSizes[script->Below(std::size(kSizes))], static_cast<char>(script->Byte()));
  }
  static std::string TextOf(const std::vector<std::byte>& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  static PeerItem Item(Script* script) {
    return {.kind = static_cast<PeerItem::Kind>(script->Below(4)),
            .shard = static_cast<std::uint32_t>(script->Below(3)),
            .epoch = script->Below(2),
            .stamp = static_cast<std::int64_t>(script->Below(4))};
  }

  static void Spoil(Script* script, std::vector<std::string>* parts) {
    std::string& part = (*parts)[script->Below(2)];
    const std::size_t at = part.empty() ? 0 : script->Below(part.size());
    switch (script->Below(4)) {
      case 0:
        part.resize(at);
        return;
      case 1:
        part += script->Text(20);
        return;
      default:
        if (!part.empty()) part[at] ^= static_cast<char>(script->Byte());
    }
  }

  void Send(Line* line, const std::vector<std::string>& parts, bool forged) {
    const std::uint64_t before = Seen();
    const std::uint64_t counted = mesh_->counters().received + mesh_->counters().early;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      SendPart(&line->push, parts[i], i + 1 < parts.size());
    }
    const Instant lost = Now() + kLost;
    std::vector<zmq::pollitem_t> items;
    while (Seen() == before) {
      if (Now() > lost) {
        fault_ = "a frame was neither counted nor dropped";
        return;
      }
      items.clear();
      transport_->AppendPollItems(mesh_->WatchedLinks(), &items);
      Poll(items, 1);
      mesh_->Service(Now());
    }
    const std::uint64_t now = mesh_->counters().received + mesh_->counters().early;
    tally_->counted += now - counted;
    if (!forged) return;
    ++forged_;
    ++tally_->forged;
    if (now != counted) fault_ = "a forged frame counted";
    if (mesh_->counters().forged != forged_) fault_ = "a forged frame was not seen to be one";
  }
  std::uint64_t Seen() const {
    const Mesh::Counters& counters = mesh_->counters();
    return counters.received + counters.early + counters.dropped + counters.repeated +
           counters.acknowledgements;
  }

  // What the worker's core does meanwhile.
  void Act(Script* script) {
    const Instant now = Now();
    const bool store = std::holds_alternative<StorePlan>(plan_.by);
    switch (script->Below(8)) {
      case 0:
      case 1: {
        if (reducing_) mesh_->CancelReduce();
        Group group{.id = ++group_, .kind = GroupKind::kTrain, .iteration = 1};
        group.members = {member_,
                         {.rank = 0,
                          .incarnation = kSelf,
                          .weight = 0.5,
                          .host = "here",
                          .endpoints = mesh_->endpoints(),
                          .mesh_key = mesh_->key()}};
        const GroupKind kinds[] = {GroupKind::kInitial, GroupKind::kTrain, GroupKind::kRound,
                                   GroupKind::kFinal};
        group.kind = kinds[script->Below(std::size(kinds))];
        reducing_ = true;
        mesh_->StartReduce(now, group, plans::WhatReduces(plan_, group.kind));
        return;
      }
      case 2:
        if (reducing_) mesh_->CancelReduce();
        reducing_ = false;
        return;
      case 3:
        if (fetching_) mesh_->CancelFetch();
        fetching_ = true;
        mesh_->StartFetch(now, member_, script->Below(2) == 0 ? kNoGroup : group_);
        return;
      case 4:
        return mesh_->Do(now, SetPeers{{member_}});
      case 5:
        return mesh_->Do(now, StartPull{++ticket_, kMember, Item(script)});
      case 6:
        if (requests_.empty()) return;
        mesh_->Do(now, Refuse{requests_.front()});
        requests_.pop_front();
        return;
      default:
        if (script->Below(2) == 0) mesh_->Announce(now, {member_}, true);
        if (store && script->Below(2) == 0) return mesh_->Do(now, CutShards{2});
        mesh_->Service(now);
    }
  }

  Plan plan_;
  MeshTally* tally_;
  std::vector<float> parameters_;
  std::vector<float> gradients_;
  ReplicaStore store_;
  zmq::context_t context_;
  ZmqTransport* transport_ = nullptr;  // the mesh's
  std::unique_ptr<Mesh> mesh_;
  GroupMember member_;
  Line lines_[2];
  GroupId group_ = kNoGroup;
  Ticket ticket_ = 0;
  std::deque<Request> requests_;
  bool reducing_ = false;
  bool fetching_ = false;
  std::uint64_t forged_ = 0;
  std::string fault_;
};

}  // namespace

std::string FeedFrames(std::string_view bytes, MeshTally* tally) {
  Script script(bytes);
  return FramesFeed(PlanOf(script.Byte()), tally).Run(&script);
}

}  // namespace prd
