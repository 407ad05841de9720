// What an HTTP connection may bring, and for how long, in virtual time.
#include "common/io/http_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/io/http_peer.h"

namespace prd::http_loop_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Instant kStart{100 * kSecond};
constexpr std::size_t kLarge = 8 << 20;

class HttpLoopTest : public ::testing::Test {
 protected:
  HttpLoopTest() {
    auto loop = HttpLoop::Make([this](const HttpRequest& request) { return Answer(request); },
                               {.headers = {{"X-Policy", "none"}}});
    EXPECT_TRUE(loop.ok()) << loop.status().message();
    if (loop.ok()) loop_ = std::move(*loop);
  }

  HttpPeer Peer(const std::string& name = "a") { return HttpPeer(*loop_, name, now_); }
  void Turn() { TurnAll(*loop_, now_); }
  std::string Ask(const std::string& request) {
    HttpPeer peer = Peer();
    EXPECT_TRUE(peer.Write(request));
    Turn();
    return peer.Read();
  }
  // A request with a head of this many bytes.
  static std::string Sized(std::size_t bytes) {
    std::string head = "GET /small HTTP/1.1\r\nHost: x\r\nX-Long: ";
    head += std::string(bytes - head.size() - 4, 'a');
    return head + "\r\n\r\n";
  }

  Instant now_ = kStart;
  std::vector<HttpRequest> asked_;
  std::unique_ptr<HttpLoop> loop_;

 private:
  std::optional<HttpAnswer> Answer(const HttpRequest& request) {
    asked_.push_back(request);
    if (request.path == "/large") return HttpAnswer{.body = large_};
    if (request.path == "/throw") throw std::runtime_error("no");
    if (request.path == "/later" && request.waited < 100 * kMillisecond) return std::nullopt;
    return HttpAnswer{.body = std::string("small\n")};
  }

  const std::shared_ptr<const std::string> large_ =
      std::make_shared<const std::string>(kLarge, 'x');
};

TEST_F(HttpLoopTest, AnswersAndTellsTheHandlerWhatWasAsked) {
  EXPECT_THAT(
      Ask("GET /some/where?run=7&to=1%2E5&empty= HTTP/1.1\r\nHost: here\r\nhost: there\r\n\r\n"),
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\r\nContent-Length: 6\r\n"),
            HasSubstr("\r\nX-Policy: none\r\n"),
            HasSubstr("\r\nContent-Type: text/plain; charset=utf-8\r\n"),
            EndsWith("\r\n\r\nsmall\n")));
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].path, "/some/where");
  EXPECT_THAT(asked_[0].Headers("HOST"), ElementsAre("here", "there"));
  EXPECT_EQ(asked_[0].Parameter("run"), "7");
  EXPECT_EQ(asked_[0].Parameter("to"), "1.5");
  EXPECT_EQ(asked_[0].Parameter("empty"), "");
  EXPECT_EQ(asked_[0].Parameter("none"), std::nullopt);
  EXPECT_THAT(
      Ask("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"),
      AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 6\r\n"), EndsWith("\r\n\r\n")));
  EXPECT_TRUE(asked_.back().head);
  EXPECT_THAT(Ask("GET /throw HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 500"));
}

TEST_F(HttpLoopTest, AConnectionAsksManyTimes) {
  HttpPeer peer = Peer();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(peer.Write("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    Turn();
    EXPECT_THAT(peer.Read(), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("small\n")));
    now_ = now_ + 4 * kSecond;
  }
  EXPECT_EQ(asked_.size(), 200u);
  now_ = now_ + kSecond;
  Turn();
  EXPECT_TRUE(peer.Ended()) << "it has rested for 5 s";
}

TEST_F(HttpLoopTest, OnlyGetAndHeadWithoutABody) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FUNNY"}) {
    EXPECT_THAT(Ask(std::string(method) + " / HTTP/1.1\r\nHost: x\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("\r\nAllow: GET, HEAD\r\n"),
                      HasSubstr("\r\nX-Policy: none\r\n")))
        << method;
  }
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  // libmicrohttpd 0.9.75 would take the second request for the first one's body.
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n"
                  "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 417"), HasSubstr("\r\nConnection: close\r\n")));
  HttpPeer post = Peer();
  ASSERT_TRUE(post.Write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n"));
  Turn();
  EXPECT_THAT(post.Read(), StartsWith("HTTP/1.1 405"));
  EXPECT_TRUE(post.Ended()) << "nobody reads the body";
  EXPECT_THAT(asked_, ::testing::IsEmpty());
}

TEST_F(HttpLoopTest, WhatIsNoRequestIsRefusedOrEnds) {
  for (const std::string& bytes :
       {std::string("\r\n\r\n\r\n"), std::string("GET\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/9.9\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02\0\x01\0", 7),
        std::string("GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")}) {
    const std::string answer = Ask(bytes);
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 4") ||
                answer.starts_with("HTTP/1.1 505"))
        << bytes << answer;
  }
  EXPECT_THAT(asked_, ::testing::IsEmpty());
}

TEST_F(HttpLoopTest, AHeadHasSixteenKiB) {
  EXPECT_THAT(Ask(Sized(HttpLoop::kMaxHead)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Ask(Sized(HttpLoop::kMaxHead + 1)), StartsWith("HTTP/1.1 431"));
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_THAT(Ask("GET /" + std::string(17 << 10, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  std::string many = "GET / HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 3000; ++i) many += "a:\r\n";
  EXPECT_THAT(Ask(many + "\r\n"), StartsWith("HTTP/1.1 4"));
  EXPECT_EQ(asked_.size(), 1u);
}

// A line, headers or a URI without an end.
TEST_F(HttpLoopTest, EndlessHeadsEndWithTheirConnectionAndTakeNoMemory) {
  std::string headers;
  for (int i = 0; i < 1000; ++i)
    headers += "X-" + std::to_string(i) + ": aaaaaaaaaaaaaaaaaaaaaaaa\r\n";
  const std::string line(1 << 16, 'a');
  const std::vector<std::pair<std::string, std::string>> attacks{
      {"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", line},
      {"GET / HTTP/1.1\r\nHost: x\r\n", headers},
      {"GET /", line},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
       "10000\r\n" + line + "\r\n"}};
  for (const auto& [first, then] : attacks) {
    HttpPeer attacker = Peer();
    (void)attacker.Write(first);
    std::size_t taken = 0;
    std::size_t most_in_use = 0;
    const std::size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 1000; ++i) {
      if (attacker.Write(then)) taken += then.size();
      Turn();
      most_in_use =
          std::max(most_in_use, mallinfo2().uordblks - std::min(before, mallinfo2().uordblks));
    }
    EXPECT_LT(taken, 1u << 20) << first;
    EXPECT_LT(most_in_use, 1u << 20) << first;
    EXPECT_TRUE(attacker.Ended()) << first;
  }
  EXPECT_EQ(loop_->open(), 0u);
}

TEST_F(HttpLoopTest, AHeadHasFiveSecondsHoweverItDrips) {
  HttpPeer drips = Peer();
  ASSERT_TRUE(drips.Write("GET / HTTP/1.1\r\nX:"));
  for (int i = 0; i < 49; ++i) {
    now_ = now_ + 100 * kMillisecond;
    ASSERT_TRUE(drips.Write("a")) << i;
    Turn();
  }
  EXPECT_FALSE(drips.Ended());
  EXPECT_EQ(loop_->next_turn(), kStart + 5 * kSecond);
  now_ = kStart + 5 * kSecond;
  Turn();
  EXPECT_TRUE(drips.Ended());
  EXPECT_EQ(loop_->open(), 0u);
}

TEST_F(HttpLoopTest, SilentConnectionsTakeNobodysAnswer) {
  HttpPeer other = Peer("another");
  std::vector<HttpPeer> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(Peer("slow"));
    (void)slow.back().Write("GET / HTTP/1.1\r\n");
    if (i % 16 == 0) Turn();
    if (i % 50 == 0) {
      EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    }
  }
  Turn();
  EXPECT_LE(loop_->open(), 64u);
  ASSERT_TRUE(other.Write("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
      << "the oldest of all, of another peer";
  Turn();
  EXPECT_THAT(other.Read(), StartsWith("HTTP/1.1 200"));
}

// Each holds the same text, and what its socket takes of it.
TEST_F(HttpLoopTest, AnswersThatNobodyReadsShareTheirTextAndEnd) {
  std::vector<HttpPeer> lazy;
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 32; ++i) {
    lazy.push_back(Peer());
    ASSERT_TRUE(lazy.back().Write("GET /large HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  Turn();
  EXPECT_EQ(asked_.size(), 32u);
  EXPECT_LT(mallinfo2().uordblks, before + (4 << 20)) << "32 copies are 256 MiB";
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  now_ = kStart + 29 * kSecond;
  for (HttpPeer& peer : lazy) (void)peer.Read(1);  // dripping does not help
  Turn();
  EXPECT_GT(loop_->open(), 20u);
  now_ = kStart + 30 * kSecond;
  Turn();
  EXPECT_EQ(loop_->open(), 0u);

  HttpPeer reads = Peer();
  ASSERT_TRUE(reads.Write("GET /large HTTP/1.1\r\nHost: x\r\n\r\n"));
  std::string answer;
  for (int i = 0; i < 10'000 && answer.size() < kLarge; ++i) {
    Turn();
    answer += reads.Read();
  }
  EXPECT_THAT(answer.size(), ::testing::Gt(kLarge));
}

TEST_F(HttpLoopTest, AnAnswerMayComeLater) {
  HttpPeer first = Peer();
  ASSERT_TRUE(first.Write("GET /later HTTP/1.1\r\nHost: x\r\n\r\n"));
  Turn();
  EXPECT_EQ(first.Read(), "");
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200")) << "meanwhile";
  while (now_ < kStart + 100 * kMillisecond) {
    EXPECT_EQ(first.Read(), "");
    ASSERT_TRUE(loop_->next_turn());
    ASSERT_GT(*loop_->next_turn(), now_);
    now_ = *loop_->next_turn();
    Turn();
  }
  EXPECT_THAT(first.Read(), StartsWith("HTTP/1.1 200"));
  // A peer that has gone meanwhile, and one that waits at the end, are no trouble.
  {
    HttpPeer goes = Peer();
    ASSERT_TRUE(goes.Write("GET /later HTTP/1.1\r\nHost: x\r\n\r\n"));
    Turn();
  }
  now_ = now_ + kSecond;
  Turn();
  HttpPeer waits = Peer();
  ASSERT_TRUE(waits.Write("GET /later HTTP/1.1\r\nHost: x\r\n\r\n"));
  Turn();
  loop_.reset();
  EXPECT_TRUE(waits.Ended());
}

TEST_F(HttpLoopTest, SilentConnectionsEndForWantOfDescriptors) {
  HttpPeer silent = Peer();
  HttpPeer asks = Peer();
  ASSERT_TRUE(asks.Write("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  Turn();
  loop_->EndSilent();
  loop_->EndSilent();
  Turn();
  EXPECT_TRUE(silent.Ended());
  EXPECT_THAT(asks.Read(), StartsWith("HTTP/1.1 200"));
  EXPECT_FALSE(asks.Ended());
}

}  // namespace
}  // namespace prd::http_loop_test
