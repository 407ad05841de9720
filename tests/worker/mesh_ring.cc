#include "tests/worker/mesh_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "tests/plans.h"

namespace prd::testing {

Instant MeshNow() {
  return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

MeshNode::MeshNode(NodeOptions options, const std::vector<Tensor>& parameters,
                   const std::vector<Tensor>& gradients)
    : options_(std::move(options)) {
  if (!options_.keys) options_.keys = DrawnKeys();
  store.SetTensors(parameters, gradients, {});
  auto sockets = ZmqTransport::Make(&context, {.listening = options_.listening,
                                               .max_connections = options_.max_connections,
                                               .longest_part = options_.LongestPart()});
  EXPECT_TRUE(sockets.ok()) << sockets.status().ToString();
  transport = sockets->get();
  auto made = Mesh::Create(std::move(sockets).value(), options_, &store, this);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  mesh = std::move(made).value();
  mesh->JoinRun(1, {});
}

void MeshNode::OnReduced(GroupId group, const Status& status, std::uint64_t sent_bytes,
                         const std::vector<Rank>& unreachable, std::uint64_t digest) {
  EXPECT_FALSE(reduced.has_value()) << "reported twice";
  EXPECT_TRUE(unreachable.empty() || !status.ok());
  reduced = {group, status, sent_bytes, unreachable, digest};
}

void MeshNode::OnProbed(Rank rank, Incarnation incarnation) {
  probed.emplace_back(rank, incarnation);
}

void MeshNode::OnFetched(const Status& status, Iteration iteration) {
  EXPECT_FALSE(fetched.has_value()) << "reported twice";
  fetched = {status, iteration};
}

void MeshNode::OnNote(Incarnation from, const PeerMessage& note) { notes.emplace_back(from, note); }

void MeshNode::OnRequest(Incarnation from, Request request, const PeerItem& parcel) {
  if (on_request) return on_request(from, request, parcel);
  mesh->Do(MeshNow(), Refuse{request});
}

void MeshNode::OnPulled(Ticket ticket, const Status& status, const ShardHeader& enclosure) {
  EXPECT_TRUE(pulled.emplace(ticket, Pulled{status, enclosure}).second) << "reported twice";
}

GroupMember MeshNode::AsMember(double weight) const {
  return {.rank = static_cast<Rank>(options_.incarnation % 1000),
          .incarnation = options_.incarnation,
          .weight = weight,
          .host = options_.host,
          .endpoints = mesh->endpoints(),
          .passive = false,
          .mesh_key = mesh->key()};
}

Incarnation FreshIncarnation() {
  static std::random_device device;
  static Incarnation ranks = 0;
  return (Incarnation{device()} + 1) * 1000 + ++ranks % 1000;
}

MeshKeyPair DrawnKeys() {
  Result<MeshKeyPair> keys = DrawMeshKeys();
  EXPECT_TRUE(keys.ok()) << keys.status().ToString();
  return *keys;
}

void Announce(const std::vector<MeshNode*>& nodes, const SharedList<GroupMember>& members) {
  for (MeshNode* node : nodes) node->mesh->Announce(MeshNow(), members);
}

Pass ShowPass(zmq::socket_t* socket, const MeshKeyPair& from_keys, const MeshKey& to_key,
              const Direction& way, Purpose purpose) {
  static std::uint64_t numbers = std::uint64_t{1} << 40;  // after those of the worker itself
  const Pass pass{.from = way.from, .number = ++numbers, .purpose = purpose};
  const auto keys = AgreeOnKeys(from_keys, to_key, way);
  socket->set(zmq::sockopt::plain_username, EncodePass(pass));
  socket->set(zmq::sockopt::plain_password, ProofOf(keys.value().out, pass));
  return pass;
}

PlayedWorker::PlayedWorker(MeshNode* to, Incarnation self, Rank rank,
                           std::vector<std::string> endpoints) {
  const MeshKeyPair keys = DrawnKeys();
  if (endpoints.empty()) endpoints = {"ipc://@prd-test-nobody"};
  self_ = {.rank = rank,
           .incarnation = self,
           .weight = 0,
           .host = to->AsMember(0).host,
           .endpoints = std::move(endpoints),
           .passive = false,
           .mesh_key = keys.public_key};
  Open(to, keys);
}

PlayedWorker::PlayedWorker(MeshNode* to, const MeshNode& as) : self_(as.AsMember(0)) {
  Open(to, as.keys());
}

void PlayedWorker::Open(MeshNode* to, const MeshKeyPair& keys) {
  const GroupMember other = to->AsMember(0);
  const Direction way{.run = 1, .from = self_.incarnation, .to = other.incarnation};
  to->mesh->Announce(MeshNow(), {self_});
  for (const Purpose purpose : {Purpose::kData, Purpose::kSignals}) {
    zmq::socket_t& socket = purpose == Purpose::kData ? data_ : signals_;
    socket = zmq::socket_t(context_, zmq::socket_type::push);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndtimeo, kSendMs);
    passes_[purpose] = ShowPass(&socket, keys, other.mesh_key, way, purpose);
    socket.connect(other.endpoints.front());
  }
}

void PlayedWorker::Send(const FrameHeader& header, const std::string& payload) {
  zmq::socket_t& socket = IsSignal(header.kind) ? signals_ : data_;
  socket.send(zmq::buffer(EncodeHeader(header)), zmq::send_flags::sndmore);
  socket.send(zmq::buffer(payload), zmq::send_flags::none);
}

void PlayedWorker::SendParts(const std::vector<std::string>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    data_.send(zmq::buffer(parts[i]),
               i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

DeafEnd::DeafEnd() {
  door_.set(zmq::sockopt::linger, 0);
  door_.bind("inproc://zeromq.zap.01");
  pull_.set(zmq::sockopt::linger, 0);
  pull_.set(zmq::sockopt::rcvhwm, 1);
  pull_.set(zmq::sockopt::zap_domain, "deaf");
  pull_.set(zmq::sockopt::plain_server, true);
  pull_.bind("tcp://127.0.0.1:*");
}

bool RunUntil(const std::vector<MeshNode*>& nodes, const std::function<bool()>& done) {
  const Instant deadline = MeshNow() + 20 * kSecond;
  std::vector<zmq::pollitem_t> items;
  for (;;) {
    items.clear();
    Instant next = deadline;
    for (MeshNode* node : nodes) {
      node->mesh->Service(MeshNow());
      next = std::min(next, node->mesh->NextDeadline().value_or(next));
      node->AppendPollItems(&items);
    }
    if (done()) return true;
    const Instant now = MeshNow();
    if (now >= deadline) return false;
    const auto wait = std::chrono::milliseconds(
        next <= now ? 0 : std::min<std::int64_t>((next - now) / kMillisecond + 1, 1000));
    zmq::poll(items, wait);
  }
}

std::vector<Status> ReduceAll(const std::vector<MeshNode*>& nodes,
                              const std::vector<double>& weights, Group group, bool gradients) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    group.members.push_back(nodes[i]->AsMember(weights[i]));
  }
  for (MeshNode* node : nodes) {
    node->reduced.reset();
    const Plan plan = gradients ? plans::kGradients : plans::kModels;
    if (gradients) node->mesh->JoinRun(1, plan);
    node->mesh->StartReduce(MeshNow(), group, plans::WhatReduces(plan, group.kind));
  }
  const bool done = RunUntil(nodes, [&] {
    return std::all_of(nodes.begin(), nodes.end(),
                       [](const MeshNode* node) { return node->reduced.has_value(); });
  });
  EXPECT_TRUE(done);
  std::vector<Status> statuses;
  for (MeshNode* node : nodes) {
    statuses.push_back(node->reduced ? node->reduced->status
                                     : Status(Code::kInternal, "not reported"));
    EXPECT_EQ(node->reduced.value_or(MeshNode::Reduced{}).group, group.id);
  }
  return statuses;
}

}  // namespace prd::testing
