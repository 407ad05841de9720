// Carries the messages of a worker's communicators (worker/device/communicators.h) over the
// connections of a mesh. Every mesh has one: a worker without a device declines proposals.
//
// Part of Mesh: used by the background thread alone.
#ifndef PRD_WORKER_MESH_COMM_LINK_H_
#define PRD_WORKER_MESH_COMM_LINK_H_

#include <map>
#include <optional>
#include <string>

#include "common/base/messages.h"
#include "common/base/time.h"
#include "worker/device/communicators.h"
#include "worker/mesh/frame.h"
#include "worker/mesh/peers.h"

namespace prd {

class CommLink {
 public:
  explicit CommLink(Peers* peers) : peers_(peers), communicators_(&none_) {}

  Communicators* communicators() const { return communicators_; }
  // Another device's, or null: none. REQUIRES: no run is joined.
  void Use(Communicators* communicators);
  void Join(Incarnation self, RunId run);

  // A kComm frame to this incarnation. False: it counts for nothing.
  bool OnFrame(Instant now, const FrameHeader& header, const SharedBytes& payload);
  void OnLost(Instant now, const std::string& endpoint);
  // Sends the communicators' messages, and watches the connections to their members.
  void Service(Instant now);
  std::optional<Instant> NextDeadline() const { return communicators_->NextDeadline(); }

 private:
  void Send(Instant now, const Communicators::Outgoing& out);
  void Watch(Instant now);

  Peers* peers_;
  Communicators none_{nullptr, {}};
  Communicators* communicators_;
  Incarnation self_ = 0;
  RunId run_ = kNoRun;
  std::map<Incarnation, std::string> watched_;  // their endpoints
};

}  // namespace prd

#endif  // PRD_WORKER_MESH_COMM_LINK_H_
