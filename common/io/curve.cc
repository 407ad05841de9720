#include "common/io/curve.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/io/file_access.h"

namespace prd {
namespace {

constexpr std::size_t kKeyText = 40;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kMaxKeys = 100'000;
constexpr const char* kBlanks = " \t\r\n\v\f";

// The first words of the lines. No copy of a line is left anywhere.
Result<std::vector<std::string>> KeysIn(std::string_view text, const std::string& path) {
  constexpr std::string_view kSpace = " \t\r\v\f";
  std::vector<std::string> keys;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(kSpace)));
    const std::string_view key = line.substr(0, line.find_first_of(kSpace));
    if (key.empty() || key == "#") continue;
    const std::string where = path + ":" + std::to_string(number) + ": ";
    keys.emplace_back(key);
    if (!IsCurveKey(keys.back())) {
      return Status(Code::kInvalidArgument, where + "found a word of " +
                                                std::to_string(key.size()) +
                                                " characters that is no key, allowed is one Z85 "
                                                "key of 40 characters per line");
    }
    if (keys.size() > kMaxKeys) {
      return Status(Code::kResourceExhausted,
                    where + "found more than " + std::to_string(kMaxKeys) + " keys");
    }
  }
  return keys;
}

Result<std::vector<std::string>> ReadKeys(const std::string& path, FileKind kind) {
  Result<std::string> text = ReadOwnFile(path, kind);
  if (!text.ok()) return text.status();
  Result<std::vector<std::string>> keys = KeysIn(*text, path);
  Cleanse(&*text);
  return keys;
}

}  // namespace

bool IsCurveKey(const std::string& text) {
  SecretBytes<kKeyBytes> raw;
  return text.size() == kKeyText && ::zmq_z85_decode(raw.data(), text.c_str()) != nullptr;
}

Status TakeKey(const std::string& name, std::string* key) {
  key->erase(key->find_last_not_of(kBlanks) + 1);
  key->erase(0, std::min(key->size(), key->find_first_not_of(kBlanks)));
  if (IsCurveKey(*key)) return Status::Ok();
  return Status(Code::kInvalidArgument,
                name + ": found " + std::to_string(key->size()) +
                    " characters that are no key, allowed is a Z85 key of 40 characters");
}

Result<CurveKeys> NewCurveKeys() {
  std::array<char, kKeyText + 1> public_key{};
  std::array<char, kKeyText + 1> secret_key{};
  do {
    if (::zmq_curve_keypair(public_key.data(), secret_key.data()) != 0) {
      return Status(Code::kFailedPrecondition, "this libzmq was built without CURVE encryption");
    }
  } while (std::strchr(public_key.data(), '%') != nullptr ||
           std::strchr(secret_key.data(), '%') != nullptr);
  CurveKeys keys{.public_key = public_key.data(), .secret_key = secret_key.data()};
  ::explicit_bzero(secret_key.data(), secret_key.size());
  return keys;
}

Result<CurveKeys> CurveKeysOf(const std::string& secret_key) {
  std::array<char, kKeyText + 1> public_key{};
  if (!IsCurveKey(secret_key) || ::zmq_curve_public(public_key.data(), secret_key.c_str()) != 0) {
    return Status(Code::kInvalidArgument, "no secret key: allowed is a Z85 key of 40 characters");
  }
  return CurveKeys{.public_key = public_key.data(), .secret_key = secret_key};
}

Result<CurveKeys> ReadSecretKeyFile(const std::string& path) {
  Result<std::vector<std::string>> keys = ReadKeys(path, FileKind::kSecret);
  if (!keys.ok()) return keys.status();
  Result<CurveKeys> pair =
      keys->size() == 1
          ? CurveKeysOf(keys->front())
          : Result<CurveKeys>(
                Status(Code::kInvalidArgument, path + ": found " + std::to_string(keys->size()) +
                                                   " keys, allowed is one secret key"));
  for (std::string& key : *keys) Cleanse(&key);
  return pair;
}

Result<std::vector<std::string>> ReadPublicKeyFile(const std::string& path) {
  return ReadKeys(path, FileKind::kTrusted);
}

}  // namespace prd
