#include "common/io/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "tests/io/random_messages.h"

namespace prd::codec_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kRounds = 3000;  // several hundred of every kind

TEST(Codec, WorkerEnvelopesComeBackEqual) {
  Prng prng(1);
  for (std::size_t i = 0; i < kRounds; ++i) {
    const WorkerEnvelope envelope = RandomWorkerEnvelope(prng, i);
    const auto decoded = DecodeWorkerEnvelope(Encode(envelope));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    ASSERT_EQ(*decoded, envelope) << "kind " << envelope.body.index();
  }
}

// As the daemon takes them in; what is recorded already stays as it was.
TEST(Codec, TextsOfWorkersAreCut) {
  const std::string text(60'000, 'x');
  const std::string begin = text.substr(0, 256);
  const auto taken = [](WorkerBody body) {
    const WorkerEnvelope envelope{.run = 1, .body = std::move(body)};
    const Record record{.run = 1, .body = FromWorker{envelope}};
    EXPECT_EQ(DecodeRecord(Encode(record)).value(), record);
    return DecodeWorkerEnvelope(Encode(envelope)).value().body;
  };
  EXPECT_EQ(taken(Finished{.group = 3, .detail = text}),
            WorkerBody(Finished{.group = 3, .detail = begin}));
  EXPECT_EQ(taken(Adopted{.detail = text}), WorkerBody(Adopted{.detail = begin}));
  EXPECT_EQ(taken(Leave{.reason = text}), WorkerBody(Leave{.reason = begin}));
}

TEST(Codec, ControllerEnvelopesComeBackEqual) {
  Prng prng(2);
  for (std::size_t i = 0; i < kRounds; ++i) {
    const ControllerEnvelope envelope = RandomControllerEnvelope(prng, i);
    const auto decoded = DecodeControllerEnvelope(Encode(envelope));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    ASSERT_EQ(*decoded, envelope) << "kind " << envelope.body.index();
  }
}

TEST(Codec, RecordsComeBackEqual) {
  Prng prng(3);
  for (std::size_t i = 0; i < kRounds; ++i) {
    const Record record = RandomRecord(prng, i);
    const auto decoded = DecodeRecord(Encode(record));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    ASSERT_EQ(*decoded, record) << "kind " << record.body.index();
  }
}

TEST(Codec, AdminMessagesComeBackEqual) {
  Prng prng(4);
  for (std::size_t i = 0; i < kRounds; ++i) {
    const AdminRequest request = RandomAdminRequest(prng, i);
    const auto decoded_request = DecodeAdminRequest(Encode(request));
    ASSERT_TRUE(decoded_request.ok()) << decoded_request.status().ToString();
    ASSERT_EQ(*decoded_request, request) << "kind " << request.index();
    const AdminReply reply = RandomAdminReply(prng, i);
    const auto decoded_reply = DecodeAdminReply(Encode(reply));
    ASSERT_TRUE(decoded_reply.ok()) << decoded_reply.status().ToString();
    ASSERT_EQ(*decoded_reply, reply) << "kind " << reply.index();
  }
}

// One number per kind: the hash of 60 messages' bytes. Histories and workers of other versions hold
// such bytes. A kind that gets a field gets another number; the others keep theirs.
template <typename Message>
std::vector<std::uint64_t> HashesOfBytes(Message (*draw)(Prng&, std::size_t), std::size_t kinds) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    Prng prng(1000 + kind);
    std::uint64_t hash = HashBytes("");
    for (int i = 0; i < 60; ++i) hash = HashBytes(Encode(draw(prng, kind)), hash);
    hashes.push_back(hash);
  }
  return hashes;
}

using Hashes = std::vector<std::uint64_t>;

TEST(Codec, BytesOfWorkersStayAsTheyWere) {
  EXPECT_EQ(
      HashesOfBytes(RandomWorkerEnvelope, std::variant_size_v<WorkerBody::Variant>),
      (Hashes{0x20d7cb6a6206f1b6u, 0x760d22598c19f9f4u, 0xc744a5a154af6d4cu, 0xc066adf2a9aa01feu,
              0x7f48bee4762a8f38u, 0xd19384c460900407u, 0x992f415fb41184bcu, 0x19f1c5f2a65d7928u,
              0x5b9b49f7b04474e6u, 0x0db5f73a3911f25bu, 0x34f65ab398270db0u, 0xddf3635bfc1973f5u,
              0x23f8965f462e2861u, 0x1334c040187e82fbu, 0xa71269c5908bf3f9u}));
}

TEST(Codec, BytesOfTheControllerStayAsTheyWere) {
  EXPECT_EQ(
      HashesOfBytes(RandomControllerEnvelope, std::variant_size_v<ControllerBody::Variant>),
      (Hashes{0xf979abe46338b341u, 0x11a3cd0cd60fae88u, 0x2132315bd4b882e8u, 0xb027c20ddcf51ca6u,
              0x4c23a4101ae7b672u, 0x0ef52e9712171d2cu, 0x796da6676849fd41u, 0xc8fda5b2ce720588u,
              0xac9962f39f6c947fu, 0x278a8dcb6e8e5a32u, 0xfc02b8f773cd945fu, 0x4d040246f8d60fe2u,
              0x216f5c93f48fe6bfu, 0x08b2e2f1c9aafd0fu, 0xc62efbd1054745c3u, 0x7f62542e92648f1du,
              0xd32496a194b01069u, 0xd978eb6cb1504fe6u, 0x0cbb6b11d335cb44u, 0xb7028fcc7e21b25cu}));
}

// A fromWorker has the bytes of a worker's message in it, of a kind that is drawn.
TEST(Codec, BytesOfRecordsStayAsTheyWere) {
  EXPECT_EQ(
      HashesOfBytes(RandomRecord, std::variant_size_v<RecordBody::Variant>),
      (Hashes{0xa96673009b6e8186u, 0xb373d587dd8fe115u, 0xeaac751a15539b08u, 0xa0e5707ea5b71653u,
              0xbe88a8091c5ea577u, 0x438c3a623de5d19au, 0x89546f4e27615c0fu, 0x0dc59b595b09c868u,
              0xafcbe21a6703c93du, 0x5d8ee34d55522ec2u, 0x969e8604cb88f2b7u, 0x71752e2bd44c5c4bu,
              0xcfd105f0995e8494u, 0xe08a9ced6b17cc83u, 0xf9727d96c2e53d83u, 0x1c278f60a68b486eu,
              0xecdb1863cff5033du, 0xd21079e39f63a1a5u, 0xd3112541cbe18fb3u, 0xfe4ea98e6097f538u,
              0x2c2450bad1f80090u, 0xa04cbbbeb44760a5u, 0xaaacdfb31b559e7du, 0x152b9b36e57bb77fu,
              0x5ebf7a4dcc46a131u}));
}

TEST(Codec, BytesOfAdminMessagesStayAsTheyWere) {
  EXPECT_EQ(HashesOfBytes(RandomAdminRequest, std::variant_size_v<AdminRequest>),
            (Hashes{0xdd50e0651dd358edu, 0x0c3adfea64bff345u, 0x3dcbac5a33cda435u,
                    0x84ec6993882543c5u, 0xbfd6341fbd3a8445u, 0x710a13621cf4432cu}));
  EXPECT_EQ(HashesOfBytes(RandomAdminReply, std::variant_size_v<AdminReply>),
            (Hashes{0xbd778d7181a342bdu, 0x0d4eaf326ab67684u, 0x046f666c7673b2a0u,
                    0xbbe43b919ecfe315u, 0x22eb7ba56ddf9cb7u, 0x94ea559882c8f737u}));
}

// Messages whose optional fields are left out, or that say nothing at all.
TEST(Codec, BytesOfMessagesThatSayNothingStayAsTheyWere) {
  std::uint64_t hash = HashBytes("");
  const auto each = [&hash]<typename... Kinds>(const auto& in,
                                               std::type_identity<std::variant<Kinds...>>) {
    ((hash = HashBytes(Encode(in(Kinds{})), hash)), ...);
  };
  each([](auto body) { return WorkerEnvelope{.body = body}; },
       std::type_identity<WorkerBody::Variant>());
  each([](auto body) { return ControllerEnvelope{.body = body}; },
       std::type_identity<ControllerBody::Variant>());
  each([](auto body) { return Record{.body = body}; }, std::type_identity<RecordBody::Variant>());
  each([](auto body) { return AdminRequest(body); }, std::type_identity<AdminRequest>());
  each([](auto body) { return AdminReply(body); }, std::type_identity<AdminReply>());
  EXPECT_EQ(hash, 0x86d1c2b5160eb527u);
}

TEST(Codec, LargeMessagesComeBackEqual) {  // over several segments
  Group group{.id = 7, .members = {}, .reason = std::string(20'000, 'r')};
  for (Rank rank = 0; rank < 4096; ++rank) {
    group.members.push_back({.rank = rank,
                             .incarnation = 99,
                             .weight = 1.0 / 4096,
                             .host = "host-of-rank-" + std::to_string(rank),
                             .endpoints = {"ipc:///tmp/a", "tcp://10.0.0.1:1234"}});
  }
  const ControllerEnvelope envelope{.incarnation = 1, .seq = 2, .ack = 3, .body = group};
  const auto decoded = DecodeControllerEnvelope(Encode(envelope));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, envelope);
  EXPECT_EQ(HashBytes(Encode(envelope)), 0x6003e340ca0913a9u);  // these stay, too
}

// Readers follow each pointer once, or the limit on what a message makes them read stops them.
TEST(Codec, LargeNeighbourhoodsComeBackEqual) {
  Neighbourhood told{.slots = 6};
  NeighboursSet set{.rank = 0, .slots = 6};
  for (Rank rank = 1; rank <= 1000; ++rank) {
    told.in.push_back({.rank = rank, .weight = 0.001, .host = "h", .endpoints = {"tcp://h:1"}});
    told.from.push_back(rank);
    told.out.push_back(told.in[told.in.size() - 1]);
    set.in.push_back({.rank = rank, .weight = 0.001, .from = rank});
    set.out.push_back(rank);
  }
  const ControllerEnvelope sent{.seq = 1, .body = told};
  const auto received = DecodeControllerEnvelope(Encode(sent));
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(*received, sent);
  RecordBatch batch;
  for (std::uint64_t index = 0; index < 100; ++index) {
    batch.records.push_back({.run = 1, .index = 2 * index, .body = set});
    batch.records.push_back(
        {.run = 1, .index = 2 * index + 1, .body = PlacementOpened{.epoch = 1, .members = {0}}});
  }
  const auto read = DecodeAdminReply(Encode(AdminReply(batch)));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(std::get<RecordBatch>(*read), batch);
}

TEST(Codec, EncodingLeavesNothingBehindForTheNext) {
  const ControllerEnvelope full{
      .incarnation = ~0ull, .seq = ~0ull, .ack = ~0ull, .body = Released{std::string(900, 'x')}};
  const ControllerEnvelope bare{.body = HeartbeatAck{}};
  const std::string before = Encode(bare);
  std::string bytes;
  EncodeTo(full, &bytes);
  EncodeTo(bare, &bytes);
  EXPECT_EQ(bytes, before);
}

TEST(Codec, ReadsAtAnyAlignment) {
  Prng prng(5);
  const WorkerEnvelope envelope = RandomWorkerEnvelope(prng, 0);
  const std::string bytes = Encode(envelope);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::vector<char> buffer(bytes.size() + 8);
    std::memcpy(buffer.data() + shift, bytes.data(), bytes.size());
    const auto decoded = DecodeWorkerEnvelope({buffer.data() + shift, bytes.size()});
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, envelope);
  }
}

TEST(Codec, RefusesWhatIsCutShort) {
  Prng prng(6);
  for (std::size_t kind = 0; kind < 7; ++kind) {
    const std::string bytes = Encode(RandomWorkerEnvelope(prng, kind));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto decoded = DecodeWorkerEnvelope({bytes.data(), size});
      ASSERT_FALSE(decoded.ok()) << size << " of " << bytes.size() << " bytes";
      ASSERT_EQ(decoded.status().code(), Code::kInvalidArgument);
      ASSERT_THAT(decoded.status().message(), HasSubstr("a worker's message"));
    }
  }
}

TEST(Codec, RefusesWhatIsNoMessage) {
  for (const std::string& bytes :
       {std::string(), std::string("hello"), std::string("GET / HTTP/1.1\r\n"),
        std::string(64, '\xff'), std::string(4096, '\x7f')}) {
    EXPECT_EQ(DecodeWorkerEnvelope(bytes).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(DecodeControllerEnvelope(bytes).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(DecodeRecord(bytes).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(DecodeAdminRequest(bytes).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(DecodeAdminReply(bytes).status().code(), Code::kInvalidArgument);
  }
}

TEST(Codec, RefusesEnumsThatDoNotExist) {
  const auto decoded = DecodeWorkerEnvelope(
      Encode(WorkerEnvelope{.body = Finished{.outcome = static_cast<Outcome>(9)}}));
  ASSERT_FALSE(decoded.ok());
  EXPECT_THAT(decoded.status().message(), HasSubstr("outcome: found 9, allowed is 0 to 2"));
  const auto ok = DecodeControllerEnvelope(
      Encode(ControllerEnvelope{.body = Refused{.code = Code::kOk, .reason = "none"}}));
  ASSERT_FALSE(ok.ok());
  EXPECT_THAT(ok.status().message(), HasSubstr("code: found ok"));
}

TEST(Codec, RefusesWeightsAndLossesThatAreNoNumbers) {
  for (const double weight : {std::nan(""), std::numeric_limits<double>::infinity(),
                              -std::numeric_limits<double>::infinity()}) {
    const auto decoded = DecodeControllerEnvelope(
        Encode(ControllerEnvelope{.body = Group{.members = {{.rank = 0, .weight = weight}}}}));
    ASSERT_FALSE(decoded.ok());
    EXPECT_THAT(decoded.status().message(), HasSubstr("weight: allowed is a finite number"));
    EXPECT_FALSE(DecodeControllerEnvelope(
                     Encode(ControllerEnvelope{.body = Group{.initial_weight = weight}}))
                     .ok());
    EXPECT_FALSE(
        DecodeWorkerEnvelope(Encode(WorkerEnvelope{.body = Ready{.losses = {1, weight}}})).ok());
    const auto told =
        DecodeWorkerEnvelope(Encode(WorkerEnvelope{.body = Progressed{.losses = {1, weight}}}));
    ASSERT_FALSE(told.ok());
    EXPECT_THAT(told.status().message(), HasSubstr("loss: allowed is a finite number"));
  }
}

// A few bytes that claim to be a list of millions of elements without a body.
TEST(Codec, DoesNotAllocateWhatTheInputCannotHold) {
  Group group{.members = {{.rank = 1}}};
  std::string bytes = Encode(ControllerEnvelope{.body = group});
  std::size_t refused = 0;
  // Whatever word holds the list's pointer or tag: put enormous counts there.
  for (std::size_t at = 8; at + 8 <= bytes.size(); at += 8) {
    for (const std::uint64_t word : {0x7fffffff00000001ull, 0xffffffff00000001ull,
                                     0x00000000fffffffcull, 0x7ffffffffffffffcull}) {
      std::string damaged = bytes;
      std::memcpy(damaged.data() + at, &word, 8);
      const auto decoded = DecodeControllerEnvelope(damaged);
      if (!decoded.ok()) ++refused;
      if (const auto* g = decoded.ok() ? std::get_if<Group>(&decoded->body) : nullptr) {
        EXPECT_LE(g->members.size(), bytes.size());
      }
    }
  }
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace prd::codec_test
