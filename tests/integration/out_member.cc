// A worker that joins a job, copies its model as it may, and goes on asking its peers for it when
// it is out: what gone_test.py is about. It speaks the control protocol by hand, and has a mesh of
// its own.
//
// Usage: out_member ENDPOINT ADMIN JOB [HOST]
//
// It learns the model's shape from the run's history. HOST: what it says its host is, so that its
// peers take tcp. Keys for the daemon: PRD_CURVE_SERVER_KEY, PRD_CURVE_SECRET_KEY_FILE. It takes a
// word a line from its standard input, and answers with a line of JSON:
//
//   copy    asks the controller for the members, and copies each one's parameters as the controller
//   says leave   leaves the job silent  says nothing to the controller any more try N   after a
//   second: N times over the connections that it has, and N times over new ones, asks each of the
//   peers
//           that it knew for its model. `frames`: that reached it, of any kind; `got`: copies;
//           `connections`: to it
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/admin.h"
#include "common/base/link.h"
#include "common/io/codec.h"
#include "common/io/curve.h"
#include "worker/mesh/mesh.h"
#include "worker/transport/zmq_transport.h"

namespace prd {
namespace {

constexpr DurationNs kBeat = 200 * kMillisecond;
constexpr DurationNs kTry = 30 * kMillisecond;

Instant Now() {
  return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

class OutMember final : public MeshEvents {
 public:
  OutMember(const std::string& endpoint, const std::string& admin, const std::string& job,
            const std::string& host)
      : daemon_(context_, zmq::socket_type::dealer), hello_(HelloLike(admin, job)) {
    const std::string own_host = host.empty() ? hello_.host : host;
    values_.resize(hello_.model_bytes / sizeof(float));
    store_.SetTensors({Tensor{values_.data(), values_.size()}},
                      {Tensor{values_.data(), values_.size()}}, {});
    Mesh::Options options{.incarnation = static_cast<Incarnation>(Now().ns) ^ ::getpid(),
                          .host = own_host};
    ZmqTransport::Options reached{.longest_part = options.LongestPart()};
    if (host.empty()) reached.listening.address.clear();
    incarnation_ = options.incarnation;
    auto transport = ZmqTransport::Make(&mesh_context_, reached);
    if (!transport.ok()) Fail(transport.status());
    auto mesh = Mesh::Create(std::move(transport).value(), options, &store_, this);
    if (!mesh.ok()) Fail(mesh.status());
    mesh_ = std::move(*mesh);
    hello_.rank = kNoRank;
    hello_.host = own_host;
    hello_.endpoints = mesh_->endpoints();
    hello_.mesh_key = mesh_->key();
    hello_.identity.clear();
    hello_.former = {};
    hello_.iteration = 0;
    hello_.own = hello_.job_trained = {};
    Connect(endpoint);
    Say(hello_);
  }

  int Run() {
    std::string text;
    for (;;) {
      Turn();
      pollfd in{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (::poll(&in, 1, 2) <= 0) continue;
      char c = 0;
      if (::read(STDIN_FILENO, &c, 1) != 1) return 0;
      if (c != '\n') {
        text += c;
        continue;
      }
      Obey(std::exchange(text, {}));
    }
  }

  void OnReduced(GroupId, const Status&, std::uint64_t, const std::vector<Rank>&,
                 std::uint64_t) override {}
  void OnFetched(const Status& status, Iteration iteration) override {
    std::printf("{\"adopted\": %s, \"iteration\": %lld}\n", status.ok() ? "true" : "false",
                static_cast<long long>(iteration));
    std::fflush(stdout);
    Say(Adopted{.ok = status.ok(), .iteration = iteration});
  }
  void OnSampled(const Status& status, const std::shared_ptr<Buffer>& row) override {
    sampled_ = status.ok() && row != nullptr;
  }
  void OnNote(Incarnation, const PeerMessage&) override {}
  void OnRequest(Incarnation, Request, const PeerItem&) override {}
  void OnPulled(Ticket, const Status&, const ShardHeader&) override {}

 private:
  [[noreturn]] static void Fail(const Status& status) {
    std::printf("{\"failed\": \"%s\"}\n", status.message().c_str());
    std::exit(1);
  }

  // As the first worker of the run says.
  Hello HelloLike(const std::string& admin, const std::string& job) {
    zmq::socket_t socket(context_, zmq::socket_type::req);
    socket.set(zmq::sockopt::linger, 0);
    socket.connect(admin);
    socket.send(zmq::buffer(Encode(AdminRequest(ReadRecords{.run = 1}))), zmq::send_flags::none);
    zmq::message_t answer;
    (void)socket.recv(answer);
    const Result<AdminReply> reply = DecodeAdminReply(answer.to_string_view());
    if (!reply.ok()) Fail(reply.status());
    for (const Record& record : std::get<RecordBatch>(*reply).records) {
      const auto* from = std::get_if<FromWorker>(&record.body);
      const auto* hello = from == nullptr ? nullptr : std::get_if<Hello>(&from->envelope.body);
      if (hello != nullptr && hello->job == job) return *hello;
    }
    Fail(Status(Code::kNotFound, "no worker of that job"));
  }

  void Connect(const std::string& endpoint) {
    daemon_.set(zmq::sockopt::linger, 0);
    const char* const server = std::getenv("PRD_CURVE_SERVER_KEY");
    const char* const file = std::getenv("PRD_CURVE_SECRET_KEY_FILE");
    if (server != nullptr && file != nullptr) {
      const Result<CurveKeys> keys = ReadSecretKeyFile(file);
      if (!keys.ok()) Fail(keys.status());
      daemon_.set(zmq::sockopt::curve_serverkey, std::string(server));
      daemon_.set(zmq::sockopt::curve_publickey, keys->public_key);
      daemon_.set(zmq::sockopt::curve_secretkey, keys->secret_key);
    }
    daemon_.connect(endpoint);
  }

  void Send(Seq seq, WorkerBody body) {
    const WorkerEnvelope envelope{.run = run_,
                                  .identity = identity_,
                                  .rank = rank_,
                                  .incarnation = incarnation_,
                                  .seq = seq,
                                  .ack = link_.last_in(),
                                  .oldest = link_.oldest(),
                                  .token = {11, incarnation_},
                                  .body = std::move(body)};
    (void)daemon_.send(zmq::buffer(Encode(envelope)), zmq::send_flags::dontwait);
  }
  void Say(WorkerBody body) {
    const auto& [seq, kept] = link_.Push(std::move(body));
    Send(seq, kept);
  }

  void Obey(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    int times = 0;
    words >> word >> times;
    if (word == "leave") Say(Leave{"out_member"});
    if (word == "silent") {
      silent_ = true;
      std::printf("{\"silent\": true}\n");
    }
    if (word == "copy") Say(AskMembers{});
    if (word == "try") Try(times);
    std::fflush(stdout);
  }

  void Turn() {
    mesh_->Service(Now());
    zmq::message_t message;
    while (!silent_ && daemon_.recv(message, zmq::recv_flags::dontwait)) Hear(message);
    if (silent_ || Now() - beat_ < kBeat) return;
    beat_ = Now();
    if (run_ != kNoRun) Send(0, Heartbeat{});
    for (const auto& [seq, body] : link_.unacked()) Send(seq, body);
  }

  void Hear(const zmq::message_t& message) {
    const Result<ControllerEnvelope> envelope = DecodeControllerEnvelope(message.to_string_view());
    if (!envelope.ok()) return;
    if (const auto* refused = std::get_if<Refused>(&envelope->body)) return Out(refused->reason);
    if (envelope->identity.known()) identity_ = envelope->identity;
    link_.OnAck(envelope->ack);
    using Verdict = LinkEnd<WorkerBody>::Verdict;
    if (envelope->seq == 0 || link_.OnReceive(envelope->seq) != Verdict::kDeliver) return;
    if (const auto* welcome = std::get_if<Welcome>(&envelope->body)) {
      run_ = welcome->run;
      rank_ = welcome->rank;
      welcome_ = *welcome;
      Enter();
      std::printf("{\"rank\": %d}\n", rank_);
    }
    if (const auto* announce = std::get_if<Announce>(&envelope->body)) {
      mesh_->Announce(Now(), announce->members, announce->copies);
    }
    if (const auto* adopt = std::get_if<Adopt>(&envelope->body)) {
      mesh_->Announce(Now(), {adopt->source});
      mesh_->StartFetch(Now(), adopt->source);
    }
    if (const auto* members = std::get_if<Members>(&envelope->body)) CopyAll(*members);
    if (const auto* released = std::get_if<Released>(&envelope->body)) Out(released->reason);
    std::fflush(stdout);
  }

  void Enter() {
    mesh_->JoinRun(welcome_.identity.high, welcome_.plan, 20 * kSecond,
                   {.security = welcome_.mesh_security});
    for (const GroupMember& peer : peers_) mesh_->Announce(Now(), {peer});
  }

  void Out(const std::string& why) {
    if (silent_) return;
    silent_ = true;
    std::string words = why;
    for (char& c : words) c = c == '"' || c == '\\' ? ' ' : c;
    std::printf("{\"out\": \"%s\"}\n", words.c_str());
    std::fflush(stdout);
  }

  void CopyAll(const Members& members) {
    peers_.clear();
    for (const GroupMember& member : members.members) {
      if (member.incarnation != incarnation_) peers_.push_back(member);
    }
    int copies = 0;
    if (std::exchange(copied_, true)) {  // the orders are left unused
      std::printf("{\"ordered\": %zu}\n", peers_.size());
      return;
    }
    for (const GroupMember& peer : peers_) {
      mesh_->Announce(Now(), {peer});
      copies += Ask(peer, 20 * kSecond) ? 1 : 0;
    }
    std::printf("{\"copied\": %d, \"peers\": %zu}\n", copies, peers_.size());
  }

  bool Ask(const GroupMember& peer, DurationNs most) {
    sampled_.reset();
    mesh_->StartSample(Now(), peer);
    for (const Instant begin = Now(); !sampled_ && Now() - begin < most;) {
      Turn();
      ::poll(nullptr, 0, 1);
    }
    if (!sampled_) mesh_->CancelSample();
    return sampled_.value_or(false);
  }

  std::uint64_t Frames() const {
    const Mesh::Counters& counters = mesh_->counters();
    return counters.received + counters.early + counters.dropped;
  }

  void Try(int times) {
    for (const Instant begin = Now(); Now() - begin < kSecond;) {
      for (const GroupMember& peer : peers_) (void)Ask(peer, kTry);
    }
    const std::uint64_t frames = Frames();
    const std::uint64_t connections = mesh_->connections().admitted;
    int got = 0;
    int tries = 0;
    for (const bool anew : {false, true}) {
      for (int i = 0; i < times; ++i) {
        if (anew) {
          mesh_->SetIncarnation(incarnation_);
          Enter();
        }
        for (const GroupMember& peer : peers_) {
          got += Ask(peer, kTry) ? 1 : 0;
          ++tries;
        }
      }
    }
    std::printf("{\"tries\": %d, \"got\": %d, \"frames\": %llu, \"connections\": %llu}\n", tries,
                got, static_cast<unsigned long long>(Frames() - frames),
                static_cast<unsigned long long>(mesh_->connections().admitted - connections));
  }

  zmq::context_t context_;
  zmq::context_t mesh_context_;
  zmq::socket_t daemon_;
  Hello hello_;
  std::vector<float> values_;
  ReplicaStore store_;
  std::unique_ptr<Mesh> mesh_;
  Incarnation incarnation_ = 0;
  LinkEnd<WorkerBody> link_;
  RunId run_ = kNoRun;
  RunIdentity identity_;
  Rank rank_ = kNoRank;
  Welcome welcome_;
  std::vector<GroupMember> peers_;
  std::optional<bool> sampled_;
  bool copied_ = false;
  bool silent_ = false;
  Instant beat_;
};

}  // namespace
}  // namespace prd

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: out_member ENDPOINT ADMIN JOB [HOST]\n");
    return 2;
  }
  return prd::OutMember(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : "").Run();
}
