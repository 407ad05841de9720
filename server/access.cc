#include "server/access.h"

#include <pwd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <optional>
#include <utility>

#include "common/io/curve.h"
#include "common/io/file_access.h"
#include "config/glob.h"

namespace prd {
namespace {

constexpr std::string_view kKey = "key:";
constexpr std::string_view kUser = "uid:";
constexpr std::string_view kTcp = "tcp";
constexpr std::string_view kListed = "authorized keys";  // no identity can be called so
constexpr std::string_view kEveryUser = "*";

std::string_view Property(zmq::message_t& message, const char* name) {
  const char* value = ::zmq_msg_gets(message.handle(), name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::optional<std::uint32_t> Number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "HOST:UID:GID:PID", as libzmq gives a peer over ipc.
std::optional<std::uint32_t> UserOf(std::string_view address) {
  std::array<std::string_view, 3> numbers;
  for (std::string_view& number : numbers) {
    const std::size_t colon = address.rfind(':');
    if (colon == address.npos) return std::nullopt;
    number = address.substr(colon + 1);
    address = address.substr(0, colon);
    if (!Number(number)) return std::nullopt;
  }
  if (address.find(':') != address.npos) return std::nullopt;  // an IPv6 address
  return Number(numbers[2]);
}

Result<std::uint32_t> Lookup(const std::string& user) {
  if (const auto number = Number(user)) return *number;
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> text(1 << 14);
  ::getpwnam_r(user.c_str(), &entry, text.data(), text.size(), &found);
  if (found == nullptr) {
    return Status(Code::kInvalidArgument, "identity.users: found " + TomlText(user) +
                                              ", which is no user of this host; a user's number "
                                              "is allowed, too");
  }
  return entry.pw_uid;
}

}  // namespace

std::string_view WhoSent(zmq::message_t& message) { return Property(message, "User-Id"); }

Peer PeerOf(zmq::message_t& message) {
  return {.who = WhoSent(message), .address = Property(message, "Peer-Address")};
}

std::string NameOf(std::string_view mechanism, std::string_view credentials,
                   std::string_view address) {
  if (mechanism == "CURVE") {
    std::array<char, 41> text{};
    if (credentials.size() != 32 ||
        ::zmq_z85_encode(text.data(), reinterpret_cast<const std::uint8_t*>(credentials.data()),
                         credentials.size()) == nullptr) {
      return {};
    }
    return std::string(kKey) + text.data();
  }
  if (mechanism != "NULL") return {};
  const std::optional<std::uint32_t> user = UserOf(address);
  return user ? std::string(kUser) + std::to_string(*user) : std::string(kTcp);
}

bool Rights::Covers(const std::string& job) const {
  return std::any_of(jobs.begin(), jobs.end(),
                     [&](const std::string& pattern) { return GlobMatches(pattern, job); });
}

std::string Called(const Rights* rights, std::string_view who) {
  if (rights != nullptr && !rights->name.empty()) return "identity " + rights->name;
  if (who == "uid:0") return "user root";
  if (who.starts_with(kUser)) return "user " + std::string(who.substr(kUser.size()));
  if (who.starts_with(kKey)) return "key " + std::string(who.substr(kKey.size()));
  return who == kTcp ? "somebody on this host" : "somebody";
}

Result<Access> Access::Load(const Config& config) {
  // A user that can write the file can make anybody anyone.
  if (!config.identities.empty() && !config.file.empty()) {
    PRD_RETURN_IF_ERROR(ReadOwnFile(config.file, FileKind::kTrusted).status());
  }
  auto tables = std::make_shared<Tables>();
  static std::atomic<std::uint64_t> loads{0};
  tables->number = ++loads;
  const Rights* all = &tables->rights.emplace_back();
  const bool keys = !config.daemon.curve_secret_key_file.empty();
  tables->by_who.emplace(std::string(kUser) + "0", all);
  tables->by_who.emplace(std::string(kUser) + std::to_string(::geteuid()), all);
  // Where there are keys, libzmq lets nobody in without.
  if (!keys) tables->by_who.emplace(kTcp, all);
  std::map<std::uint32_t, const Rights*> users;
  for (const Identity& identity : config.identities) {
    const Rights* rights =
        &tables->rights.emplace_back(Rights{.name = identity.name,
                                            .jobs = identity.jobs,
                                            .trains = identity.role == Role::kWorker,
                                            .operates = identity.role == Role::kOperator,
                                            .max_jobs = identity.max_jobs,
                                            .max_workers = identity.max_workers,
                                            .max_connections = identity.max_connections,
                                            .max_messages_per_s = identity.max_messages_per_s,
                                            .max_read_bytes_per_s = identity.max_read_bytes_per_s,
                                            .max_runs_per_minute = identity.max_runs_per_minute});
    for (const std::string& key : identity.keys) tables->by_who[std::string(kKey) + key] = rights;
    for (const std::string& user : identity.users) {
      if (user == kEveryUser) {
        tables->every_user = rights;
        tables->local_users.reset();
        continue;
      }
      const Result<std::uint32_t> number = Lookup(user);
      const std::string at = config.file + ":" + std::to_string(identity.line) + ": ";
      if (!number.ok()) return Status(number.status().code(), at + number.status().message());
      const Rights* first = users.emplace(*number, rights).first->second;
      if (first != rights) {
        return Status(Code::kInvalidArgument, at + "identity.users: found " + TomlText(user) +
                                                  ", user " + std::to_string(*number) +
                                                  ", in identity " + TomlText(identity.name) +
                                                  ", allowed is once: identity " +
                                                  TomlText(first->name) + " has that user, too");
      }
      tables->by_who[std::string(kUser) + std::to_string(*number)] = rights;
      if (tables->local_users) tables->local_users->insert(*number);
    }
  }
  if (config.daemon.curve_authorized_keys_file.empty()) return Access(std::move(tables));
  const Result<std::vector<std::string>> listed =
      ReadPublicKeyFile(config.daemon.curve_authorized_keys_file);
  if (!listed.ok()) return listed.status();
  const Rights* rights =
      &tables->rights.emplace_back(Rights{.name = std::string(kListed), .operates = false});
  for (const std::string& key : *listed) {
    // A key of an identity may do no more for being on the list, too.
    tables->by_who.emplace(std::string(kKey) + key, rights);
  }
  return Access(std::move(tables));
}

const Rights* Access::Find(std::string_view who) const {
  const auto found = tables_->by_who.find(who);
  if (found != tables_->by_who.end()) return found->second;
  return who.starts_with(kUser) ? tables_->every_user : nullptr;
}

const Rights* Access::Named(std::string_view name) const {
  const auto found = std::find_if(tables_->rights.begin(), tables_->rights.end(),
                                  [&](const Rights& rights) { return rights.name == name; });
  return found == tables_->rights.end() ? nullptr : &*found;
}

}  // namespace prd
