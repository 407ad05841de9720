#include "common/io/curve.h"

#include <zmq.h>

#include <array>
#include <cstdint>
#include <sstream>

#include "common/io/file_access.h"

namespace prd {
namespace {

constexpr std::size_t kKeyText = 40;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kMaxKeys = 100'000;

bool IsKey(const std::string& text) {
  std::array<std::uint8_t, kKeyBytes> raw;
  return text.size() == kKeyText && ::zmq_z85_decode(raw.data(), text.c_str()) != nullptr;
}

Result<std::vector<std::string>> ReadKeys(const std::string& path, FileKind kind) {
  const Result<std::string> text = ReadOwnFile(path, kind);
  if (!text.ok()) return text.status();
  std::istringstream in(*text);
  std::vector<std::string> keys;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::string key;
    std::istringstream(line) >> key;
    if (key.empty() || key == "#") continue;
    const std::string where = path + ":" + std::to_string(number) + ": ";
    if (!IsKey(key)) {
      return Status(Code::kInvalidArgument, where + "found a word of " +
                                                std::to_string(key.size()) +
                                                " characters that is no key, allowed is one Z85 "
                                                "key of 40 characters per line");
    }
    if (keys.size() == kMaxKeys) {
      return Status(Code::kResourceExhausted,
                    where + "found more than " + std::to_string(kMaxKeys) + " keys");
    }
    keys.push_back(key);
  }
  return keys;
}

}  // namespace

Result<CurveKeys> NewCurveKeys() {
  std::array<char, kKeyText + 1> public_key{};
  std::array<char, kKeyText + 1> secret_key{};
  if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
    return Status(Code::kFailedPrecondition, "this libzmq was built without CURVE encryption");
  }
  return CurveKeys{.public_key = public_key.data(), .secret_key = secret_key.data()};
}

Result<CurveKeys> CurveKeysOf(const std::string& secret_key) {
  std::array<char, kKeyText + 1> public_key{};
  if (!IsKey(secret_key) || ::zmq_curve_public(public_key.data(), secret_key.c_str()) != 0) {
    return Status(Code::kInvalidArgument, "no secret key: allowed is a Z85 key of 40 characters");
  }
  return CurveKeys{.public_key = public_key.data(), .secret_key = secret_key};
}

Result<CurveKeys> ReadSecretKeyFile(const std::string& path) {
  const Result<std::vector<std::string>> keys = ReadKeys(path, FileKind::kSecret);
  if (!keys.ok()) return keys.status();
  if (keys->size() != 1) {
    return Status(Code::kInvalidArgument, path + ": found " + std::to_string(keys->size()) +
                                              " keys, allowed is one secret key");
  }
  return CurveKeysOf(keys->front());
}

Result<std::vector<std::string>> ReadPublicKeyFile(const std::string& path) {
  return ReadKeys(path, FileKind::kTrusted);
}

}  // namespace prd
