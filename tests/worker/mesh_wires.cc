#include "tests/worker/mesh_wires.h"

#include <algorithm>
#include <cstdio>

#include "worker/mesh/frame.h"

namespace prd::testing {

Wires::Wires(const std::vector<MeshNode*>& nodes) {
  door_.set(zmq::sockopt::linger, 0);
  door_.bind("inproc://zeromq.zap.01");
  for (const MeshNode* node : nodes) nodes_.push_back(node->AsMember(0).incarnation);
  for (std::size_t from = 0; from < nodes.size(); ++from) {
    for (std::size_t to = 0; to < nodes.size(); ++to) {
      if (from == to) continue;
      Wire& wire = wires_[{from, to}];
      char name[64];
      std::snprintf(name, sizeof name, "ipc://@prd-wire-%016llx-%zu",
                    static_cast<unsigned long long>(nodes_[from]), to);
      wire.endpoint = name;
      Listen(&wire);
      const Direction way{.run = 1, .from = nodes_[from], .to = nodes_[to]};
      for (const Purpose purpose : {Purpose::kData, Purpose::kSignals}) {
        zmq::socket_t& out = purpose == Purpose::kData ? wire.out : wire.signals;
        out = zmq::socket_t(context_, zmq::socket_type::push);
        out.set(zmq::sockopt::linger, 0);
        out.set(zmq::sockopt::sndtimeo, kSendMs);
        out.set(zmq::sockopt::sndhwm, 0);
        ShowPass(&out, nodes[from]->keys(), nodes[to]->keys().public_key, way, purpose);
        out.connect(nodes[to]->mesh->endpoints().front());
      }
    }
  }
}

void Wires::Listen(Wire* wire) {
  wire->in = zmq::socket_t(context_, zmq::socket_type::pull);
  wire->in.set(zmq::sockopt::linger, 0);
  wire->in.set(zmq::sockopt::zap_domain, "wires");
  wire->in.set(zmq::sockopt::plain_server, true);
  wire->in.bind(wire->endpoint);
}

SharedList<GroupMember> Wires::SeenBy(std::size_t node,
                                      const SharedList<GroupMember>& members) const {
  SharedList<GroupMember> seen;
  for (GroupMember member : members) {
    const auto at = std::find(nodes_.begin(), nodes_.end(), member.incarnation);
    const auto to = static_cast<std::size_t>(at - nodes_.begin());
    if (to != node) member.endpoints = {wires_.at({node, to}).endpoint};
    seen.push_back(member);
  }
  return seen;
}

void Wires::Set(std::size_t from, std::size_t to, State state) {
  wires_.at({from, to}).state = state;
}

void Wires::Break(std::size_t from, std::size_t to) {
  Wire& wire = wires_.at({from, to});
  wire.in.close();
  wire.waiting.clear();
  for (bool listens = false; !listens;) {  // the name is free a moment later
    try {
      Listen(&wire);
      listens = true;
    } catch (const zmq::error_t&) {
    }
  }
}

void Wires::Carry() {
  LetIn();
  for (auto& [ends, wire] : wires_) Carry(&wire);
}

void Wires::LetIn() {
  for (zmq::message_t part; door_.recv(part, zmq::recv_flags::dontwait);) {
    std::vector<std::string> question{part.to_string()};
    while (part.more()) {
      (void)door_.recv(part, zmq::recv_flags::none);
      question.push_back(part.to_string());
    }
    const std::vector<std::string> answer = {question[0], "",   "1.0", question[3],
                                             "200",       "OK", "",    ""};
    for (std::size_t i = 0; i < answer.size(); ++i) {
      (void)door_.send(zmq::buffer(answer[i]),
                       i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }
}

void Wires::Carry(Wire* wire) {
  for (Frame frame; wire->in.recv(frame.header, zmq::recv_flags::dontwait);) {
    if (frame.header.more()) (void)wire->in.recv(frame.payload, zmq::recv_flags::dontwait);
    const auto header =
        DecodeHeader({static_cast<const std::byte*>(frame.header.data()), frame.header.size()},
                     frame.payload.size());
    if (!header || wire->state == State::kCut) continue;
    if (wire->state == State::kSmall && frame.payload.size() != 0) continue;
    if (!IsSignal(header->kind) || wire->state == State::kWhole) {
      wire->waiting.push_back(std::move(frame));
      continue;
    }
    (void)wire->signals.send(frame.header, zmq::send_flags::sndmore);
    (void)wire->signals.send(frame.payload, zmq::send_flags::none);
  }
  if (wire->state != State::kWhole) return;
  for (; !wire->waiting.empty(); wire->waiting.pop_front()) {
    Frame& next = wire->waiting.front();
    const auto header =
        DecodeHeader({static_cast<const std::byte*>(next.header.data()), next.header.size()},
                     next.payload.size());
    zmq::socket_t& out = IsSignal(header->kind) ? wire->signals : wire->out;
    (void)out.send(next.header, zmq::send_flags::sndmore);
    (void)out.send(next.payload, zmq::send_flags::none);
  }
}

void Wires::AppendPollItems(std::vector<zmq::pollitem_t>* items) {
  items->push_back({door_.handle(), 0, ZMQ_POLLIN, 0});
  for (auto& [ends, wire] : wires_) items->push_back({wire.in.handle(), 0, ZMQ_POLLIN, 0});
}

}  // namespace prd::testing
