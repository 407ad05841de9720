#include "tests/standin/socket_hub.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace prd::testing {
namespace {

constexpr std::uint64_t kMaxMessage = std::uint64_t{4} << 30;
constexpr std::uint32_t kMaxRanks = 4096;

enum class Word : std::uint32_t { kJoin = 1, kPost = 2, kReady = 3, kResults = 4 };

// ---- messages: a word, how many bytes, the bytes; numbers as they are in memory ----

class Writer {
 public:
  explicit Writer(Word word) {
    Put(word);
    Put(std::uint64_t{0});
  }
  template <typename T>
  void Put(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void Put(const std::vector<std::byte>& bytes) {
    Put(std::uint64_t{bytes.size()});
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string Take() {
    const std::uint64_t length = text_.size() - kHeader;
    std::memcpy(text_.data() + sizeof(Word), &length, sizeof length);
    return std::move(text_);
  }
  static constexpr std::size_t kHeader = sizeof(Word) + sizeof(std::uint64_t);

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  template <typename T>
  T Get() {
    T value{};
    if (text_.size() < sizeof value) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, text_.data(), sizeof value);
    text_.remove_prefix(sizeof value);
    return value;
  }
  std::vector<std::byte> Bytes() {
    const auto size = Get<std::uint64_t>();
    if (size > text_.size()) {
      ok_ = false;
      return {};
    }
    std::vector<std::byte> bytes(size);
    if (size != 0) std::memcpy(bytes.data(), text_.data(), size);
    text_.remove_prefix(size);
    return bytes;
  }
  bool ok() const { return ok_; }

 private:
  std::string_view text_;
  bool ok_ = true;
};

// Whole messages off the front of what has come. False: it is no message.
bool Messages(std::string* text, const std::function<void(Word, Reader)>& f) {
  std::size_t at = 0;
  while (text->size() - at >= Writer::kHeader) {
    Reader header(std::string_view(*text).substr(at));
    const Word word = header.Get<Word>();
    const auto length = header.Get<std::uint64_t>();
    if (length > kMaxMessage) return false;
    if (text->size() - at - Writer::kHeader < length) break;
    f(word, Reader(std::string_view(*text).substr(at + Writer::kHeader, length)));
    at += Writer::kHeader + length;
  }
  text->erase(0, at);
  return true;
}

std::string Encode(std::uint64_t number, const HubCalls& calls) {
  Writer writer(Word::kPost);
  writer.Put(number);
  writer.Put(static_cast<std::uint32_t>(calls.size()));
  for (const HubCall& call : calls) {
    writer.Put(call.kind);
    writer.Put(call.dtype);
    writer.Put(call.weight.exact);
    writer.Put(call.weight.single);
    writer.Put(call.weighted);
    writer.Put(static_cast<std::int32_t>(call.peer));
    writer.Put(call.bytes);
    writer.Put(call.data);
  }
  return writer.Take();
}

HubCalls DecodeCalls(Reader* reader) {
  HubCalls calls;
  const auto count = reader->Get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader->ok(); ++i) {
    HubCall& call = calls.emplace_back();
    call.kind = reader->Get<HubCall::Kind>();
    call.dtype = reader->Get<DType>();
    call.weight.exact = reader->Get<double>();
    call.weight.single = reader->Get<float>();
    call.weighted = reader->Get<bool>();
    call.peer = reader->Get<std::int32_t>();
    call.bytes = reader->Get<std::uint64_t>();
    call.data = reader->Bytes();
  }
  return calls;
}

// ---- sockets ----

// An abstract address: no file is left behind.
socklen_t Address(const std::string& name, sockaddr_un* address) {
  address->sun_family = AF_UNIX;
  std::memset(address->sun_path, 0, sizeof address->sun_path);
  std::memcpy(address->sun_path + 1, name.data(),
              std::min(name.size(), sizeof address->sun_path - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// The id: the room, then the name.
std::pair<std::uint64_t, std::string> Parse(const Gpu::UniqueId& id) {
  std::uint64_t room = 0;
  std::memcpy(&room, id.data(), sizeof room);
  const auto* name = reinterpret_cast<const char*>(id.data()) + sizeof room;
  return {room, std::string(name, strnlen(name, id.size() - sizeof room - 1))};
}

// What there is. False: the other end is gone.
bool ReceiveSome(int socket, std::string* text) {
  char some[1 << 16];
  const ssize_t got = recv(socket, some, sizeof some, 0);
  if (got > 0) text->append(some, static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace

// ---- the one that serves ----

class SocketHub::Server {
 public:
  Server(int listener, std::string name, std::shared_ptr<Problems> problems)
      : listener_(listener),
        stop_(eventfd(0, EFD_CLOEXEC)),
        name_(std::move(name)),
        problems_(std::move(problems)),
        thread_([this] { Run(); }) {}

  ~Server() {
    const std::uint64_t one = 1;
    if (write(stop_, &one, sizeof one) == sizeof one) thread_.join();
    close(stop_);
    close(listener_);
  }

  Gpu::UniqueId MakeId() {
    Gpu::UniqueId id{};
    const std::uint64_t room = ++rooms_made_;
    std::memcpy(id.data(), &room, sizeof room);
    std::memcpy(id.data() + sizeof room, name_.data(), name_.size());
    return id;
  }

 private:
  struct Client {
    int socket = -1;
    std::string in, out;
    std::uint64_t room = 0;  // 0: has not joined
    int rank = 0;
    std::vector<std::uint64_t> posted;
    bool told_ready = false;
    bool gone = false;
  };

  void Run() {
    while (true) {
      std::vector<pollfd> polled = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
      for (const auto& client : clients_) {
        const int events = client->out.empty() ? POLLIN : POLLIN | POLLOUT;
        polled.push_back({client->socket, static_cast<short>(events), 0});
      }
      if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
      if (polled[0].revents != 0) break;
      for (std::size_t i = 0; i < clients_.size(); ++i) {
        if (polled[i + 2].revents != 0) Serve(clients_[i].get());
      }
      if (polled[1].revents != 0) Accept();
      for (const auto& client : clients_) Send(client.get());
      std::erase_if(clients_, [](const auto& client) { return client->gone; });
    }
    for (const auto& client : clients_) close(client->socket);
  }

  void Accept() {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->socket = socket;
  }

  void Serve(Client* client) {
    const bool there = ReceiveSome(client->socket, &client->in);
    const bool sound = Messages(&client->in, [&](Word word, Reader reader) {
      if (word == Word::kJoin) Join(client, &reader);
      if (word == Word::kPost) Post(client, &reader);
    });
    if (!there || !sound) Leave(client);
    if (client->room != 0) Tell(client->room);
  }

  void Leave(Client* client) {
    client->gone = true;
    close(client->socket);
    if (client->room != 0) rooms_.at(client->room)->Leave(client->rank);
  }

  void Join(Client* client, Reader* reader) {
    const auto room = reader->Get<std::uint64_t>();
    const auto ranks = reader->Get<std::uint32_t>();
    const auto rank = reader->Get<std::uint32_t>();
    if (!reader->ok() || client->room != 0 || room == 0 || room > rooms_made_ ||
        ranks > kMaxRanks || rank >= ranks) {
      return problems_->Add("NCCL: a rank joins what is no communicator");
    }
    auto& rendezvous = rooms_[room];
    if (rendezvous == nullptr) rendezvous = std::make_unique<Rendezvous>(static_cast<int>(ranks));
    if (rendezvous->Join(static_cast<int>(ranks), static_cast<int>(rank))) {
      client->room = room;
      client->rank = static_cast<int>(rank);
    } else {
      Tell(room);
    }
  }

  void Post(Client* client, Reader* reader) {
    const auto number = reader->Get<std::uint64_t>();
    HubCalls calls = DecodeCalls(reader);
    if (client->room == 0 || !reader->ok()) return;
    client->posted.push_back(number);
    rooms_.at(client->room)->Post(client->rank, number, std::move(calls));
  }

  void Tell(std::uint64_t room) {
    Rendezvous& rendezvous = *rooms_.at(room);
    for (const std::string& problem : rendezvous.TakeProblems()) problems_->Add(problem);
    for (const auto& client : clients_) {
      if (client->room != room || client->gone) continue;
      if (rendezvous.ready() && !std::exchange(client->told_ready, true)) {
        client->out += Writer(Word::kReady).Take();
      }
      std::erase_if(client->posted, [&](std::uint64_t number) {
        const std::optional<HubResults> results = rendezvous.Take(client->rank, number);
        if (!results) return false;
        Writer writer(Word::kResults);
        writer.Put(number);
        writer.Put(static_cast<std::uint32_t>(results->size()));
        for (const std::vector<std::byte>& result : *results) writer.Put(result);
        client->out += writer.Take();
        return true;
      });
    }
  }

  void Send(Client* client) {
    while (!client->gone && !client->out.empty()) {
      const ssize_t sent =
          send(client->socket, client->out.data(), client->out.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // full, or gone: then there is something to read, too
      client->out.erase(0, static_cast<std::size_t>(sent));
    }
  }

  const int listener_;
  const int stop_;
  const std::string name_;
  std::shared_ptr<Problems> problems_;
  std::atomic<std::uint64_t> rooms_made_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Rendezvous>> rooms_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::thread thread_;  // the last: what it uses is there
};

// ---- a member ----

class SocketHub::End : public Hub::Member {
 public:
  End(int socket, std::function<void()> changed)
      : socket_(socket), changed_(std::move(changed)), thread_([this] { Run(); }) {}
  ~End() override {
    Leave();
    thread_.join();
    close(socket_);
  }

  void Say(const std::string& message) {
    for (std::size_t at = 0; at < message.size();) {
      const ssize_t sent = send(socket_, message.data() + at, message.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return;  // gone: nothing comes of it
      at += static_cast<std::size_t>(sent);
    }
  }

  bool Ready() override { return ready_; }
  void Issue(std::uint64_t) override {}  // the order is seen where all are in one process
  void Post(std::uint64_t number, HubCalls calls) override { Say(Encode(number, calls)); }
  std::optional<HubResults> Take(std::uint64_t number) override {
    const std::lock_guard lock(mutex_);
    const auto it = results_.find(number);
    if (it == results_.end()) return std::nullopt;
    HubResults results = std::move(it->second);
    results_.erase(it);
    return results;
  }
  void Leave() override { shutdown(socket_, SHUT_RDWR); }

 private:
  void Run() {
    std::string text;
    while (ReceiveSome(socket_, &text)) {
      Messages(&text, [this](Word word, Reader reader) {
        if (word == Word::kReady) ready_ = true;
        if (word == Word::kResults) Keep(&reader);
      });
      changed_();
    }
  }
  void Keep(Reader* reader) {
    const auto number = reader->Get<std::uint64_t>();
    const auto count = reader->Get<std::uint32_t>();
    HubResults results;
    for (std::uint32_t i = 0; i < count && reader->ok(); ++i) results.push_back(reader->Bytes());
    const std::lock_guard lock(mutex_);
    results_[number] = std::move(results);
  }

  const int socket_;
  std::function<void()> changed_;
  std::atomic<bool> ready_ = false;
  std::mutex mutex_;
  std::map<std::uint64_t, HubResults> results_;
  std::thread thread_;
};

// ---- SocketHub ----

SocketHub::SocketHub(std::shared_ptr<Problems> problems) : problems_(std::move(problems)) {}

SocketHub::~SocketHub() = default;

Result<Gpu::UniqueId> SocketHub::MakeId() {
  const std::lock_guard lock(mutex_);
  if (server_ == nullptr) {
    std::uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = 0;
    const std::string name =
        "prd-standin-" + std::to_string(getpid()) + "-" + std::to_string(random);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address;
    const socklen_t length = Address(name, &address);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener, 1024) != 0) {
      const std::string why = std::strerror(errno);
      if (listener >= 0) close(listener);
      return Status(Code::kInternal, "stand-in: no socket for a unique id: " + why);
    }
    server_ = std::make_unique<Server>(listener, name, problems_);
  }
  return server_->MakeId();
}

Result<std::unique_ptr<Hub::Member>> SocketHub::Join(const void*, int ranks,
                                                     const Gpu::UniqueId& id, int rank,
                                                     std::function<void()> changed) {
  const auto [room, name] = Parse(id);
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = Address(name, &address);
  if (connection < 0 || connect(connection, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    const std::string why = std::strerror(errno);
    if (connection >= 0) close(connection);
    return Status(Code::kAborted, "stand-in: nobody serves this unique id: " + why);
  }
  auto member = std::make_unique<End>(connection, std::move(changed));
  Writer join(Word::kJoin);
  join.Put(room);
  join.Put(static_cast<std::uint32_t>(ranks));
  join.Put(static_cast<std::uint32_t>(rank));
  member->Say(join.Take());
  return std::unique_ptr<Member>(std::move(member));
}

}  // namespace prd::testing
