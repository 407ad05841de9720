// Wires between the meshes of a test, which lose or delay what one mesh sends to another. The
// connections themselves stand.
#ifndef PRD_TESTS_WORKER_MESH_WIRES_H_
#define PRD_TESTS_WORKER_MESH_WIRES_H_

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "tests/worker/mesh_ring.h"

namespace prd::testing {

class Wires {
 public:
  // One each way between every two of these, on one host.
  explicit Wires(const std::vector<MeshNode*>& nodes);

  // The members as that node is to see them: every other one at the end of a wire.
  SharedList<GroupMember> SeenBy(std::size_t node, const SharedList<GroupMember>& members) const;

  // kSlow: only pings and pongs arrive. kSmall: what has a payload gets lost.
  enum class State { kWhole, kCut, kSlow, kSmall };
  // What waits on a slow wire arrives once the wire is whole.
  void Set(std::size_t from, std::size_t to, State state);
  void SetBoth(std::size_t a, std::size_t b, State state) {
    Set(a, b, state);
    Set(b, a, state);
  }
  // Breaks the connections over this wire, which loses what waits there.
  void Break(std::size_t from, std::size_t to);

  // Carries what has come.
  void Carry();
  void AppendPollItems(std::vector<zmq::pollitem_t>* items);

 private:
  struct Frame {
    zmq::message_t header;
    zmq::message_t payload;
  };
  struct Wire {
    std::string endpoint;
    zmq::socket_t in;
    zmq::socket_t out;
    zmq::socket_t signals;
    State state = State::kWhole;
    std::deque<Frame> waiting;
  };

  void Listen(Wire* wire);
  void Carry(Wire* wire);
  void LetIn();

  std::vector<Incarnation> nodes_;
  zmq::context_t context_;
  zmq::socket_t door_{context_, zmq::socket_type::router};  // lets everybody in
  std::map<std::pair<std::size_t, std::size_t>, Wire> wires_;
};

}  // namespace prd::testing

#endif  // PRD_TESTS_WORKER_MESH_WIRES_H_
