// Counts open connections by peer, and knows the oldest of those that have brought nothing yet. Not
// thread safe.
#ifndef PRD_COMMON_IO_PEER_CONNECTIONS_H_
#define PRD_COMMON_IO_PEER_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace prd {

// A peer's name is empty for this process's own user, who may do as it likes. Serials ascend with
// age.
class PeerConnections {
 public:
  // It is silent, until it has spoken.
  void Open(const std::string& peer, std::uint64_t serial, int fd);
  void Spoke(const std::string& peer, std::uint64_t serial);
  void Close(const std::string& peer, std::uint64_t serial);

  std::size_t open() const { return open_; }
  std::size_t OpenOf(const std::string& peer) const;
  // Silent ones but those of this process's own user.
  std::size_t others_silent() const { return others_silent_; }

  // The descriptor of the oldest silent one: of all; of this peer; and of the peer but this
  // process's own user that has most of them.
  std::optional<int> Oldest() const { return First(silent_); }
  std::optional<int> OldestOf(const std::string& peer) const;
  std::optional<int> OldestOfMost() const;

 private:
  using BySerial = std::map<std::uint64_t, int>;  // to descriptors
  struct Peer {
    std::size_t open = 0;
    BySerial silent;
  };

  static std::optional<int> First(const BySerial& silent);
  template <typename Change>
  void ChangeSilent(const std::string& peer, Change change);

  std::size_t open_ = 0;
  std::map<std::string, Peer> peers_;
  BySerial silent_;
  std::set<std::pair<std::size_t, std::string>> most_silent_;  // others, by how many they have
  std::size_t others_silent_ = 0;
};

}  // namespace prd

#endif  // PRD_COMMON_IO_PEER_CONNECTIONS_H_
