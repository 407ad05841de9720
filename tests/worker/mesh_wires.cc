#include "tests/worker/mesh_wires.h"

#include <algorithm>
#include <cstdio>

#include "worker/mesh/fetch.h"
#include "worker/mesh/frame.h"

namespace prd::testing {

Wires::Wires(const std::vector<MeshNode*>& nodes) {
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
      wire.out = zmq::socket_t(context_, zmq::socket_type::push);
      wire.out.set(zmq::sockopt::linger, 0);
      wire.out.set(zmq::sockopt::sndhwm, 0);
      wire.out.connect(nodes[to]->mesh->endpoints().front());
    }
  }
}

void Wires::Listen(Wire* wire) {
  wire->in = zmq::socket_t(context_, zmq::socket_type::pull);
  wire->in.set(zmq::sockopt::linger, 0);
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
  for (auto& [ends, wire] : wires_) Carry(&wire, wires_.at({ends.second, ends.first}));
}

void Wires::Carry(Wire* wire, const Wire& back) {
  for (Frame frame; wire->in.recv(frame.header, zmq::recv_flags::dontwait);) {
    if (frame.header.more()) (void)wire->in.recv(frame.payload, zmq::recv_flags::dontwait);
    auto header =
        DecodeHeader({static_cast<const std::byte*>(frame.header.data()), frame.header.size()},
                     frame.payload.size());
    if (!header) continue;
    const bool signal = header->kind == FrameKind::kPing || header->kind == FrameKind::kPong;
    if (header->kind == FrameKind::kPing || header->kind == FrameKind::kFetch) {
      const auto address = DecodeReturnAddress(frame.payload.to_string_view());
      const std::string text =
          EncodeReturnAddress(address ? address->host : std::string(), {back.endpoint});
      frame.payload = zmq::message_t(text);
      header->length = text.size();
      const auto bytes = EncodeHeader(*header);
      frame.header = zmq::message_t(bytes.data(), bytes.size());
    }
    if (wire->state == State::kCut) continue;
    if (signal && wire->state == State::kSlow) {
      (void)wire->out.send(frame.header, zmq::send_flags::sndmore);
      (void)wire->out.send(frame.payload, zmq::send_flags::none);
    } else {
      wire->waiting.push_back(std::move(frame));
    }
  }
  if (wire->state != State::kWhole) return;
  for (; !wire->waiting.empty(); wire->waiting.pop_front()) {
    Frame& next = wire->waiting.front();
    (void)wire->out.send(next.header, zmq::send_flags::sndmore);
    (void)wire->out.send(next.payload, zmq::send_flags::none);
  }
}

void Wires::AppendPollItems(std::vector<zmq::pollitem_t>* items) {
  for (auto& [ends, wire] : wires_) items->push_back({wire.in.handle(), 0, ZMQ_POLLIN, 0});
}

}  // namespace prd::testing
