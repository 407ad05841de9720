#include "tools/prdctl/serve.h"

#include <httplib.h>
#include <sys/random.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tools/prdctl/page.h"
#include "tools/prdctl/text.h"
#include "tools/prdctl/watch.h"

namespace prd::ctl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kWatched = 3;      // jobs in memory
constexpr std::size_t kJobsShown = 500;  // the newest
constexpr std::size_t kTurnsShown = 50;  // runs of a job that was switched, the newest
constexpr auto kTurn = milliseconds(250);
constexpr auto kMoment = milliseconds(200);  // an answer waits so long for what is being read
constexpr auto kAskedLately = seconds(10);
constexpr std::uint32_t kChunk = 256 << 10;
constexpr std::size_t kThreads = 8;

// What the browser may do with the page: nothing but show it, and ask where it came from.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// A job: its run, and those before it where it was switched.
struct Watched {
  std::vector<RunInfo> runs;  // in turn
  JobWatch job;
  std::string error;
  Clock::time_point asked;
  bool whole = false;     // all records that there are were read
  RunId failed = kNoRun;  // the last one whose records are damaged; what follows it is read
};

struct Question {
  int code = 200;
  std::string text;
};

class Page {
 public:
  Page(HistorySource& source, std::vector<RunInfo> runs) : source_(source) {
    Arrange(std::move(runs));
  }

  // Keeps up with the daemon, where somebody looks. Returns after a moment.
  void Turn();

  Question Runs();
  Question Run(RunId run);
  Question Timeline(RunId run, double from_s, double to_s, int width);
  Question Groups(RunId run, double to_s, std::optional<Rank> rank);

 private:
  const DaemonStatus* daemon() const { return daemon_ ? &*daemon_ : nullptr; }
  void Look();
  // `first`: the job's first run.
  bool Read(RunId first);
  // Of the job of this run. Null: it is not there; `told` says so.
  Watched* Find(RunId run, Question* told);
  // By the first run of each job that there is.
  void Arrange(std::vector<RunInfo> runs);
  bool Asked();
  static Question Told(const Json& json) { return {200, Dump(json)}; }

  HistorySource& source_;                  // of the thread that turns
  std::mutex mutex_;                       // of all below
  std::condition_variable wanted_, read_;  // something new is asked for; something was read
  bool wants_ = false;
  std::uint64_t looks_ = 0;
  std::map<RunId, std::vector<RunInfo>> jobs_;  // in turn, by the first run
  std::map<RunId, RunId> first_;                // by run
  std::string error_;
  std::optional<DaemonStatus> daemon_;
  std::map<RunId, Watched> watched_;  // by first run
  Clock::time_point asked_{};
};

void Page::Turn() {
  Look();
  const auto until = Clock::now() + kTurn;
  std::vector<RunId> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, watched] : watched_) {
      if (Clock::now() - watched.asked < kAskedLately) wanted.push_back(id);
    }
  }
  bool more = !wanted.empty();
  while (more && Clock::now() < until) {
    more = false;
    for (const RunId run : wanted) more = Read(run) || more;
  }
  std::unique_lock lock(mutex_);
  wanted_.wait_until(lock, until, [this] { return wants_; });
  wants_ = false;
}

void Page::Look() {
  {
    const std::lock_guard lock(mutex_);
    if (Clock::now() - asked_ > kAskedLately) return;
  }
  Result<std::vector<RunInfo>> runs = source_.Runs();
  Result<DaemonStatus> daemon = source_.Daemon();
  const std::lock_guard lock(mutex_);
  ++looks_;
  read_.notify_all();
  error_ = runs.ok() ? "" : runs.status().message();
  daemon_.reset();
  if (daemon.ok()) daemon_ = std::move(*daemon);
  if (!runs.ok()) return;
  Arrange(std::move(*runs));
  std::erase_if(watched_, [&](const auto& entry) {
    const auto now = jobs_.find(entry.first);
    // Another history has another run of this number.
    return now == jobs_.end() ||
           now->second.front().identity != entry.second.runs.front().identity ||
           now->second.size() < entry.second.runs.size();
  });
  for (auto& [first, watched] : watched_) {
    watched.runs = jobs_.at(first);
    watched.whole = watched.whole && watched.job.run() == watched.runs.back().run;
  }
}

void Page::Arrange(std::vector<RunInfo> runs) {
  jobs_.clear();
  first_.clear();
  for (RunInfo& run : runs) {  // the oldest first
    const auto former = first_.find(run.former);
    const bool goes_on = former != first_.end() && jobs_.at(former->second).back().next == run.run;
    const RunId first = goes_on ? former->second : run.run;
    first_[run.run] = first;
    jobs_[first].push_back(std::move(run));
  }
}

// True: there may be more.
bool Page::Read(RunId first) {
  RunId run = kNoRun;
  std::uint64_t from = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto watched = watched_.find(first);
    if (watched == watched_.end()) return false;
    auto& [runs, job, error, asked, whole, failed] = watched->second;
    auto at = std::find_if(runs.begin(), runs.end(),
                           [&](const RunInfo& info) { return info.run == job.run(); });
    if (at == runs.end()) {
      at = runs.begin();
    } else if (job.ended() && std::next(at) != runs.end()) {
      ++at;
    } else {
      from = job.records();
    }
    if (at->run == failed) {
      if (std::next(at) == runs.end()) return false;
      ++at;
      from = 0;
      job.GiveUp();
    }
    run = at->run;
  }
  Result<std::vector<Record>> records = source_.Read(run, from, kChunk, 0);
  const std::lock_guard lock(mutex_);
  const auto watched = watched_.find(first);
  if (watched == watched_.end() || !records.ok()) return false;
  Watched& job = watched->second;
  for (const Record& record : *records) {
    const Status added = job.job.Add(record);
    if (!added.ok()) {
      job.error = added.message();
      job.failed = run;
      return true;
    }
  }
  const bool newest = run == job.runs.back().run;
  job.whole = newest && (records->empty() || job.job.records() >= job.runs.back().records);
  if (job.whole) read_.notify_all();
  return !records->empty();
}

// Nothing is kept up with while nobody asks. True: that was so.
bool Page::Asked() {
  const Clock::time_point now = Clock::now();
  if (now - std::exchange(asked_, now) < kAskedLately) return false;
  wants_ = true;
  wanted_.notify_one();
  return true;
}

Question Page::Runs() {
  std::unique_lock lock(mutex_);
  if (Asked()) {
    read_.wait_for(lock, kMoment, [this, before = looks_] { return looks_ != before; });
  }
  // The newest job first: by its newest run.
  std::vector<const std::vector<RunInfo>*> newest;
  for (const auto& [first, runs] : jobs_) newest.push_back(&runs);
  std::sort(newest.begin(), newest.end(),
            [](const auto* a, const auto* b) { return a->back().run > b->back().run; });
  Json jobs = Json::array();
  for (const std::vector<RunInfo>* runs : newest) {
    if (jobs.size() == kJobsShown) break;
    Json job = ToJson(runs->back());
    job["first"] = runs->front().run;
    job["paused"] = runs->back().paused;
    job["turns"] = Json::array();
    const std::size_t from = runs->size() > kTurnsShown ? runs->size() - kTurnsShown : 0;
    for (std::size_t i = from; i < runs->size(); ++i) {
      job["turns"].push_back({{"run", (*runs)[i].run}, {"engine", (*runs)[i].engine}});
    }
    jobs.push_back(std::move(job));
  }
  Json json = {{"all", jobs_.size()}, {"error", error_}, {"runs", std::move(jobs)}};
  json["daemon"] = nullptr;
  if (daemon_) {
    json["daemon"] = {{"version", daemon_->version},
                      {"uptime_s", Seconds(daemon_->uptime_ns)},
                      {"workers", daemon_->silences.size()}};
  }
  return Told(json);
}

Watched* Page::Find(RunId run, Question* told) {
  Asked();
  const auto first = first_.find(run);
  if (first == first_.end()) {
    *told = {404, Dump({{"error", "there is no such run"}})};
    return nullptr;
  }
  if (!watched_.contains(first->second)) {
    if (watched_.size() >= kWatched) {
      watched_.erase(std::min_element(
          watched_.begin(), watched_.end(),
          [](const auto& a, const auto& b) { return a.second.asked < b.second.asked; }));
    }
    watched_[first->second].runs = jobs_.at(first->second);
    wants_ = true;
    wanted_.notify_one();
  }
  Watched& watched = watched_[first->second];
  watched.asked = Clock::now();
  return &watched;
}

Question Page::Run(RunId run) {
  std::unique_lock lock(mutex_);
  Question told;
  if (Find(run, &told) == nullptr) return told;
  read_.wait_for(lock, kMoment, [this, run] {
    const auto first = first_.find(run);
    const auto watched = first == first_.end() ? watched_.end() : watched_.find(first->second);
    return watched == watched_.end() || watched->second.whole || !watched->second.error.empty();
  });
  Watched* watched = Find(run, &told);
  if (watched == nullptr) return told;
  Json json = watched->job.Summary(watched->runs, daemon());
  json["error"] = watched->error.empty() ? error_ : watched->error;
  json["whole"] = watched->whole;
  return Told(json);
}

Question Page::Timeline(RunId run, double from_s, double to_s, int width) {
  const std::lock_guard lock(mutex_);
  Question told;
  Watched* watched = Find(run, &told);
  if (watched == nullptr) return told;
  return Told(watched->job.Timeline(from_s, to_s, width, watched->job.Now(daemon())));
}

Question Page::Groups(RunId run, double to_s, std::optional<Rank> rank) {
  const std::lock_guard lock(mutex_);
  Question told;
  Watched* watched = Find(run, &told);
  if (watched == nullptr) return told;
  return Told(watched->job.Groups(to_s, rank));
}

// ---- HTTP ----

std::string Token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return "";
  std::string token;
  for (const unsigned char byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

// The parameter as a number; nullopt: it is none, or out of bounds.
template <typename T>
std::optional<T> Parameter(const httplib::Request& request, const char* name, T least, T most) {
  const std::string text = request.get_param_value(name);
  T value{};
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (wrong != std::errc() || end != text.data() + text.size() || text.size() > 40) {
    return std::nullopt;
  }
  if (!(value >= least && value <= most)) return std::nullopt;
  return value;
}

struct Address {
  std::string host;
  int port = 0;
};

Result<Address> ParseListen(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Address address{.host = text.substr(0, colon)};
  bool ok = colon != std::string::npos;
  if (ok) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + colon + 1, end, address.port);
    ok = parsed.ec == std::errc() && parsed.ptr == end && address.port >= 0 && address.port < 65536;
  }
  if (address.host == "[::1]") address.host = "::1";
  if (!ok ||
      (address.host != "127.0.0.1" && address.host != "::1" && address.host != "localhost")) {
    return Status(Code::kInvalidArgument,
                  "--listen: found \"" + text +
                      "\", allowed is 127.0.0.1:PORT, [::1]:PORT or localhost:PORT. From another "
                      "host: ssh -L PORT:127.0.0.1:PORT");
  }
  return address;
}

// Answers come from content providers of a known length, because the library compresses all others
// for a browser that takes that: on one host it is nine tenths of what serving costs.
class Http {
 public:
  Http(Page* page, std::string token) : page_(page), base_("/" + std::move(token)) { Route(); }

  // The port; negative: there is none.
  int Bind(const Address& at) {
    if (at.port != 0) {
      port_ = server_.bind_to_port(at.host, at.port) ? at.port : -1;
    } else {
      port_ = server_.bind_to_any_port(at.host);
    }
    return port_;
  }
  void Listen() { server_.listen_after_bind(); }
  void Stop() { server_.stop(); }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  void Route();
  bool Lets(const Request& request, Response& response) const;
  void Answer(Question told, Response& response) {
    response.status = told.code;
    const std::size_t bytes = told.text.size();  // never 0
    response.set_content_provider(
        bytes, "application/json",
        [text = std::move(told.text)](std::size_t at, std::size_t size, httplib::DataSink& sink) {
          return sink.write(text.data() + at, size);
        });
  }
  // `ask` gives the answer, or nullopt where a parameter is wrong.
  template <typename Ask>
  void OnQuestion(const std::string& path, Ask ask) {
    server_.Get(base_ + path, [this, ask](const Request& request, Response& response) {
      std::optional<Question> told = ask(request);
      if (!told) told = {400, Dump({{"error", "a parameter is wrong"}})};
      Answer(std::move(*told), response);
    });
  }

  Page* page_;
  const std::string base_;
  int port_ = -1;
  httplib::Server server_;
};

// A page of another site may make the browser ask here under a name of its own (DNS rebinding).
bool Http::Lets(const Request& request, Response& response) const {
  const std::string port = ":" + std::to_string(port_);
  const std::string host = request.get_header_value("Host");
  const bool known =
      host == "127.0.0.1" + port || host == "localhost" + port || host == "[::1]" + port;
  const std::string site = request.get_header_value("Sec-Fetch-Site");
  if (!known || request.get_header_value_count("Host") != 1 || site == "cross-site") {
    response.status = 403;
    response.set_content("not for this name\n", "text/plain");
    return false;
  }
  if (request.method != "GET" && request.method != "HEAD") {
    response.status = 405;
    response.set_header("Allow", "GET, HEAD");
    return false;
  }
  return true;
}

void Http::Route() {
  server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server_.set_payload_max_length(0);
  server_.set_read_timeout(5);
  server_.set_write_timeout(5);
  server_.set_keep_alive_timeout(5);
  server_.set_keep_alive_max_count(1000);
  server_.set_default_headers({{"Content-Security-Policy", kPolicy},
                               {"X-Content-Type-Options", "nosniff"},
                               {"X-Frame-Options", "DENY"},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Resource-Policy", "same-origin"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Cache-Control", "no-store"}});
  server_.set_pre_routing_handler([this](const Request& request, Response& response) {
    return Lets(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                   : httplib::Server::HandlerResponse::Handled;
  });
  server_.set_exception_handler(
      [](const Request&, Response& response, const std::exception_ptr&) { response.status = 500; });
  for (const PageFile& file : PageFiles()) {
    server_.Get(base_ + "/" + file.name, [file](const Request&, Response& response) {
      response.set_content_provider(
          file.content.size(), file.type,
          [file](std::size_t at, std::size_t size, httplib::DataSink& sink) {
            return sink.write(file.content.data() + at, size);
          });
    });
  }
  OnQuestion("/api/runs", [this](const Request&) { return std::optional(page_->Runs()); });
  OnQuestion("/api/run", [this](const Request& request) -> std::optional<Question> {
    const auto run = Parameter<RunId>(request, "run", 1, ~RunId{0});
    if (!run) return std::nullopt;
    return page_->Run(*run);
  });
  OnQuestion("/api/timeline", [this](const Request& request) -> std::optional<Question> {
    const auto run = Parameter<RunId>(request, "run", 1, ~RunId{0});
    const auto from = Parameter<double>(request, "from", -1e9, 1e9);
    const auto to = Parameter<double>(request, "to", -1e9, 1e9);
    const auto width = Parameter<int>(request, "width", 1, 100'000);
    if (!run || !from || !to || !width || *to <= *from) return std::nullopt;
    return page_->Timeline(*run, *from, *to, *width);
  });
  OnQuestion("/api/groups", [this](const Request& request) -> std::optional<Question> {
    const auto run = Parameter<RunId>(request, "run", 1, ~RunId{0});
    const auto to = Parameter<double>(request, "to", -1e9, 1e9);
    std::optional<Rank> rank;
    if (request.has_param("rank")) {
      rank = Parameter<Rank>(request, "rank", 0, 1 << 24);
      if (!rank) return std::nullopt;
    }
    if (!run || !to) return std::nullopt;
    return page_->Groups(*run, *to, rank);
  });
}

}  // namespace

Status Serve(HistorySource& source, const std::string& listen, const Console& console) {
  Result<Address> address = ParseListen(listen);
  if (!address.ok()) return address.status();
  const std::string token = Token();
  if (token.empty()) return Status(Code::kInternal, "the system gives no random bytes");
  Result<std::vector<RunInfo>> there = source.Runs();
  if (!there.ok()) return there.status();
  Page page(source, std::move(*there));
  Http http(&page, token);
  const int port = http.Bind(*address);
  if (port < 0) {
    return Status(
        Code::kUnavailable,
        "--listen " + listen + ": cannot be listened on; is the port taken? Port 0 is any");
  }
  const std::string host = address->host == "::1" ? "[::1]" : address->host;
  const std::string url = "http://" + host + ":" + std::to_string(port) + "/" + token + "/";
  if (console.json) {
    console.out << Dump({{"url", url}}) << '\n';
  } else {
    console.out << url << '\n'
                << "The page is read-only, and for whoever has this address. Ctrl-C ends it.\n";
  }
  console.out.flush();
  std::thread serving([&http] { http.Listen(); });
  while (!console.stop || !console.stop()) page.Turn();
  http.Stop();
  serving.join();
  return Status::Ok();
}

}  // namespace prd::ctl
