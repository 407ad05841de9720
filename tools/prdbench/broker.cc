#include "tools/prdbench/broker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "common/base/link.h"
#include "common/base/messages.h"
#include "common/io/codec.h"
#include "common/io/curve.h"
#include "tools/prdbench/interrupts.h"
#include "tools/prdbench/processes.h"

namespace prd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = std::chrono::seconds(20);

std::int64_t NowNs() { return Clock::now().time_since_epoch().count(); }

std::string View(const zmq::message_t& message) {
  return {static_cast<const char*>(message.data()), message.size()};
}

// A bare one-thread ROUTER: a signal (its first byte is 1) is answered by as many bytes as its
// second part says, a report is taken in silence.
// With a secret key, it lets in whoever knows its public key.
int Echo(const std::string& endpoint, const std::string& secret_key) {
  zmq::context_t context(1);
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  if (!secret_key.empty()) {
    router.set(zmq::sockopt::curve_server, true);
    router.set(zmq::sockopt::curve_secretkey, secret_key);
  }
  router.bind(endpoint);
  std::string answer;
  for (;;) {
    zmq::message_t identity;
    zmq::message_t message;
    if (!router.recv(identity) || !router.recv(message)) continue;
    if (message.size() < 9 || *static_cast<const char*>(message.data()) != 1) continue;
    std::uint64_t size = 0;
    std::memcpy(&size, static_cast<const char*>(message.data()) + 1, sizeof size);
    if (answer.size() != size) answer.assign(size, 'a');
    router.send(identity, zmq::send_flags::sndmore);
    router.send(zmq::buffer(answer), zmq::send_flags::none);
  }
}

// Before this process has any thread.
Result<Process> StartEcho(const std::string& endpoint, const std::string& secret_key = "") {
  return Process::Fork("the echo", [&](int, int) { return Echo(endpoint, secret_key); });
}

// ---- the load ----

struct MeasuredBroker {
  double signals_per_s = 0;
  std::vector<double> latency_us;
  double cpu_us = 0;       // of the other side, per signal
  double load_cpu_us = 0;  // of this process, likewise
};

struct Client {
  explicit Client(zmq::context_t* context) : socket(*context, zmq::socket_type::dealer) {}
  zmq::socket_t socket;
  Incarnation incarnation = 0;
  RunId run = kNoRun;
  RunIdentity identity;
  Rank rank = kNoRank;
  Iteration iteration = 0;
  LinkEnd<WorkerBody> link;
  std::int64_t signalled = 0;  // when, ns
};

class BrokerLoad {
 public:
  struct Keys {
    CurveKeys own;
    CurveKeys server;
  };
  BrokerLoad(int clients, const std::string& endpoint, const Process& other,
             const std::optional<Keys>& keys)
      : context_(1) {
    for (int i = 0; i < clients; ++i) {
      auto client = std::make_unique<Client>(&context_);
      client->incarnation =
          static_cast<Incarnation>(NowNs()) * 1024 + static_cast<Incarnation>(i) + 1;
      client->socket.set(zmq::sockopt::linger, 0);
      if (keys) {
        client->socket.set(zmq::sockopt::curve_publickey, keys->own.public_key);
        client->socket.set(zmq::sockopt::curve_secretkey, keys->own.secret_key);
        client->socket.set(zmq::sockopt::curve_serverkey, keys->server.public_key);
      }
      client->socket.connect(endpoint);
      items_.push_back({client->socket.handle(), 0, ZMQ_POLLIN, 0});
      clients_.push_back(std::move(client));
    }
    if (other.pidfd() >= 0) items_.push_back({nullptr, other.pidfd(), ZMQ_POLLIN, 0});
  }
  // The other side has ended, or this one is interrupted: nothing more is measured.
  bool over() const { return other_ended_ || InterruptedBy() != 0; }

  // Joins the job; false when the daemon does not let it, or it is over.
  bool Join() {
    for (auto& client : clients_) {
      Send(client.get(), Hello{.job = "bench",
                               .host = "bench",
                               .host_name = "bench",
                               .endpoints = {"ipc://@prd-bench-mesh-of-a-worker-with-a-usual-name",
                                             "tcp://127.0.0.1:45678"},
                               .model_bytes = 4,
                               .model_hash = 1});
    }
    std::size_t started = 0;
    const auto end = Clock::now() + kTimeout;
    while (started < clients_.size() && Clock::now() < end && !over()) {
      started += Poll([this](Client* client, const std::string& bytes) {
        const Result<ControllerEnvelope> envelope = DecodeControllerEnvelope(bytes);
        if (!envelope.ok()) return std::size_t{0};
        Accept(client, *envelope);
        if (const auto* refused = std::get_if<Refused>(&envelope->body)) {
          std::fprintf(stderr, "prdbench: refused: %s\n", refused->reason.c_str());
        }
        if (const auto* welcome = std::get_if<Welcome>(&envelope->body)) {
          client->run = welcome->run;
          client->identity = envelope->identity;
          client->rank = welcome->rank;
        }
        const auto* group = std::get_if<Group>(&envelope->body);
        if (group == nullptr) return std::size_t{0};
        Send(client, Finished{.group = group->id});
        return std::size_t{1};
      });
    }
    by_rank_.resize(clients_.size());
    for (auto& client : clients_) {
      if (client->rank >= 0) by_rank_[static_cast<std::size_t>(client->rank)] = client.get();
    }
    return started == clients_.size();
  }

  MeasuredBroker AgainstDaemon(double seconds) {
    MeasuredBroker measured;
    for (auto& client : clients_) Signal(client.get());
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::duration<double>(seconds);
    std::size_t answered = 0;
    bool sending = true;
    std::size_t waiting = clients_.size();
    const auto give_up = end + kTimeout;
    while (waiting > 0 && Clock::now() < give_up && !over()) {
      sending = Clock::now() < end;
      if (sending) answered_at_end_ = answered;
      Poll([&](Client* client, const std::string& bytes) {
        const std::int64_t now = NowNs();
        const Result<ControllerEnvelope> envelope = DecodeControllerEnvelope(bytes);
        if (!envelope.ok()) return 0;
        Accept(client, *envelope);
        const auto* group = std::get_if<Group>(&envelope->body);
        if (group == nullptr) return 0;
        std::int64_t last = 0;
        for (const GroupMember& member : group->members) {
          last = std::max(last, SignalOf(group->id, member.rank));
        }
        if (last > 0) measured.latency_us.push_back(static_cast<double>(now - last) / 1e3);
        ++answered;
        client->iteration = group->iteration;
        Send(client, Finished{.group = group->id, .wait_ns = 1, .reduce_ns = 1, .bytes = 4});
        if (sending) {
          Signal(client);
        } else {
          Send(client, Leave{.reason = "measured"});
          --waiting;
        }
        return 0;
      });
    }
    measured.signals_per_s = static_cast<double>(answered_at_end_) / seconds;
    return measured;
  }

  // The sizes are those of the daemon's messages.
  MeasuredBroker AgainstEcho(double seconds, std::size_t report_bytes, std::size_t signal_bytes,
                             const std::string& announcement) {
    MeasuredBroker measured;
    std::string report(report_bytes, '\0');
    std::string signal(std::max<std::size_t>(signal_bytes, 9), '\1');
    const std::uint64_t size = announcement.size();
    std::memcpy(signal.data() + 1, &size, sizeof size);
    const auto send_signal = [&](Client* client) {
      // The encoding that a worker does for it.
      (void)Encode(Envelope(client, Ready{.iteration = ++client->iteration, .step_ns = 1}));
      client->signalled = NowNs();
      client->socket.send(zmq::buffer(signal), zmq::send_flags::none);
    };
    for (auto& client : clients_) send_signal(client.get());
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::size_t answered = 0;
    while (Clock::now() < end && !over()) {
      Poll([&](Client* client, const std::string& bytes) {
        measured.latency_us.push_back(static_cast<double>(NowNs() - client->signalled) / 1e3);
        if (bytes.size() == announcement.size()) {
          answered += DecodeControllerEnvelope(announcement).ok() ? 1 : 0;  // likewise
        }
        (void)Encode(Envelope(client, Finished{.group = 1}));
        client->socket.send(zmq::buffer(report), zmq::send_flags::none);
        send_signal(client);
        return 0;
      });
    }
    measured.signals_per_s = static_cast<double>(answered) / seconds;
    return measured;
  }

  std::size_t report_bytes() const { return report_bytes_; }
  std::size_t signal_bytes() const { return signal_bytes_; }
  const std::string& announcement() const { return announcement_; }

 private:
  static WorkerEnvelope Envelope(Client* client, WorkerBody body) {
    return {.run = client->run,
            .identity = client->identity,
            .rank = client->rank,
            .incarnation = client->incarnation,
            .seq = client->link.last_out() + 1,
            .ack = client->link.last_in(),
            .oldest = client->link.oldest(),
            .body = std::move(body)};
  }

  void Send(Client* client, WorkerBody body) {
    const WorkerEnvelope envelope = Envelope(client, std::move(body));
    client->link.Push(Heartbeat{});  // numbering only: nothing is lost on one machine
    const std::string bytes = Encode(envelope);
    if (std::holds_alternative<Finished>(envelope.body)) report_bytes_ = bytes.size();
    if (std::holds_alternative<Ready>(envelope.body)) signal_bytes_ = bytes.size();
    client->socket.send(zmq::buffer(bytes), zmq::send_flags::none);
  }

  void Signal(Client* client) {
    client->signalled = NowNs();
    Send(client, Ready{.iteration = client->iteration + 1, .step_ns = 1'000'000, .samples = 64});
  }

  // When the member signalled for this group. All members are asked about when the first of them
  // hears of it: none has signalled again by then.
  std::int64_t SignalOf(GroupId group, Rank rank) {
    auto& times = times_[group];
    for (const auto& [r, at] : times) {
      if (r == rank) return at;
    }
    const std::int64_t at = by_rank_[static_cast<std::size_t>(rank)]->signalled;
    times.emplace_back(rank, at);
    if (times_.size() > 4 * clients_.size()) {
      std::erase_if(times_, [group](const auto& entry) { return entry.first + 1000 < group; });
    }
    return at;
  }

  void Accept(Client* client, const ControllerEnvelope& envelope) {
    client->link.OnAck(envelope.ack);
    if (envelope.seq != 0) client->link.OnReceive(envelope.seq);
  }

  // Hands every message that is there to `each`; returns the sum of what it returns.
  template <typename Each>
  std::size_t Poll(Each each) {
    std::size_t sum = 0;
    // It fails where a signal comes.
    if (zmq_poll(items_.data(), static_cast<int>(items_.size()), 100) <= 0) return 0;
    other_ended_ = items_.size() > clients_.size() && items_.back().revents != 0;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      if ((items_[i].revents & ZMQ_POLLIN) == 0) continue;
      zmq::message_t message;
      while (clients_[i]->socket.recv(message, zmq::recv_flags::dontwait)) {
        const std::string bytes = View(message);
        if (bytes.size() > 200) announcement_ = announcement_.empty() ? bytes : announcement_;
        sum += static_cast<std::size_t>(each(clients_[i].get(), bytes));
      }
    }
    return sum;
  }

  zmq::context_t context_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Client*> by_rank_;
  std::vector<zmq::pollitem_t> items_;  // of the clients, and perhaps the other side's end
  bool other_ended_ = false;
  // When the members of a group signalled for it, noted when the first of them hears of it.
  std::unordered_map<GroupId, std::vector<std::pair<Rank, std::int64_t>>> times_;
  std::size_t answered_at_end_ = 0;
  std::size_t report_bytes_ = 0;
  std::size_t signal_bytes_ = 0;
  std::string announcement_;
};

// Into the folder, for the daemon's config.
Result<BrokerLoad::Keys> MakeKeys(const std::string& folder, std::ostream& config) {
  const Result<CurveKeys> server = NewCurveKeys();
  const Result<CurveKeys> worker = NewCurveKeys();
  if (!server.ok()) return server.status();
  if (!worker.ok()) return worker.status();
  for (const auto& [name, key] :
       {std::pair("secret", server->secret_key), std::pair("workers", worker->public_key)}) {
    std::ofstream(folder + "/" + name) << key << "\n";
    std::filesystem::permissions(folder + "/" + name, std::filesystem::perms(0600));
  }
  config << "curve_secret_key_file = \"" << folder << "/secret\"\ncurve_authorized_keys_file = \""
         << folder << "/workers\"\n";
  return BrokerLoad::Keys{*worker, *server};
}

double OwnCpuUs() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

// What `measure` says, and the processor time that passes in it.
template <typename Measure>
MeasuredBroker WithCpu(const Process& other, double seconds, Measure measure) {
  const double before = other.CpuUs();
  const double own = OwnCpuUs();
  MeasuredBroker measured = measure();
  const double signals = std::max(1.0, measured.signals_per_s * seconds);
  measured.cpu_us = (other.CpuUs() - before) / signals;
  measured.load_cpu_us = (OwnCpuUs() - own) / signals;
  return measured;
}

double Percentile(std::vector<double>* values, double p) {
  if (values->empty()) return 0;
  const auto at = static_cast<std::size_t>(p * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), values->begin() + static_cast<std::ptrdiff_t>(at),
                   values->end());
  return (*values)[at];
}

double Median(std::vector<double> values) { return Percentile(&values, 0.5); }

// The figures of several rounds.
struct Rounds {
  std::vector<double> rate, p50, p99, cpu, load_cpu;
  void Add(MeasuredBroker measured) {
    rate.push_back(measured.signals_per_s);
    p50.push_back(Percentile(&measured.latency_us, 0.5));
    p99.push_back(Percentile(&measured.latency_us, 0.99));
    cpu.push_back(measured.cpu_us);
    load_cpu.push_back(measured.load_cpu_us);
  }
  void Tell(const std::string& name, nlohmann::json* out) const {
    (*out)[name + "signals_per_s"] = Median(rate);
    (*out)[name + "p50_us"] = Median(p50);
    (*out)[name + "p99_us"] = Median(p99);
    (*out)[name + "cpu_us"] = Median(cpu);
    (*out)[name + "load_cpu_us"] = Median(load_cpu);
  }
};

struct StateFolder {
  StateFolder() {
    char path[] = "/tmp/prdbench-XXXXXX";
    if (mkdtemp(path) != nullptr) name = path;
  }
  ~StateFolder() {
    std::error_code ignored;
    if (!name.empty()) std::filesystem::remove_all(name, ignored);
  }
  std::string name;
};

// Why there are no figures, on stderr, with what is in the file `log`; empty: there is none.
// Returns the exit code.
int Failed(Process* other, const std::string& log) {
  if (InterruptedBy() != 0) return EndInterrupted();
  std::string why = other->name() + " did not start the job";
  if (!other->running()) {
    const Status status = other->Check();
    why = status.ok() ? other->name() + " has ended with exit code 0" : status.message();
  }
  std::fprintf(stderr, "prdbench: %s%s\n", why.c_str(), log.empty() ? "" : "; its log:");
  std::ifstream text(log);
  for (std::string line; std::getline(text, line);) std::fprintf(stderr, "  %s\n", line.c_str());
  return 1;
}

int Measure(const BrokerOptions& options) {
  std::string binary = options.daemon;
  if (binary.empty())
    binary = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "prd";
  if (access(binary.c_str(), X_OK) != 0) {
    std::fprintf(stderr, "prdbench: no daemon at %s; name one with --daemon\n", binary.c_str());
    return 1;
  }
  const StateFolder folder;
  if (folder.name.empty()) {
    std::perror("prdbench: cannot make a folder under /tmp");
    return 1;
  }
  const std::string daemon_at = "ipc://" + folder.name + "/control.sock";
  const std::string echo_at = "ipc://" + folder.name + "/echo.sock";
  const std::string config = folder.name + "/prd.toml";
  const std::string log = folder.name + "/prd.log";
  std::optional<BrokerLoad::Keys> keys;
  std::ofstream out(config);
  out << "[daemon]\nlisten = \"" << daemon_at << "\"\nadmin = \"ipc://" << folder.name
      << "/admin.sock\"\nstate_dir = \"" << folder.name << "/state\"\n";
  if (options.keys) {
    Result<BrokerLoad::Keys> made = MakeKeys(folder.name, out);
    if (!made.ok()) {
      std::fprintf(stderr, "prdbench: %s\n", made.status().message().c_str());
      return 1;
    }
    keys = std::move(*made);
  }
  out << "[[job]]\nname = \"bench\"\nengine = \"p-reduce\"\nworkers = " << options.clients
      << "\nlease_ms = 60000\nheartbeat_ms = 20000\n"
      << "[job.p-reduce]\ngroup_size = " << options.group_size << "\n";
  out.close();
  Result<Process> echo = StartEcho(echo_at);
  const std::string sealed_at = "ipc://" + folder.name + "/sealed.sock";
  std::optional<Result<Process>> sealed_echo;
  if (keys) sealed_echo = StartEcho(sealed_at, keys->server.secret_key);
  Result<Process> daemon = Process::Run("the daemon", {binary, "--config", config}, log);
  if (!echo.ok() || (sealed_echo && !sealed_echo->ok()) || !daemon.ok()) {
    std::fprintf(stderr, "prdbench: no more processes\n");
    return 1;
  }

  Rounds broker, bare, sealed;
  for (int round = 0; round < options.rounds; ++round) {
    BrokerLoad load(options.clients, daemon_at, *daemon, keys);
    if (!load.Join()) return Failed(&*daemon, log);
    broker.Add(
        WithCpu(*daemon, options.seconds, [&] { return load.AgainstDaemon(options.seconds); }));
    if (load.over()) return Failed(&*daemon, log);
    // False when it was over before its time.
    const auto echoed = [&](const Process& by, const std::string& at,
                            const std::optional<BrokerLoad::Keys>& with, Rounds* rounds) {
      BrokerLoad same(options.clients, at, by, with);
      rounds->Add(WithCpu(by, options.seconds, [&] {
        return same.AgainstEcho(options.seconds, load.report_bytes(), load.signal_bytes(),
                                load.announcement());
      }));
      return !same.over();
    };
    if (!echoed(*echo, echo_at, {}, &bare)) return Failed(&*echo, "");
    if (sealed_echo && !echoed(**sealed_echo, sealed_at, keys, &sealed)) {
      return Failed(&**sealed_echo, "");
    }
  }
  if (!daemon->running()) return Failed(&*daemon, log);
  if (options.json) {
    nlohmann::json line{{"bench", "broker"},
                        {"clients", options.clients},
                        {"group_size", options.group_size},
                        {"keys", options.keys},
                        {"rounds", options.rounds}};
    broker.Tell("", &line);
    bare.Tell("echo_", &line);
    if (sealed_echo) sealed.Tell("echo_keys_", &line);
    std::printf("%s\n", line.dump().c_str());
  } else {
    const std::string load = std::to_string(options.clients) +
                             " clients, P=" + std::to_string(options.group_size) + ", medians of " +
                             std::to_string(options.rounds) + " rounds";
    std::printf("%-40s %12s %12s %8s%s\n", load.c_str(), "prd", "bare echo", "prd/echo",
                options.keys ? "   echo with keys" : "");
    const auto row = [&](const char* name, const std::vector<double> Rounds::*of) {
      const double ours = Median(broker.*of);
      const double echoes = Median(bare.*of);
      std::printf("%-40s %12.1f %12.1f %8.2f", name, ours, echoes, echoes > 0 ? ours / echoes : 0);
      if (sealed_echo) std::printf(" %16.1f", Median(sealed.*of));
      std::printf("\n");
    };
    row("signals per second", &Rounds::rate);
    row("ready to announcement, p50, us", &Rounds::p50);
    row("ready to announcement, p99, us", &Rounds::p99);
    row("processor time per signal, us", &Rounds::cpu);
    row("the same of the workers' process, us", &Rounds::load_cpu);
  }
  return 0;
}

}  // namespace

int BenchBroker(const BrokerOptions& options) {
  if (options.group_size > options.clients) {
    std::fprintf(stderr,
                 "prdbench: --group-size: found %d, allowed is 2 to %d, as many as --clients\n",
                 options.group_size, options.clients);
    return 2;
  }
  CatchInterrupts();
  try {
    return Measure(options);
  } catch (const zmq::error_t& error) {  // also where a signal comes
    if (InterruptedBy() != 0) return EndInterrupted();
    std::fprintf(stderr, "prdbench: broker: %s\n", error.what());
    return 1;
  }
}

}  // namespace prd::bench
