#include "common/io/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
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
