#include "worker/mesh/fetch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace prd {
namespace {

constexpr std::size_t kChunkBytes = 512 << 10;
constexpr std::size_t kMaxAddressBytes = 4096;
constexpr std::size_t kMaxEndpoints = 8;

// A message whose bytes live in `owner`.
template <typename T>
zmq::message_t Borrow(const std::byte* data, std::size_t size, const std::shared_ptr<T>& owner) {
  using Owner = std::shared_ptr<T>;
  return zmq::message_t(
      const_cast<std::byte*>(data), size,
      [](void*, void* hint) { delete static_cast<Owner*>(hint); }, new Owner(owner));
}

}  // namespace

std::string EncodeReturnAddress(const std::string& host,
                                const std::vector<std::string>& endpoints) {
  std::string text = host;
  for (const std::string& endpoint : endpoints) text += "\n" + endpoint;
  return text;
}

std::optional<GroupMember> DecodeReturnAddress(std::string_view text) {
  if (text.size() > kMaxAddressBytes) return std::nullopt;
  GroupMember member;
  std::size_t end = std::min(text.find('\n'), text.size());
  member.host = text.substr(0, end);
  while (end < text.size() && member.endpoints.size() < kMaxEndpoints) {
    text.remove_prefix(end + 1);
    end = std::min(text.find('\n'), text.size());
    member.endpoints.emplace_back(text.substr(0, end));
  }
  if (member.endpoints.empty()) return std::nullopt;
  return member;
}

Status IncomingReplica::OnFrame(const FrameHeader& header, zmq::message_t payload) {
  const std::size_t bytes = store_->parameters.bytes();
  if (header.kind == FrameKind::kReplica) {
    ReplicaInfo info;
    if (info_ || payload.size() != sizeof info) {
      return Status(Code::kDataLoss, "the source's description of its replica is damaged");
    }
    std::memcpy(&info, payload.data(), sizeof info);
    if (info.parameter_bytes != bytes || info.iteration < 0 ||
        (info.initial_bytes != 0 && info.initial_bytes != bytes)) {
      return Status(Code::kDataLoss, "the source has " + std::to_string(info.parameter_bytes) +
                                         " bytes of parameters, this worker " +
                                         std::to_string(bytes));
    }
    info_ = info;
    return Status::Ok();
  }
  const std::uint32_t stage = header.stage;
  if (!info_ || header.kind != FrameKind::kChunk || stage > 1 ||
      header.offset != received_[stage] || payload.size() == 0 ||
      payload.size() >
          (stage == 0 ? info_->parameter_bytes : info_->initial_bytes) - received_[stage]) {
    return Status(Code::kDataLoss, "the source sent bytes that do not fit");
  }
  received_[stage] += payload.size();
  chunks_[stage].push_back(std::move(payload));
  return Status::Ok();
}

bool IncomingReplica::Complete() const {
  return info_ && received_[0] == info_->parameter_bytes && received_[1] == info_->initial_bytes;
}

Iteration IncomingReplica::Commit() {
  // Whoever sent them may have cut them anywhere: put together first, then spread over the tensors.
  const auto gather = [](std::vector<zmq::message_t>* chunks, std::size_t total) {
    std::vector<std::byte> bytes;
    bytes.reserve(total);
    for (zmq::message_t& chunk : *chunks) {
      const auto* data = static_cast<const std::byte*>(chunk.data());
      bytes.insert(bytes.end(), data, data + chunk.size());
      chunk.rebuild();
    }
    return bytes;
  };
  const std::vector<std::byte> row = gather(&chunks_[0], info_->parameter_bytes);
  store_->parameters.Write(0, row.size(), row.data());
  store_->initial = gather(&chunks_[1], info_->initial_bytes);
  store_->iteration = info_->iteration;
  return info_->iteration;
}

void ReplicaServer::OnRequest(Instant now, const FrameHeader& request, const GroupMember& to) {
  const Result<std::string> endpoint = peers_->EndpointOf(to);
  if (!endpoint.ok() || waiting_.size() + sending_.size() >= kMaxWaiting) return;
  const auto same = [&request](const Sending& other) { return other.request == request; };
  if (std::any_of(waiting_.begin(), waiting_.end(), same) ||
      std::any_of(sending_.begin(), sending_.end(), same)) {
    return;
  }
  waiting_.push_back(
      {.endpoint = *endpoint, .request = request, .snapshot = nullptr, .progress = now});
}

void ReplicaServer::Service(Instant now, DurationNs timeout) {
  if (!waiting_.empty()) {
    const std::unique_lock lock(store_->mutex, std::try_to_lock);
    if (lock.owns_lock()) {
      auto snapshot = std::make_shared<Snapshot>();
      snapshot->parameters.resize(store_->parameters.bytes());
      store_->parameters.Read(0, snapshot->parameters.size(), snapshot->parameters.data());
      snapshot->initial = store_->initial;
      snapshot->info = {.iteration = store_->iteration,
                        .parameter_bytes = snapshot->parameters.size(),
                        .initial_bytes = snapshot->initial.size()};
      for (Sending& sending : waiting_) {
        if (!peers_->Use(sending.endpoint).ok()) continue;
        sending.snapshot = snapshot;
        sending.progress = now;
        SendInfo(sending);
        sending_.push_back(std::move(sending));
      }
      waiting_.clear();
    }
  }
  std::erase_if(sending_, [&](Sending& sending) {
    bool done = false;
    while (!done && peers_->Idle(sending.endpoint)) {
      sending.progress = now;
      done = !SendNext(&sending);
    }
    return done || now - sending.progress > timeout;
  });
}

void ReplicaServer::SendInfo(const Sending& sending) {
  const ReplicaInfo& info = sending.snapshot->info;
  FrameHeader header = sending.request;
  std::swap(header.from, header.to);
  header.kind = FrameKind::kReplica;
  header.length = sizeof info;
  peers_->Send(sending.endpoint, header, zmq::message_t(&info, sizeof info));
}

// Returns false when nothing is left.
bool ReplicaServer::SendNext(Sending* sending) {
  const Snapshot& snapshot = *sending->snapshot;
  if (sending->stage == 0 && sending->offset == snapshot.parameters.size()) {
    sending->stage = 1;
    sending->offset = 0;
  }
  const std::vector<std::byte>& bytes =
      sending->stage == 0 ? snapshot.parameters : snapshot.initial;
  if (sending->offset == bytes.size()) return false;
  FrameHeader header = sending->request;
  std::swap(header.from, header.to);
  header.kind = FrameKind::kChunk;
  header.stage = sending->stage;
  header.offset = sending->offset;
  header.length = std::min(kChunkBytes, bytes.size() - sending->offset);
  peers_->Send(sending->endpoint, header,
               Borrow(bytes.data() + sending->offset, header.length, sending->snapshot));
  sending->offset += header.length;
  return true;
}

void ReplicaServer::OnLost(const std::string& endpoint) {
  std::erase_if(sending_, [&](const Sending& sending) { return sending.endpoint == endpoint; });
}

void ReplicaServer::Hold() {
  for (const Sending& sending : sending_) (void)peers_->Use(sending.endpoint);
}

std::optional<Instant> ReplicaServer::NextDeadline(DurationNs timeout) const {
  std::optional<Instant> next;
  for (const Sending& sending : sending_) {
    const Instant at = sending.progress + timeout;
    if (!next || at < *next) next = at;
  }
  return next;
}

void ReplicaServer::Clear() {
  waiting_.clear();
  sending_.clear();
}

}  // namespace prd
