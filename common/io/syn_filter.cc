#include "common/io/syn_filter.h"

#include <linux/filter.h>
#include <linux/if_ether.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace prd {
namespace {

using Program = std::vector<sock_filter>;

constexpr std::uint32_t kDrop = 0;
constexpr std::uint32_t kPass = 0xffff'ffff;
constexpr std::uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS;
constexpr std::uint16_t kJumpIf = BPF_JMP | BPF_JEQ | BPF_K;
constexpr std::uint16_t kReturn = BPF_RET | BPF_K;
// Offsets in the network's header.
constexpr std::uint32_t kSourceV4 = static_cast<std::uint32_t>(SKF_NET_OFF) + 12;
constexpr std::uint32_t kSourceV6 = static_cast<std::uint32_t>(SKF_NET_OFF) + 8;

sock_filter Do(std::uint16_t code, std::uint32_t k) { return {code, 0, 0, k}; }
// Passes over so many instructions.
sock_filter If(std::uint32_t k, std::uint8_t equal, std::uint8_t other) {
  return {kJumpIf, equal, other, k};
}

// Goes on with a first packet alone. The filter sees a packet from its TCP header on, and is
// inherited by the connections that the socket accepts.
Program Begin() {
  return {Do(BPF_LD | BPF_B | BPF_ABS, 13),     // the flags
          Do(BPF_ALU | BPF_AND | BPF_K, 0x12),  // ACK, SYN
          If(0x02, 1, 0), Do(kReturn, kPass)};
}

std::uint32_t Word(const std::string& bytes, std::size_t at) {
  std::uint32_t word = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    word = word << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return word;
}

// `checks` of packets of this kind alone.
void Append(std::uint32_t protocol, const Program& checks, Program* program) {
  program->push_back(Do(kLoad, static_cast<std::uint32_t>(SKF_AD_OFF) + SKF_AD_PROTOCOL));
  program->push_back(If(protocol, 1, 0));
  program->push_back(Do(BPF_JMP | BPF_JA, static_cast<std::uint32_t>(checks.size())));
  program->insert(program->end(), checks.begin(), checks.end());
}

bool Attach(int listener, Program program) {
  const sock_fprog all{static_cast<unsigned short>(program.size()), program.data()};
  return ::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) == 0;
}

}  // namespace

bool IsSynSource(const std::string& source) {
  return (source.size() == 5 && source[0] == '4') || (source.size() == 9 && source[0] == '6');
}

bool DropSynsFrom(int listener, const std::vector<std::string>& sources) {
  Program v4;
  Program v6;
  for (std::size_t i = 0; i < std::min(sources.size(), kMaxSynSources); ++i) {
    const std::string& source = sources[i];
    if (!IsSynSource(source)) continue;
    if (source[0] == '4') {
      if (v4.empty()) v4.push_back(Do(kLoad, kSourceV4));
      v4.insert(v4.end(), {If(Word(source, 1), 0, 1), Do(kReturn, kDrop)});
    } else {
      v6.insert(v6.end(),
                {Do(kLoad, kSourceV6), If(Word(source, 1), 0, 3), Do(kLoad, kSourceV6 + 4),
                 If(Word(source, 5), 0, 1), Do(kReturn, kDrop)});
    }
  }
  Program program = Begin();
  Append(ETH_P_IP, v4, &program);
  Append(ETH_P_IPV6, v6, &program);
  program.push_back(Do(kReturn, kPass));
  return Attach(listener, std::move(program));
}

bool DropAllSyns(int listener) {
  Program program = Begin();
  program.push_back(Do(kReturn, kDrop));
  return Attach(listener, std::move(program));
}

bool DropNoSyns(int listener) {
  const int ignored = 0;
  return ::setsockopt(listener, SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof ignored) == 0 ||
         errno == ENOENT;
}

}  // namespace prd
