#include "tools/prdbench/mesh_worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <zmq.hpp>

#include "common/io/poll.h"
#include "common/io/secret.h"
#include "tools/prdbench/device_line.h"
#include "tools/prdbench/device_values.h"
#include "tools/prdbench/way_team.h"
#include "tools/prdbench/worker_comm.h"
#include "tools/prdbench/worker_memory.h"
#include "worker/device/plane.h"
#include "worker/mesh/mesh.h"
#include "worker/transport/zmq_transport.h"

namespace prd::bench {
namespace {

std::uint64_t Random() { return RandomBits() | 1; }

std::string Hex(const MeshKey& key) {
  std::string text;
  for (const std::uint8_t byte : key.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

MeshKey KeyOf(const std::string& hex) {
  MeshKey key;
  for (std::size_t i = 0; i < key.bytes.size() && 2 * i + 1 < hex.size(); ++i) {
    key.bytes[i] = static_cast<std::uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return key;
}

class MeshWorker : public MeshEvents {
 public:
  MeshWorker(const MeshWorkerOptions& options, int in, int out)
      : options_(options), in_(in), out_(out) {}
  ~MeshWorker() override {
    if (wake_ >= 0) close(wake_);
  }

  int Run() {
    const Status status = Open();
    if (!status.ok()) {
      Say(status.message());
      return 1;
    }
    while (Turn()) {
    }
    return 0;
  }

  void OnReduced(GroupId, const Status& status, std::uint64_t, const std::vector<Rank>&,
                 std::uint64_t) override {
    running_ = false;
    const Status there = status.ok() ? memory_.Finish() : status;  // not only enqueued
    const Instant end = Now();
    if (!there.ok()) return Say(there.ToString());
    std::string line = std::to_string(start_.ns) + " " + std::to_string(end.ns) + " " + WayGone();
    if (verified_) line += " " + Compare();
    Say(line);
  }
  void OnFetched(const Status&, Iteration) override {}

 private:
  Status Open() {
    wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (options_.device) {
      PRD_RETURN_IF_ERROR(memory_.OpenDevice(*options_.device, options_.shares_device, wake_));
    }
    PRD_RETURN_IF_ERROR(memory_.Allocate(options_.tensors));
    PRD_RETURN_IF_ERROR(memory_.Fill(0, options_.rank));
    Mesh::Options options;
    options.incarnation = Random();
    options.host = options_.host;
    options.timeout = options_.timeout;
    auto transport = ZmqTransport::Make(&context_, {.longest_part = options.LongestPart()});
    if (!transport.ok()) return transport.status();
    transport_ = transport->get();
    Result<std::unique_ptr<Mesh>> mesh =
        Mesh::Create(std::move(transport).value(), options, &store_, this);
    if (!mesh.ok()) return mesh.status();
    mesh_ = std::move(*mesh);
    if (options_.device) PRD_RETURN_IF_ERROR(UsePlane());
    store_.parameters = Layout(memory_.tensors());  // as a session knows it from the start
    mesh_->JoinRun(1, {}, options_.timeout, {.security = options_.mesh_security});
    std::string hello = std::to_string(options.incarnation) + " " + Hex(mesh_->key());
    for (const std::string& endpoint : mesh_->endpoints()) hello += " " + endpoint;
    Say(hello);
    Say(memory_.gpu() == nullptr ? "[]" : Encode(About(*memory_.gpu())));
    return Status::Ok();
  }

  Status UsePlane() {
    std::unique_ptr<DeviceMemory> memory = memory_.TakeStoreMemory();
    Result<std::unique_ptr<DevicePlane>> plane =
        DevicePlane::Create(memory.get(), wake_,
                            {.timeout = options_.timeout,
                             .window_bytes = options_.window_bytes,
                             .communicators = options_.communicators});
    if (!plane.ok()) return plane.status();
    communicators_ = &(*plane)->communicators();
    mesh_->UseMemory(std::move(memory), std::move(*plane));
    return Status::Ok();
  }

  void Say(const std::string& line) {
    const std::string text = line + "\n";
    if (write(out_, text.data(), text.size()) < 0) std::_Exit(1);
  }
  void Say(const Result<std::string>& line) { Say(line.ok() ? *line : line.status().ToString()); }

  bool Turn() {
    mesh_->Service(Now());
    std::vector<zmq::pollitem_t> items{{nullptr, in_, ZMQ_POLLIN, 0},
                                       {nullptr, wake_, ZMQ_POLLIN, 0}};
    transport_->AppendPollItems(mesh_->WatchedLinks(), &items);
    long wait_ms = -1;
    if (const auto deadline = mesh_->NextDeadline()) {
      wait_ms = std::max<long>(0, (*deadline - Now()) / kMillisecond + 1);
      if (*deadline <= Now()) wait_ms = 0;
    }
    Poll(items, wait_ms);
    if (items[1].revents != 0) {
      std::uint64_t count = 0;
      if (read(wake_, &count, sizeof count) < 0) return true;  // it was not for us
    }
    return items[0].revents == 0 || Hear();
  }

  bool Hear() {
    char buffer[4096];
    const ssize_t got = read(in_, buffer, sizeof buffer);
    if (got <= 0) return false;
    pending_.append(buffer, static_cast<std::size_t>(got));
    for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      Obey(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    return true;
  }

  void Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "peer") return Meet(&words);
    if (verb == "reduce" || verb == "verified") return Reduce(verb == "verified", &words);
    if (verb == "hash") return Say(memory_.Hash());
    if (verb == "counters") return Say(Counters());
    if (verb == "free") return Say(memory_.Free());
    if (verb == "running") return Say(std::string(running_ ? "yes" : "no"));
    Say(comm_.Obey(verb, &words, &memory_, OwnCommunicator()));
  }

  void Meet(std::istringstream* words) {
    GroupMember member;
    std::string endpoint;
    std::string key;
    *words >> member.rank >> member.incarnation >> member.host >> key;
    member.mesh_key = KeyOf(key);
    while (*words >> endpoint) member.endpoints.push_back(endpoint);
    mesh_->Announce(Now(), {member});
    peers_.push_back(member);
  }

  void Reduce(bool verified, std::istringstream* words) {
    Group group;
    int kind = 0;
    std::uint64_t what = 0;  // seed or bytes
    int tensor = -1;
    *words >> kind >> group.id >> what;
    if (verified) *words >> tensor;
    group.kind = static_cast<GroupKind>(kind);
    shares_.clear();
    for (Share share; *words >> share.rank && words->get() == ':' && *words >> share.weight;) {
      GroupMember member = peers_.at(static_cast<std::size_t>(share.rank));
      member.weight = share.weight;
      group.members.push_back(std::move(member));
      shares_.push_back(share);
    }
    if (shares_.empty()) return Say(std::string("a group without members"));
    verified_ = verified;
    if (verified) {
      seed_ = what;
      tensors_ = memory_.tensors();
      if (tensor >= 0) tensors_ = {tensors_.at(static_cast<std::size_t>(tensor))};
      const Status status = memory_.Fill(seed_, options_.rank);
      if (!status.ok()) return Say(status.ToString());
    } else {
      tensors_ = memory_.First(what);
    }
    store_.parameters = Layout(tensors_);
    running_ = true;
    group_ = group;
    start_ = Now();
    mesh_->StartReduce(start_, group);
  }

  // "WORST HASH" of what is in the parameters now.
  std::string Compare() {
    const Result<std::string> hash = memory_.Hash();
    const Result<double> worst = memory_.Worst(seed_, shares_, tensors_);
    if (!hash.ok() || !worst.ok()) return "inf -";
    std::ostringstream line;
    line << *worst << ' ' << *hash;
    return line.str();
  }

  // The way of the newest group that ended ok.
  const char* WayGone() {
    const std::array<std::uint64_t, 3> before = std::exchange(groups_, mesh_->counters().groups);
    for (std::size_t way = 0; way < groups_.size(); ++way) {
      if (groups_[way] != before[way]) return WayName(static_cast<Way>(way));
    }
    return "none";
  }

  // The communicator of the last group's members, if that was reduced on it.
  Gpu::Comm OwnCommunicator() const {
    const Communicators::Choice& choice = mesh_->counters().newest;
    if (communicators_ == nullptr || choice.way != Way::kCollective) return nullptr;
    const std::optional<Communicators::Use> use = communicators_->Find(choice.comm, group_);
    return use ? use->comm : nullptr;
  }

  std::string Counters() const {
    if (communicators_ == nullptr) return "0 0 0 0 0";
    const Communicators::Counters counters = communicators_->counters();
    std::ostringstream line;
    line << counters.made << ' ' << counters.broken << ' ' << counters.given_up << ' '
         << counters.here << ' ' << counters.making;
    return line.str();
  }

  const MeshWorkerOptions& options_;
  int in_;
  int out_;
  int wake_ = -1;
  WorkerMemory memory_;  // outlives the store
  ReplicaStore store_;
  zmq::context_t context_;
  ZmqTransport* transport_ = nullptr;  // the mesh's
  std::unique_ptr<Mesh> mesh_;
  Communicators* communicators_ = nullptr;  // the mesh's, on a device
  WorkerComm comm_;
  std::vector<GroupMember> peers_;
  std::string pending_;

  // The group that runs, or ran last.
  bool running_ = false;
  Group group_;
  std::array<std::uint64_t, 3> groups_{};  // Mesh::Counters
  Instant start_;
  std::vector<Share> shares_;
  std::vector<Tensor> tensors_;
  bool verified_ = false;  // it is to be compared
  std::uint64_t seed_ = 0;
};

}  // namespace

int RunMeshWorker(const MeshWorkerOptions& options, int in, int out) {
  return MeshWorker(options, in, out).Run();
}

}  // namespace prd::bench
