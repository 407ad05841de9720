#include "tools/prdctl/serve.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "common/io/http_server.h"
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
constexpr DurationNs kMoment =
    200 * kMillisecond;  // an answer waits so long for what is being read
constexpr auto kAskedLately = seconds(10);
constexpr std::uint32_t kChunk = 256 << 10;

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

struct Told {
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

  // Nothing: what is asked for is being read, and the question has `waited` for less than a moment.
  std::optional<Told> Runs(DurationNs waited);
  std::optional<Told> Run(RunId run, DurationNs waited);
  Told Timeline(RunId run, double from_s, double to_s, int width);
  Told Groups(RunId run, double to_s, std::optional<Rank> rank);

 private:
  const DaemonStatus* daemon() const { return daemon_ ? &*daemon_ : nullptr; }
  void Look();
  // `first`: the job's first run.
  bool Read(RunId first);
  // The view of this run's job. Null: it is not there; `told` says so.
  Watched* Find(RunId run, Told* told);
  // By the first run of each job that there is.
  void Arrange(std::vector<RunInfo> runs);
  void Asked();
  static Told Tell(const Json& json) { return {200, Dump(json)}; }

  HistorySource& source_;           // of the thread that turns
  std::mutex mutex_;                // of all below
  std::condition_variable wanted_;  // something new is asked for
  bool wants_ = false;
  std::uint64_t looks_ = 0;
  std::uint64_t looks_then_ = 0;                // when somebody began to ask
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
                           [&, read = job.run()](const RunInfo& info) { return info.run == read; });
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
  return !records->empty();
}

// Nothing is kept up with while nobody asks.
void Page::Asked() {
  const Clock::time_point now = Clock::now();
  if (now - std::exchange(asked_, now) < kAskedLately) return;
  looks_then_ = looks_;
  wants_ = true;
  wanted_.notify_one();
}

std::optional<Told> Page::Runs(DurationNs waited) {
  const std::lock_guard lock(mutex_);
  Asked();
  if (looks_ == looks_then_ && waited < kMoment) return std::nullopt;
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
  return Tell(json);
}

Watched* Page::Find(RunId run, Told* told) {
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

std::optional<Told> Page::Run(RunId run, DurationNs waited) {
  const std::lock_guard lock(mutex_);
  Told told;
  Watched* watched = Find(run, &told);
  if (watched == nullptr) return told;
  if (!watched->whole && watched->error.empty() && waited < kMoment) return std::nullopt;
  Json json = watched->job.Summary(watched->runs, daemon());
  json["error"] = watched->error.empty() ? error_ : watched->error;
  json["whole"] = watched->whole;
  return Tell(json);
}

Told Page::Timeline(RunId run, double from_s, double to_s, int width) {
  const std::lock_guard lock(mutex_);
  Told told;
  Watched* watched = Find(run, &told);
  if (watched == nullptr) return told;
  return Tell(watched->job.Timeline(from_s, to_s, width, watched->job.Now(daemon())));
}

Told Page::Groups(RunId run, double to_s, std::optional<Rank> rank) {
  const std::lock_guard lock(mutex_);
  Told told;
  Watched* watched = Find(run, &told);
  if (watched == nullptr) return told;
  return Tell(watched->job.Groups(to_s, rank));
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
std::optional<T> Parameter(const HttpRequest& request, const char* name, T least, T most) {
  const std::string text = request.Parameter(name).value_or("");
  T value{};
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (wrong != std::errc() || end != text.data() + text.size() || text.size() > 40) {
    return std::nullopt;
  }
  if (!(value >= least && value <= most)) return std::nullopt;
  return value;
}

// The address to listen on. "localhost" is 127.0.0.1: as [::1] another user might listen, and the
// browser would ask there first.
Result<std::string> ParseListen(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string host = text.substr(0, colon);
  bool ok = colon != std::string::npos &&
            (host == "127.0.0.1" || host == "[::1]" || host == "::1" || host == "localhost");
  if (ok) {
    const char* end = text.data() + text.size();
    std::uint16_t port = 0;
    const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
    ok = parsed.ec == std::errc() && parsed.ptr == end;
  }
  if (!ok) {
    return Status(Code::kInvalidArgument,
                  "--listen: found \"" + text +
                      "\", allowed is 127.0.0.1:PORT, [::1]:PORT or localhost:PORT. From another "
                      "host: ssh -L PORT:127.0.0.1:PORT");
  }
  const bool ipv6 = host == "[::1]" || host == "::1";
  return (ipv6 ? "[::1]" : "127.0.0.1") + text.substr(colon);
}

// What is asked for, and by whom.
class Site {
 public:
  Site(Page* page, const std::string& token, int port)
      : page_(page), base_("/" + token), port_(":" + std::to_string(port)) {}

  // In the server's thread.
  std::optional<HttpAnswer> Answer(const HttpRequest& request) const;

 private:
  bool Lets(const HttpRequest& request) const;
  std::optional<Told> Ask(const HttpRequest& request, const std::string& what) const;

  Page* page_;
  const std::string base_;
  const std::string port_;
};

// A page of another site may make the browser ask here under a name of its own (DNS rebinding).
bool Site::Lets(const HttpRequest& request) const {
  const std::vector<std::string> hosts = request.Headers("Host");
  if (hosts.size() != 1) return false;
  const std::string& host = hosts.front();
  const bool known =
      host == "127.0.0.1" + port_ || host == "localhost" + port_ || host == "[::1]" + port_;
  const std::vector<std::string> sites = request.Headers("Sec-Fetch-Site");
  return known && std::find(sites.begin(), sites.end(), "cross-site") == sites.end();
}

std::optional<HttpAnswer> Site::Answer(const HttpRequest& request) const {
  if (!Lets(request)) return HttpAnswer{.code = 403, .body = std::string("not for this name\n")};
  const HttpAnswer nothing{.code = 404, .body = std::string("there is nothing\n")};
  if (!request.path.starts_with(base_ + "/")) return nothing;
  const std::string name = request.path.substr(base_.size() + 1);
  for (const PageFile& file : PageFiles()) {
    if (name != file.name) continue;
    return HttpAnswer{.type = std::string(file.type), .body = HttpBody::OfConstant(file.content)};
  }
  if (!name.starts_with("api/")) return nothing;
  std::optional<Told> told = Ask(request, name.substr(4));
  if (!told) return std::nullopt;
  if (told->text.empty()) return nothing;
  return HttpAnswer{.code = told->code, .type = "application/json", .body = std::move(told->text)};
}

// Without a text: there is no such question.
std::optional<Told> Site::Ask(const HttpRequest& request, const std::string& what) const {
  const Told wrong{400, Dump({{"error", "a parameter is wrong"}})};
  if (what == "runs") return page_->Runs(request.waited);
  const auto run = Parameter<RunId>(request, "run", 1, ~RunId{0});
  const auto to = Parameter<double>(request, "to", -1e9, 1e9);
  if (what == "run") return run ? page_->Run(*run, request.waited) : wrong;
  if (what == "timeline") {
    const auto from = Parameter<double>(request, "from", -1e9, 1e9);
    const auto width = Parameter<int>(request, "width", 1, 100'000);
    if (!run || !from || !to || !width || *to <= *from) return wrong;
    return page_->Timeline(*run, *from, *to, *width);
  }
  if (what == "groups") {
    const auto rank = Parameter<Rank>(request, "rank", 0, 1 << 24);
    if (!run || !to || (!rank && request.Parameter("rank"))) return wrong;
    return page_->Groups(*run, *to, rank);
  }
  return Told{404, ""};
}

HttpServer::Options ServerOptions() {
  return {.loop = {.headers = {{"Content-Security-Policy", kPolicy},
                               {"X-Content-Type-Options", "nosniff"},
                               {"X-Frame-Options", "DENY"},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Resource-Policy", "same-origin"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Cache-Control", "no-store"}}},
          .own_user_only = true};
}

}  // namespace

Status Serve(HistorySource& source, const std::string& listen, const Console& console) {
  const Result<std::string> address = ParseListen(listen);
  if (!address.ok()) return address.status();
  const std::string token = Token();
  if (token.empty()) return Status(Code::kInternal, "the system gives no random bytes");
  Result<std::vector<RunInfo>> there = source.Runs();
  if (there.status().code() == Code::kCancelled) return Status::Ok();  // by a signal
  if (!there.ok()) return there.status();
  Page page(source, std::move(*there));
  Result<std::unique_ptr<HttpServer>> server = HttpServer::Listen(*address);
  if (!server.ok()) {
    return Status(
        Code::kAlreadyExists,
        "--listen " + listen + ": cannot be listened on; is the port taken? Port 0 is any");
  }
  const Site site(&page, token, (*server)->port());
  const Status started = (*server)->Start(
      [&site](const HttpRequest& request) { return site.Answer(request); }, ServerOptions());
  if (!started.ok()) return started;
  const std::string host = address->substr(0, address->rfind(':'));
  const std::string url =
      "http://" + host + ":" + std::to_string((*server)->port()) + "/" + token + "/";
  if (console.json) {
    console.out << Dump({{"url", url}}) << '\n';
  } else {
    console.out << url << '\n'
                << "The page is read-only, and for whoever has this address. Ctrl-C ends it.\n";
  }
  console.out.flush();
  while (!console.stop || !console.stop()) page.Turn();
  server->reset();  // before what it asks
  return Status::Ok();
}

}  // namespace prd::ctl
