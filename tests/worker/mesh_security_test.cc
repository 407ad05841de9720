// What protects workers' frames: keys, passes, sealed frames, the door; and what somebody gets who
// has everything but a key.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/prng.h"
#include "tests/plans.h"
#include "tests/worker/mesh_job.h"
#include "tests/worker/mesh_ring.h"
#include "worker/mesh/door.h"
#include "worker/mesh/keys.h"
#include "worker/mesh/seal.h"
#include "worker/transport/listen.h"

namespace prd::mesh_security_test {
namespace {

using testing::AnyMeshKey;
using testing::DrawnKeys;
using testing::EveryDType;
using testing::Fill;
using testing::MeshJob;
using testing::MeshNode;
using testing::MeshNow;
using testing::PlayedWorker;
using testing::RunUntil;
using testing::ValuesOf;

constexpr MeshSecurity kAll[] = {MeshSecurity::kNone, MeshSecurity::kAead, MeshSecurity::kCurve};
constexpr Direction kWay{.run = 7, .from = 100, .to = 200};

void Protect(MeshJob* job, MeshSecurity security, const Plan& plan = {}) {
  for (std::size_t w = 0; w < job->size(); ++w) {
    (*job)[w].mesh().JoinRun(1, plan, Mesh::kDefaultLease, {.security = security});
  }
}

// For what may or may not come.
void Turns(const std::vector<MeshNode*>& nodes) {
  std::vector<zmq::pollitem_t> items;
  for (int turn = 0; turn < 50; ++turn) {
    items.clear();
    for (MeshNode* node : nodes) {
      node->mesh->Service(MeshNow());
      node->AppendPollItems(&items);
    }
    zmq::poll(items, std::chrono::milliseconds(1));
  }
}

// ---- keys ----

TEST(MeshKeysTest, BothEndsDeriveTheSameTwoKeys) {
  const MeshKeyPair a = DrawnKeys();
  const MeshKeyPair b = DrawnKeys();
  const auto at_a = AgreeOnKeys(a, b.public_key, kWay);
  const auto at_b =
      AgreeOnKeys(b, a.public_key, {.run = kWay.run, .from = kWay.to, .to = kWay.from});
  ASSERT_TRUE(at_a && at_b);
  EXPECT_EQ(at_a->out, at_b->in);
  EXPECT_EQ(at_a->in, at_b->out);
  EXPECT_NE(at_a->in, at_a->out);
}

TEST(MeshKeysTest, AKeyIsOfOneRunOnePairAndOneDirection) {
  const MeshKeyPair a = DrawnKeys();
  const MeshKey b = AnyMeshKey();
  std::set<SecretKey> keys;
  const auto add = [&](const MeshKeyPair& own, const MeshKey& peer, const Direction& way) {
    const auto pair = AgreeOnKeys(own, peer, way);
    ASSERT_TRUE(pair.has_value());
    keys.insert(pair->out);
    keys.insert(pair->in);
  };
  add(a, b, kWay);
  add(a, b, {.run = 8, .from = 100, .to = 200});
  add(a, b, {.run = 7, .from = 101, .to = 200});
  add(a, b, {.run = 7, .from = 100, .to = 201});
  add(a, AnyMeshKey(), kWay);
  add(DrawnKeys(), b, kWay);
  EXPECT_EQ(keys.size(), 12u);
}

// Points of low order, whose secret everybody knows.
TEST(MeshKeysTest, KeysThatNobodyCanHaveDrawnAreRefused) {
  const MeshKeyPair own = DrawnKeys();
  MeshKey one;
  one.bytes[0] = 1;
  EXPECT_FALSE(AgreeOnKeys(own, MeshKey{}, kWay));
  EXPECT_FALSE(AgreeOnKeys(own, one, kWay));
}

TEST(MeshKeysTest, APassHasOneText) {
  for (const Purpose purpose : {Purpose::kData, Purpose::kSignals}) {
    const Pass pass{.from = 0xfedcba9876543210, .number = ~0ull, .purpose = purpose};
    const std::string text = EncodePass(pass);
    EXPECT_EQ(DecodePass(text), pass);
    for (std::size_t i = 0; i < text.size(); ++i) {
      for (int c = 0; c < 256; ++c) {
        std::string other = text;
        other[i] = static_cast<char>(c);
        const auto read = DecodePass(other);
        EXPECT_EQ(read ? EncodePass(*read) : other, other);
      }
    }
    EXPECT_FALSE(DecodePass(text + "d"));
    EXPECT_FALSE(DecodePass(text.substr(1)));
  }
  EXPECT_FALSE(DecodePass(EncodePass({.from = 0, .number = 1})));
}

TEST(MeshKeysTest, AProofIsOfOneConnection) {
  const SecretKey key{1, 2, 3};
  const Pass pass{.from = 1, .number = 2, .purpose = Purpose::kData};
  Pass signals = pass;
  signals.purpose = Purpose::kSignals;
  Pass next = pass;
  next.number = 3;
  EXPECT_TRUE(SameProof(ProofOf(key, pass), ProofOf(key, pass)));
  for (const Pass& other : {signals, next}) {
    EXPECT_FALSE(SameProof(ProofOf(key, pass), ProofOf(key, other)));
    EXPECT_NE(SealKeyOf(key, pass), SealKeyOf(key, other));
  }
  EXPECT_FALSE(SameProof(ProofOf(key, pass), ProofOf(SecretKey{}, pass)));
  EXPECT_FALSE(SameProof(ProofOf(key, pass), ""));
}

// ---- sealed frames ----

struct Sealed {
  std::array<std::byte, kSealedHeaderBytes> first;
  std::vector<std::byte> payload;
};

Sealed SealOne(FrameSealer* sealer, const FrameHeader& header, const std::string& text) {
  Sealed sealed;
  sealed.payload.resize(text.size());
  sealed.first =
      sealer->Seal(EncodeHeader(header), std::as_bytes(std::span(text)), sealed.payload.data());
  return sealed;
}

std::optional<std::string> OpenOne(FrameOpener* opener, Sealed sealed) {
  const auto header = opener->Open(sealed.first, sealed.payload);
  if (!header || !DecodeHeader(*header, sealed.payload.size())) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(sealed.payload.data()), sealed.payload.size());
}

FrameHeader HeaderOf(const std::string& text) {
  return {.kind = FrameKind::kRing, .run = 1, .from = 2, .to = 3, .length = text.size()};
}

TEST(SealTest, WhatIsSealedOpensOnceAndInOrder) {
  const SealKey key{9};
  FrameSealer sealer(key);
  FrameOpener opener(key);
  const std::vector<std::string> texts = {"", "a", std::string(1000, 'x'), "", "last"};
  std::vector<Sealed> sealed;
  for (const std::string& text : texts) sealed.push_back(SealOne(&sealer, HeaderOf(text), text));
  EXPECT_EQ(OpenOne(&opener, sealed[0]), texts[0]);
  EXPECT_EQ(OpenOne(&opener, sealed[2]), texts[2]) << "the one before it may not have been sent";
  EXPECT_FALSE(OpenOne(&opener, sealed[2])) << "twice";
  EXPECT_FALSE(OpenOne(&opener, sealed[1])) << "too late";
  EXPECT_EQ(OpenOne(&opener, sealed[4]), texts[4]);
  EXPECT_FALSE(OpenOne(&opener, sealed[3]));
}

TEST(SealTest, NeitherPayloadNorHeaderIsInClearAndNoNonceComesTwice) {
  FrameSealer sealer(SealKey{9});
  const std::string text(64, 'x');
  std::set<std::vector<std::byte>> seen;
  std::set<std::array<std::byte, 8>> counters;
  for (int i = 0; i < 100; ++i) {
    const Sealed sealed = SealOne(&sealer, HeaderOf(text), text);
    seen.insert(sealed.payload);
    std::array<std::byte, 8> counter;
    std::copy_n(sealed.first.begin(), 8, counter.begin());
    counters.insert(counter);
    const auto plain = EncodeHeader(HeaderOf(text));
    EXPECT_EQ(
        std::search(sealed.first.begin(), sealed.first.end(), plain.begin(), plain.begin() + 16),
        sealed.first.end());
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(counters.size(), 100u);
}

TEST(SealTest, WhateverIsChangedDoesNotOpen) {
  const SealKey key{9};
  const std::string text = "the payload";
  FrameSealer sealer(key);
  const Sealed good = SealOne(&sealer, HeaderOf(text), text);
  for (std::size_t bit = 0; bit < 8 * (good.first.size() + good.payload.size()); ++bit) {
    Sealed bad = good;
    const auto flip = static_cast<std::byte>(1 << bit % 8);
    const std::size_t at = bit / 8;
    (at < bad.first.size() ? bad.first[at] : bad.payload[at - bad.first.size()]) ^= flip;
    FrameOpener opener(key);
    EXPECT_FALSE(OpenOne(&opener, bad)) << bit;
    EXPECT_EQ(OpenOne(&opener, good), text) << "what came between does not matter";
  }
  for (const std::size_t length : {std::size_t{0}, text.size() - 1, text.size() + 1}) {
    Sealed bad = good;
    bad.payload.resize(length);
    FrameOpener opener(key);
    EXPECT_FALSE(OpenOne(&opener, bad));
  }
  FrameOpener other(SealKey{8});
  EXPECT_FALSE(OpenOne(&other, good)) << "of another connection";
}

// ---- jobs, by security ----

class MeshSecurityTest : public ::testing::TestWithParam<MeshSecurity> {};

std::string Name(const ::testing::TestParamInfo<MeshSecurity>& info) {
  return std::array{"None", "Aead", "Curve"}[static_cast<std::size_t>(info.param)];
}

TEST_P(MeshSecurityTest, ReductionsFetchesAndPullsWork) {
  for (const std::size_t direct : {std::size_t{0}, std::size_t{1} << 20}) {
    Mesh::Options options;
    options.chunk_bytes = 4096;
    options.direct_bytes = direct;
    MeshJob job(1, EveryDType(20'000), plans::kModels, options);
    job.AddApart();
    job.AddApart();
    Protect(&job, GetParam(), plans::kModels);
    for (std::size_t w = 0; w < 3; ++w) {
      Fill(&job[w].parameters, [&] { return static_cast<double>(1 << w); });
    }
    for (Iteration i = 1; i <= 3; ++i) {
      job.ReduceOk(GroupKind::kTrain, i, {0, 1, 2}, {0.25, 0.25, 0.5});
    }
    EXPECT_EQ(ValuesOf(job[0].parameters), ValuesOf(job[2].parameters));
    EXPECT_EQ(ValuesOf(job[0].parameters)[0], 2.75);
    Fill(&job[1].parameters, [] { return 9.0; });
    const MeshNode::Fetched fetched = job.Fetch(0, 1);
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.ToString();
    EXPECT_EQ(ValuesOf(job[0].parameters), ValuesOf(job[1].parameters));
    for (std::size_t w = 0; w < 3; ++w) {
      EXPECT_EQ(job[w].mesh().counters().forged, 0u);
      EXPECT_EQ(job[w].mesh().connections().refused, 0u);
    }
  }
}

// The announcement comes after the first frames, as it may.
TEST_P(MeshSecurityTest, WhoeverIsNotAnnouncedYetWaits) {
  MeshJob job(2, EveryDType(100), plans::kModels);
  Protect(&job, GetParam(), plans::kModels);
  job[0].mesh().StartFetch(MeshNow(), job[1].node->AsMember(0));
  Mesh& source = job[1].mesh();
  Turns(job.Nodes());
  EXPECT_EQ(source.counters().received, 0u);
  EXPECT_EQ(source.connections().refused, 0u);
  EXPECT_FALSE(job[0].node->fetched);
  source.Announce(MeshNow(), {job[0].node->AsMember(0)}, true);
  EXPECT_TRUE(job.FinishFetch(0).status.ok());
}

// Worker 1 has yet to hear by which mechanism its job's workers listen. What worker 0 sends
// meanwhile is all that the other will ever get of it: its own part of the group is complete.
TEST(MeshDoorTest, APeerThatIsYetToJoinIsConnectedToAgain) {
  MeshJob job(2, EveryDType(9000), plans::kModels);
  const Instant now = MeshNow();  // stands still: no time is too short
  const auto turn = [&](const std::vector<MeshNode*>& nodes) {
    std::vector<zmq::pollitem_t> items;
    for (MeshNode* node : nodes) {
      node->mesh->Service(now);
      node->AppendPollItems(&items);
    }
    zmq::poll(items, std::chrono::milliseconds(1));
  };
  const auto join = [&](std::size_t w) {
    job[w].mesh().JoinRun(1, plans::kModels, Mesh::kDefaultLease,
                          {.security = MeshSecurity::kCurve});
  };
  Fill(&job[0].parameters, [] { return 3.0; });
  join(0);
  const Group group = job.MakeGroup(GroupKind::kInitial, 0, {0, 1}, {1, 0});
  job[0].mesh().StartReduce(now, group, {}, 0, true);
  for (int turns = 0; turns < 100; ++turns) turn({job[0].node.get()});
  join(1);
  job[1].mesh().Announce(now, group.members);
  job[1].mesh().StartReduce(now, group, {}, 0, true);
  const Instant deadline = MeshNow() + 20 * kSecond;
  while (!job[1].node->reduced && MeshNow() < deadline) turn(job.Nodes());
  ASSERT_TRUE(job[0].node->reduced && job[1].node->reduced);
  EXPECT_TRUE(job[0].node->reduced->status.ok());
  EXPECT_TRUE(job[1].node->reduced->status.ok());
  EXPECT_EQ(ValuesOf(job[1].parameters), ValuesOf(job[0].parameters));
}

TEST_P(MeshSecurityTest, WhoeverIsNotAnnouncedWithinTheLeaseIsRefused) {
  MeshJob job(2, EveryDType(100), plans::kModels);
  for (std::size_t w = 0; w < 2; ++w) {
    job[w].mesh().JoinRun(1, plans::kModels, w == 0 ? 60 * kSecond : 20 * kMillisecond,
                          {.security = GetParam()});
  }
  job[0].mesh().StartFetch(MeshNow(), job[1].node->AsMember(0));
  EXPECT_EQ(job.FinishFetch(0).status.code(), Code::kUnavailable);
  EXPECT_EQ(job[1].mesh().connections().refused, 1u);
  EXPECT_EQ(job[1].mesh().counters().received, 0u);
  ASSERT_FALSE(job[1].node->intruders.empty());
  EXPECT_NE(job[1].node->intruders[0].find("announced no such worker"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, MeshSecurityTest, ::testing::ValuesIn(kAll), Name);

// ---- who has no key ----

// Connects as anybody can who finds the endpoint.
class Stranger {
 public:
  explicit Stranger(const MeshNode& to) : to_(to) {}

  void Offer(const std::string& user, const std::string& proof) {
    zmq::socket_t socket = Make();
    socket.set(zmq::sockopt::plain_username, user);
    socket.set(zmq::sockopt::plain_password, proof);
    Send(std::move(socket));
  }
  void OfferNothing() { Send(Make()); }
  void OfferKey() {
    const MeshKeyPair keys = DrawnKeys();
    zmq::socket_t socket = Make();
    const auto raw = [](const auto& key) { return zmq::buffer(key.data(), key.size()); };
    socket.set(zmq::sockopt::curve_serverkey, raw(to_.keys().public_key.bytes));
    socket.set(zmq::sockopt::curve_publickey, raw(keys.public_key.bytes));
    socket.set(zmq::sockopt::curve_secretkey, raw(keys.secret));
    Send(std::move(socket));
  }

  FrameHeader frame;

 private:
  zmq::socket_t Make() {
    zmq::socket_t socket(context_, zmq::socket_type::push);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndtimeo, testing::kSendMs);
    return socket;
  }
  void Send(zmq::socket_t socket) {
    socket.connect(to_.mesh->endpoints().front());
    socket.send(zmq::buffer(EncodeHeader(frame)), zmq::send_flags::sndmore);
    socket.send(zmq::message_t(), zmq::send_flags::none);
    sockets_.push_back(std::move(socket));
  }

  const MeshNode& to_;
  zmq::context_t context_;
  std::vector<zmq::socket_t> sockets_;
};

// S1: the name of its socket says nothing about a worker, and knowing everything of its job but a
// key gets no frame in.
TEST_P(MeshSecurityTest, WithoutAKeyNothingIsRead) {
  MeshJob job(2, EveryDType(100), plans::kModels);
  Protect(&job, GetParam(), plans::kModels);
  const GroupMember victim = job[0].node->AsMember(0);
  const GroupMember member = job[1].node->AsMember(0);
  testing::Announce(job.Nodes(), {victim, member});
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(victim.incarnation));
  EXPECT_EQ(victim.endpoints.front().find(hex), std::string::npos);
  Stranger thief(*job[0].node);
  thief.frame = {.kind = FrameKind::kFetch,
                 .run = 1,
                 .group = 1,
                 .from = member.incarnation,
                 .to = victim.incarnation};
  const Direction way{.run = 1, .from = member.incarnation, .to = victim.incarnation};
  const Pass pass{.from = member.incarnation, .number = 1, .purpose = Purpose::kData};
  const auto own = AgreeOnKeys(DrawnKeys(), victim.mesh_key, way);
  thief.OfferNothing();
  thief.Offer("nobody", "nothing");
  thief.Offer(EncodePass(pass), "nothing");
  thief.Offer(EncodePass(pass), ProofOf(own->out, pass));
  thief.Offer(EncodePass(pass), ProofOf(SecretKey{}, pass));
  thief.OfferKey();
  // The victim goes on meanwhile.
  for (Iteration i = 1; i <= 20; ++i) job.ReduceOk(GroupKind::kTrain, i, {0, 1}, {0.5, 0.5});
  const Mesh::Counters counters = job[0].mesh().counters();
  EXPECT_EQ(counters.dropped, 0u) << "nothing of it was read";
  // Those of the job's own mechanism are refused by the door; others do not get as far.
  if (GetParam() != MeshSecurity::kCurve) {
    EXPECT_TRUE(RunUntil(job.Nodes(), [&] { return job[0].mesh().connections().refused >= 4; }));
  }
}

// A pass that was seen on its way is of no use again, nor for another purpose.
TEST(MeshDoorTest, APassIsGoodOnce) {
  MeshJob job(2, EveryDType(100), plans::kModels);
  Mesh& mesh = job[0].mesh();
  PlayedWorker member(job[0].node.get(), *job[1].node);
  const FrameHeader frame{.kind = FrameKind::kFetch,
                          .run = 1,
                          .group = 1,
                          .from = job[1].node->AsMember(0).incarnation,
                          .to = job[0].node->AsMember(0).incarnation};
  member.Send(frame, "");
  ASSERT_TRUE(RunUntil({job[0].node.get()}, [&] { return mesh.counters().received == 1; }));
  // Pings and pongs have a connection of their own.
  FrameHeader ping = frame;
  ping.kind = FrameKind::kPing;
  member.Send(ping, "");
  ASSERT_TRUE(RunUntil({job[0].node.get()}, [&] { return mesh.counters().received == 2; }));
  const std::uint64_t admitted = mesh.connections().admitted;
  const Direction way{.run = 1, .from = frame.from, .to = frame.to};
  const auto keys = AgreeOnKeys(job[1].node->keys(), mesh.key(), way);
  Stranger thief(*job[0].node);
  std::uint64_t refused = 0;
  for (const Purpose purpose : {Purpose::kData, Purpose::kSignals}) {
    thief.frame = purpose == Purpose::kData ? frame : ping;
    const Pass used = member.PassOf(purpose);
    for (const std::uint64_t number : {std::uint64_t{1}, used.number - 1, used.number}) {
      const Pass pass{.from = frame.from, .number = number, .purpose = purpose};
      thief.Offer(EncodePass(pass), ProofOf(keys->out, pass));
      ++refused;
      ASSERT_TRUE(
          RunUntil({job[0].node.get()}, [&] { return mesh.connections().refused == refused; }));
    }
  }
  EXPECT_EQ(mesh.connections().admitted, admitted);
  EXPECT_EQ(mesh.counters().received, 2u);
}

TEST(MeshDoorTest, WhatOneMemberSendsInTheNameOfAnotherIsDropped) {
  for (const MeshSecurity security : {MeshSecurity::kNone}) {
    MeshJob job(2, EveryDType(100), plans::kModels);
    Protect(&job, security, plans::kModels);
    PlayedWorker member(job[0].node.get(), 4711, 900);
    testing::Announce(job.Nodes(), {job[1].node->AsMember(0)});
    FrameHeader forged{.kind = FrameKind::kFail,
                       .run = 1,
                       .group = 1,
                       .from = job[1].node->AsMember(0).incarnation,
                       .to = job[0].node->AsMember(0).incarnation};
    member.Send(forged, "");
    Mesh& mesh = job[0].mesh();
    ASSERT_TRUE(RunUntil({job[0].node.get()}, [&] { return mesh.counters().forged == 1; }));
    EXPECT_EQ(mesh.counters().early, 0u);
    ASSERT_EQ(job[0].node->intruders.size(), 1u);
    EXPECT_NE(job[0].node->intruders[0].find("rank 900"), std::string::npos);
    job.ReduceOk(GroupKind::kTrain, 1, {0, 1}, {0.5, 0.5});
  }
}

TEST(MeshDoorTest, ThoseThatWaitAreBounded) {
  MeshJob job(1, EveryDType(100), plans::kModels);
  Stranger crowd(*job[0].node);
  Mesh& mesh = job[0].mesh();
  for (std::uint64_t i = 1; i <= Door::kMaxHeld + 50; ++i) {
    crowd.Offer(EncodePass({.from = i, .number = 1, .purpose = Purpose::kData}), "nothing");
  }
  EXPECT_TRUE(RunUntil({job[0].node.get()}, [&] { return mesh.connections().refused == 50; }));
  EXPECT_EQ(mesh.connections().admitted, 0u);
}

// S12: answers go to where the controller says that a worker is, whatever the worker says.
TEST(MeshDoorTest, NoAddressOfAPeersIsDialled) {
  MeshJob job(1, EveryDType(100), plans::kModels);
  zmq::context_t context;
  zmq::socket_t trap(context, zmq::socket_type::pull);
  trap.bind("tcp://127.0.0.1:*");
  zmq_socket_monitor(trap.handle(), "inproc://trap", ZMQ_EVENT_ACCEPTED);
  zmq::socket_t seen(context, zmq::socket_type::pair);
  seen.connect("inproc://trap");
  testing::DeafEnd home;
  PlayedWorker peer(job[0].node.get(), 4711, 900, {home.endpoint()});
  const std::string address = "nowhere\n" + trap.get(zmq::sockopt::last_endpoint);
  for (const FrameKind kind : {FrameKind::kFetch, FrameKind::kPing}) {
    peer.Send({.kind = kind,
               .run = 1,
               .group = kind == FrameKind::kPing ? 0u : 1u,
               .from = 4711,
               .to = job[0].node->AsMember(0).incarnation,
               .stage = kind == FrameKind::kPing ? 3u : 0u,
               .length = address.size()},
              address);
  }
  Mesh& mesh = job[0].mesh();
  ASSERT_TRUE(RunUntil({job[0].node.get()}, [&] { return mesh.counters().received == 2; }));
  Turns(job.Nodes());
  zmq::message_t event;
  EXPECT_FALSE(seen.recv(event, zmq::recv_flags::dontwait));
  zmq_socket_monitor(trap.handle(), nullptr, 0);
}

// ---- where a mesh listens ----

TEST(ListenTest, NamesAreRandomAndPortsAreOfTheRange) {
  zmq::context_t context;
  std::set<std::string> names;
  std::set<std::string> taken;
  for (int i = 0; i < 3; ++i) {
    zmq::socket_t pull(context, zmq::socket_type::pull);
    const Result<Endpoints> there = Listen({.address = ""}, &pull);
    ASSERT_TRUE(there.ok());
    ASSERT_EQ(there->told.size(), 1u) << "ipc alone";
    names.insert(there->told[0]);
  }
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(names.begin()->size(), std::string("ipc://@prd-").size() + 32);
  std::vector<zmq::socket_t> sockets;
  for (int i = 0; i < 3; ++i) {
    zmq::socket_t& pull = sockets.emplace_back(context, zmq::socket_type::pull);
    const Result<Endpoints> there = Listen({.ports = "20000-29999"}, &pull);
    ASSERT_TRUE(there.ok()) << there.status().ToString();
    const std::string port = there->told[1].substr(there->told[1].rfind(':') + 1);
    EXPECT_TRUE(port.size() == 5 && port[0] == '2') << port;
    EXPECT_TRUE(taken.insert(port).second);
  }
}

TEST(ListenTest, WhatIsAnnouncedIsWhatPeersDial) {
  const auto told = [](const std::string& announce) {
    zmq::context_t context;
    zmq::socket_t pull(context, zmq::socket_type::pull);
    const Result<Endpoints> there = Listen({.announce = announce}, &pull);
    EXPECT_TRUE(there.ok()) << there.status().ToString();
    const std::string port = there->bound[1].substr(there->bound[1].rfind(':'));
    return std::pair(there->told[1], port);
  };
  const auto [plain, port] = told("gate.example");
  EXPECT_EQ(plain, "tcp://gate.example" + port);
  EXPECT_EQ(told("gate:7000").first, "tcp://gate:7000");
  EXPECT_EQ(told("[2001:db8::1]:7000").first, "tcp://[2001:db8::1]:7000");
  const auto [six, six_port] = told("2001:db8::1");
  EXPECT_EQ(six, "tcp://[2001:db8::1]" + six_port);
  const auto [bracketed, its_port] = told("[2001:db8::1]");
  EXPECT_EQ(bracketed, "tcp://[2001:db8::1]" + its_port);
}

// ---- who is on the path ----

// What happens to a frame on its way: a bit is another, its parts come as a message each, or
// nothing comes.
enum class Damage : std::uint8_t { kChanged, kInTwo, kGone };

// Stands between two workers, relays what they send, and sends more of its own making.
class Tap {
 public:
  explicit Tap(const MeshNode& to) : to_(to) {
    door_.set(zmq::sockopt::linger, 0);
    door_.bind("inproc://zeromq.zap.01");
    in_.set(zmq::sockopt::linger, 0);
    in_.set(zmq::sockopt::zap_domain, "tap");
    in_.set(zmq::sockopt::plain_server, true);
    in_.bind("tcp://127.0.0.1:*");
  }
  std::string endpoint() { return in_.get(zmq::sockopt::last_endpoint); }

  // `malice`: also forged, repeated and late frames.
  void Carry(Prng* prng, bool malice) {
    LetIn();
    for (zmq::message_t part; in_.recv(part, zmq::recv_flags::dontwait);) {
      const std::string name = part.gets("User-Id");
      std::vector<std::string> frame{part.to_string()};
      while (part.more()) {
        (void)in_.recv(part, zmq::recv_flags::none);
        frame.push_back(part.to_string());
      }
      if (IsData(name) && ++carried == damages) {
        if (damage == Damage::kGone) continue;
        if (damage == Damage::kInTwo) {
          for (const std::string& each : frame) Send(name, {each});
          continue;
        }
        Spoil(prng, &frame);
        ++forged;
      }
      if (malice && !seen_.empty()) {
        for (int i = 0; i < 4; ++i) {
          std::vector<std::string> bad =
              i % 2 == 0 ? frame : seen_[prng->Below(seen_.size())].second;
          if (i != 1) Spoil(prng, &bad);  // 1: repeated as it was
          Send(name, bad);
          ++forged;
        }
      }
      Send(name, frame);
      if (malice) {
        Send(name, frame);  // at once
        ++forged;
        const auto& other = seen_.empty() ? std::pair(name, frame) : seen_.front();
        if (other.first != name) {  // on another connection
          Send(name, other.second);
          ++forged;
        }
      }
      seen_.emplace_back(name, frame);
      if (seen_.size() > 100) seen_.pop_front();
    }
  }
  void AppendPollItems(std::vector<zmq::pollitem_t>* items) {
    items->push_back({door_.handle(), 0, ZMQ_POLLIN, 0});
    items->push_back({in_.handle(), 0, ZMQ_POLLIN, 0});
  }

  std::uint64_t damages = 0;  // which frame of data does not come as it was
  Damage damage = Damage::kChanged;
  std::uint64_t carried = 0;  // frames of data
  std::uint64_t forged = 0;
  std::vector<std::pair<std::string, std::string>> passes;

 private:
  // Whoever comes, with what it shows, is whom the tap is to the other end.
  void LetIn() {
    for (zmq::message_t part; door_.recv(part, zmq::recv_flags::dontwait);) {
      std::vector<std::string> asked{part.to_string()};
      while (part.more()) {
        (void)door_.recv(part, zmq::recv_flags::none);
        asked.push_back(part.to_string());
      }
      const std::string user = asked.at(8);
      passes.emplace_back(user, asked.at(9));
      zmq::socket_t& out = out_[user];
      out = zmq::socket_t(context_, zmq::socket_type::push);
      out.set(zmq::sockopt::linger, 0);
      out.set(zmq::sockopt::sndtimeo, testing::kSendMs);
      out.set(zmq::sockopt::sndhwm, 0);
      out.set(zmq::sockopt::plain_username, user);
      out.set(zmq::sockopt::plain_password, asked.at(9));
      out.connect(to_.mesh->endpoints().back());
      const std::vector<std::string> answer = {asked[0], "",   "1.0", asked[3],
                                               "200",    "OK", user,  ""};
      for (std::size_t i = 0; i < answer.size(); ++i) {
        (void)door_.send(zmq::buffer(answer[i]),
                         i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
      }
    }
  }
  void Send(const std::string& name, const std::vector<std::string>& frame) {
    for (std::size_t i = 0; i < frame.size(); ++i) {
      (void)out_.at(name).send(zmq::buffer(frame[i]), i + 1 < frame.size()
                                                          ? zmq::send_flags::sndmore
                                                          : zmq::send_flags::none);
    }
  }
  static bool IsData(const std::string& name) {
    const std::optional<Pass> pass = DecodePass(name);
    return pass && pass->purpose == Purpose::kData;
  }
  static void Spoil(Prng* prng, std::vector<std::string>* frame) {
    std::string& part = (*frame)[prng->Below(frame->size())];
    if (part.empty() || prng->Below(8) == 0) {
      part += 'x';
    } else if (prng->Below(8) == 0) {
      part.pop_back();
    } else {
      part[prng->Below(part.size())] ^= static_cast<char>(1 << prng->Below(8));
    }
  }

  const MeshNode& to_;
  zmq::context_t context_;
  zmq::socket_t door_{context_, zmq::socket_type::router};
  zmq::socket_t in_{context_, zmq::socket_type::pull};
  std::map<std::string, zmq::socket_t> out_;
  std::deque<std::pair<std::string, std::vector<std::string>>> seen_;
};

struct Trained {
  std::vector<double> values;
  std::uint64_t received = 0;
  std::uint64_t forged = 0;   // that a tap sent
  std::uint64_t dropped = 0;  // as such
};

// Two workers reduce again and again, each over a tap to the other.
Trained TrainOverTaps(bool malice) {
  Mesh::Options options;
  options.chunk_bytes = 1024;
  options.direct_bytes = 0;
  MeshJob job(2, EveryDType(10'000), plans::kModels, options);
  Protect(&job, MeshSecurity::kAead, plans::kModels);
  Tap to_first(*job[0].node);
  Tap to_second(*job[1].node);
  GroupMember first = job[0].node->AsMember(0.5);
  GroupMember second = job[1].node->AsMember(0.5);
  Prng values(3);
  for (std::size_t w = 0; w < 2; ++w) {
    Fill(&job[w].parameters, [&] { return values.Unit() - 0.5; });
  }
  Prng prng(4);
  Trained trained;
  for (GroupId id = 1; id <= 12; ++id) {
    for (std::size_t w = 0; w < 2; ++w) {
      Group group{.id = id, .kind = GroupKind::kTrain, .iteration = static_cast<Iteration>(id)};
      group.members = {first, second};
      group.members.Mutable()[1 - w].endpoints = {w == 0 ? to_second.endpoint()
                                                         : to_first.endpoint()};
      job[w].node->reduced.reset();
      job[w].mesh().StartReduce(MeshNow(), group, job.WhatReduces(group.kind));
    }
    const Instant give_up = MeshNow() + 20 * kSecond;
    std::vector<zmq::pollitem_t> items;
    while (!(job[0].node->reduced && job[1].node->reduced) && MeshNow() < give_up) {
      items.clear();
      to_first.Carry(&prng, malice);
      to_second.Carry(&prng, malice);
      for (std::size_t w = 0; w < 2; ++w) {
        job[w].mesh().Service(MeshNow());
        job[w].node->AppendPollItems(&items);
      }
      to_first.AppendPollItems(&items);
      to_second.AppendPollItems(&items);
      zmq::poll(items, std::chrono::milliseconds(1));
    }
    for (std::size_t w = 0; w < 2; ++w) {
      EXPECT_TRUE(job[w].node->reduced && job[w].node->reduced->status.ok())
          << (job[w].node->reduced ? job[w].node->reduced->status.ToString() : "it hangs");
    }
    for (std::size_t w = 0; w < 2; ++w) {  // a step of the training loop
      testing::Numbers& numbers = job[w].parameters[0];
      for (std::size_t e = 0; e < numbers.size(); ++e) {
        numbers.Set(e, numbers.Get(e) + static_cast<double>(w) * 0.25 - 0.125);
      }
    }
  }
  trained.forged = to_first.forged + to_second.forged;
  // What is under way still arrives.
  (void)RunUntil(job.Nodes(), [&] {
    return job[0].mesh().counters().forged + job[1].mesh().counters().forged >= trained.forged;
  });
  for (std::size_t w = 0; w < 2; ++w) {
    trained.received += job[w].mesh().counters().received;
    trained.dropped += job[w].mesh().counters().forged;
  }
  trained.values = ValuesOf(job[0].parameters);
  // Data, and signals; and perhaps data again, if it is slow: what may be lost is asked for.
  EXPECT_GE(to_first.passes.size(), 1u);
  const std::set<std::pair<std::string, std::string>> shown(to_first.passes.begin(),
                                                            to_first.passes.end());
  EXPECT_EQ(shown.size(), to_first.passes.size()) << "no pass is shown twice";
  return trained;
}

// What leaves the host is sealed, and nothing else is.
TEST(SealTest, WhatStaysOnTheHostIsNotSealed) {
  EXPECT_TRUE(Seals(MeshSecurity::kAead, true));
  EXPECT_FALSE(Seals(MeshSecurity::kAead, false));
  EXPECT_FALSE(Seals(MeshSecurity::kNone, true));
  EXPECT_FALSE(Seals(MeshSecurity::kCurve, true));
}

// S2: 10,000 frames that are forged, changed, repeated, late or of another connection, among those
// of a job that trains: none counts, and every bit of the parameters is as without them.
TEST(MeshTapTest, NothingThatIsForgedOrRepeatedCounts) {
  const Trained alone = TrainOverTaps(false);
  const Trained attacked = TrainOverTaps(true);
  EXPECT_EQ(alone.dropped, 0u);
  EXPECT_GE(attacked.forged, 10'000u);
  EXPECT_EQ(attacked.dropped, attacked.forged);
  EXPECT_EQ(attacked.received, alone.received);
  EXPECT_TRUE(attacked.values == alone.values);
}

class DamagedTest : public ::testing::TestWithParam<Damage> {
 protected:
  DamagedTest() {
    Protect(&job_, MeshSecurity::kAead, kPlan);
    for (std::size_t w = 0; w < 2; ++w) {
      taps_.push_back(std::make_unique<Tap>(*job_[w].node));
      taps_[w]->damage = GetParam();
    }
    for (std::size_t w = 0; w < 2; ++w) {
      GroupMember other = job_[1 - w].node->AsMember(0);
      other.endpoints = {taps_[1 - w]->endpoint()};
      job_[w].mesh().Announce(MeshNow(), {other});
      job_[w].mesh().Do(MeshNow(), SetPeers{{other}});
    }
  }
  void RunUntil(const std::function<bool()>& done) {
    const Instant give_up = MeshNow() + 20 * kSecond;
    std::vector<zmq::pollitem_t> items;
    while (!done() && MeshNow() < give_up) {
      items.clear();
      for (std::size_t w = 0; w < 2; ++w) {
        taps_[w]->Carry(&prng_, false);
        job_[w].mesh().Service(MeshNow());
        job_[w].node->AppendPollItems(&items);
        taps_[w]->AppendPollItems(&items);
      }
      zmq::poll(items, std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(done()) << "it hangs";
  }
  void Note(std::int64_t version) {
    job_[0].mesh().Do(MeshNow(),
                      SendNote{job_[1].node->AsMember(0).incarnation, {.version = version}});
  }

  static Mesh::Options Impatient() {
    Mesh::Options options;
    options.timeout = 2 * kSecond;
    return options;
  }
  static inline const Plan kPlan{.by = NeighbourPlan{}};
  MeshJob job_{2, EveryDType(100), kPlan, Impatient()};
  std::vector<std::unique_ptr<Tap>> taps_;
  Prng prng_{5};
};

// Nobody waits for a note. One that is damaged on its way comes again all the same, and before what
// was sent after it.
TEST_P(DamagedTest, ANoteComesAgain) {
  const MeshNode& hearer = *job_[1].node;
  taps_[1]->damages = 1;
  Note(7);
  if (GetParam() == Damage::kGone) {  // only what comes later can show it
    RunUntil([&] { return taps_[1]->carried == 1; });
    Note(8);
  }
  const std::size_t notes = GetParam() == Damage::kGone ? 2 : 1;
  RunUntil([&] { return hearer.notes.size() == notes; });
  EXPECT_EQ(hearer.notes[0].second.version, 7);
  EXPECT_EQ(hearer.mesh->counters().forged, GetParam() == Damage::kChanged ? 1u : 0u);
}

// The last frame of an update is lost, and nothing is sent after it.
TEST_P(DamagedTest, WhoeverWaitsForAnUpdateGetsIt) {
  MeshNode& source = *job_[0].node;
  const PeerItem update{.kind = PeerItem::Kind::kUpdate, .stamp = 3};
  source.on_request = [&](Incarnation, Request request, const PeerItem& asked) {
    source.mesh->Do(MeshNow(), Serve{.request = request, .parcel = asked, .enclosure = {}});
  };
  source.mesh->Do(MeshNow(), PublishUpdate{3});
  taps_[1]->damages = 2;  // after what describes it
  job_[1].mesh().Do(
      MeshNow(), StartPull{.ticket = 1, .from = source.AsMember(0).incarnation, .parcel = update});
  const std::map<Ticket, MeshNode::Pulled>& pulled = job_[1].node->pulled;
  RunUntil([&] { return !pulled.empty(); });
  EXPECT_TRUE(pulled.begin()->second.status.ok());
  EXPECT_GE(taps_[1]->carried, 3u);
}

std::string NameOfDamage(const ::testing::TestParamInfo<Damage>& info) {
  return std::array{"Changed", "InTwo", "Gone"}[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Tap, DamagedTest,
                         ::testing::Values(Damage::kChanged, Damage::kInTwo, Damage::kGone),
                         NameOfDamage);

}  // namespace
}  // namespace prd::mesh_security_test
