// Reading a configuration: what is right is understood, what is wrong is named with its line.
#include "config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "engines/registry.h"

namespace prd {
namespace {

using ::testing::HasSubstr;

constexpr const char* kJob = "[[job]]\nname = \"*\"\nengine = \"p-reduce\"\n";

std::string ErrorOf(const std::string& text) {
  const Result<Config> config = ParseConfig(text, "f.toml");
  return config.ok() ? "no error" : config.status().message();
}

TEST(ConfigTest, LeftOutKeysHaveTheirDefaults) {
  const Result<Config> config = ParseConfig(kJob, "f.toml");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->daemon, DaemonConfig{});
  ASSERT_EQ(config->jobs.size(), 1u);
  EXPECT_EQ(config->jobs[0].pattern, "*");
  EXPECT_EQ(config->jobs[0].line, 1);
  EXPECT_EQ(config->jobs[0].spec.engine, EngineOptions(PReduceOptions{}));
  EXPECT_EQ(config->jobs[0].spec.lease_ms, 2000u);
}

// What workers send each other is protected as soon as what they say to the daemon is.
TEST(ConfigTest, KeysOfTheDaemonSealTheMeshUnlessTheJobSaysOtherwise) {
  const std::string keys =
      "[daemon]\ncurve_secret_key_file = \"s\"\ncurve_authorized_keys_file = \"a\"\n";
  const std::string job = "[[job]]\nname = \"*\"\nengine = \"all-reduce\"\n";
  const auto security = [](const std::string& text) {
    const Result<Config> config = ParseConfig(text, "f.toml");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    const Result<JobSpec> spec = FindJob(*config, "any");
    EXPECT_TRUE(spec.ok());
    // As it is recorded: a run goes on as it began.
    EXPECT_EQ(JobSpecFromToml(spec->text)->mesh_security, spec->mesh_security);
    return spec->mesh_security;
  };
  EXPECT_EQ(security(job), MeshSecurity::kNone);
  EXPECT_EQ(security(keys + job), MeshSecurity::kAead);
  EXPECT_EQ(security(job + keys), MeshSecurity::kAead) << "wherever [daemon] stands";
  EXPECT_EQ(security(keys + job + "mesh_security = \"auto\"\n"), MeshSecurity::kAead);
  EXPECT_EQ(security(keys + job + "mesh_security = \"none\"\n"), MeshSecurity::kNone);
  EXPECT_EQ(security(job + "mesh_security = \"aead\"\n"), MeshSecurity::kAead);
}

TEST(ConfigTest, ReadsEveryKindOfValue) {
  const Result<Config> config = ParseConfig(R"([daemon]
listen = "ipc:///tmp/prd.sock"
sync = true
retain_runs = 7
retain_runs_in_all = 8
retain_bytes = 2000000
max_connections = 2000
max_connections_per_host = 100
log_level = "debug"
metrics = "127.0.0.1:9100"
[[job]]
name = "mnist-?"
engine = "p-reduce"
workers = 8
lease_ms = 900
heartbeat_ms = 100
goal_steps = 100000
goal_samples = 9007199254740992
check_replicas_ms = 250
on_divergence = "repair"
on_nonfinite = "stop"
mesh_security = "curve"
device_network = "trusted"
[job.p-reduce]
group_size = 4
weights = "constant"
alpha = 0
missing = "renormalize"
history_window = 9
max_wait_ms = 250
overlap = true
overlap_steps = 4
)",
                                            "f.toml");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->daemon.listen, "ipc:///tmp/prd.sock");
  EXPECT_TRUE(config->daemon.sync);
  EXPECT_EQ(config->daemon.retain_runs, 7);
  EXPECT_EQ(config->daemon.retain_runs_in_all, 8);
  EXPECT_EQ(config->daemon.retain_bytes, 2'000'000);
  EXPECT_EQ(config->daemon.max_connections, 2000);
  EXPECT_EQ(config->daemon.max_connections_per_host, 100);
  EXPECT_EQ(config->daemon.log_level, "debug");
  const JobSpec& spec = config->jobs[0].spec;
  EXPECT_EQ(spec.workers, 8);
  EXPECT_EQ(spec.lease_ms, 900u);
  EXPECT_EQ(spec.heartbeat_ms, 100u);
  EXPECT_EQ(spec.goal, (Trained{100'000, std::int64_t{1} << 53}));
  EXPECT_EQ(spec.check_replicas_ms, 250u);
  EXPECT_EQ(spec.on_divergence, JobSpec::OnDivergence::kRepair);
  EXPECT_EQ(spec.on_nonfinite, OnNonfinite::kStop);
  EXPECT_EQ(spec.mesh_security, MeshSecurity::kCurve);
  EXPECT_TRUE(spec.device_network_trusted);
  EXPECT_EQ(spec.engine,
            EngineOptions(PReduceOptions{.group_size = 4,
                                         .weights = PReduceOptions::Weights::kConstant,
                                         .alpha = 0,
                                         .missing = PReduceOptions::Missing::kRenormalize,
                                         .history_window = 9,
                                         .max_wait_ms = 250,
                                         .overlap = true,
                                         .overlap_steps = 4}));
}

TEST(ConfigTest, TheEngineLineAloneSwitches) {
  const std::string rest =
      "workers = 8\n[job.p-reduce]\ngroup_size = 4\n[job.all-reduce]\nweights = \"uniform\"\n";
  const auto with = [&](const std::string& engine) {
    return ParseConfig("[[job]]\nname = \"*\"\nengine = \"" + engine + "\"\n" + rest, "f.toml")
        .value();
  };
  EXPECT_EQ(with("p-reduce").jobs[0].spec.engine, EngineOptions(PReduceOptions{.group_size = 4}));
  EXPECT_EQ(with("all-reduce").jobs[0].spec.engine,
            EngineOptions(AllReduceOptions{.weights = AllReduceOptions::Weights::kUniform}));
}

TEST(ConfigTest, ANumberMayGoByAName) {
  const auto with = [](const std::string& quorum) {
    return "[[job]]\nname = \"*\"\nengine = \"eager\"\n[job.eager]\nquorum = " + quorum + "\n";
  };
  const auto read = [&](const std::string& quorum) {
    const Config config = ParseConfig(with(quorum), "f.toml").value();
    return config.jobs.at(0).spec.engine.Get<EagerOptions>().quorum;
  };
  EXPECT_EQ(read("\"majority\""), EagerOptions::kMajority);
  EXPECT_EQ(read("\"solo\""), 1);
  EXPECT_EQ(read("1"), 1);
  EXPECT_EQ(read("3"), 3);
  for (const std::string wrong : {"0", "\"most\"", "1.5", "\"3\""}) {
    EXPECT_THAT(ErrorOf(with(wrong)), HasSubstr("f.toml:5: job.eager.quorum: found " + wrong))
        << wrong;
    EXPECT_THAT(ErrorOf(with(wrong)),
                HasSubstr("allowed is \"solo\", \"majority\", or a whole number from 1 to"));
  }
}

TEST(ConfigTest, AllErrorsOfAFileAtOnceInTheOrderOfLines) {
  EXPECT_EQ(ErrorOf(R"([[job]]
name = "a"
engine = "p-produce"
lease_ms = "long"

[daemon]
listne = "tcp://127.0.0.1:1"
sync = 1
retain_runs = 0
log_level = "loud"
[surprise]
)"),
            R"(f.toml:3: job.engine: found "p-produce" (a text), allowed is "all-reduce", )"
            R"("p-reduce", "eager", "backup", "esync", "prague", "ad-psgd", "hop" or "ssp"
f.toml:4: job.lease_ms: found "long" (a text), allowed is a whole number from 20 to 3600000 (ms)
f.toml:7: daemon.listne: unknown key; did you mean "listen"?
f.toml:8: daemon.sync: found 1, allowed is true or false
f.toml:9: daemon.retain_runs: found 0, allowed is a whole number from 1 to 1000000000 (runs)
f.toml:10: daemon.log_level: found "loud" (a text), allowed is "trace", "debug", )"
            R"("info", "warn" or "error"
f.toml:11: surprise: unknown key; allowed are identity, daemon, job)");
}

TEST(ConfigTest, AWrongKeyHidesNoRuleOverOthers) {
  EXPECT_EQ(ErrorOf(R"([[job]]
name = "a"
engine = "p-reduce"
workers = "four"
heartbeat_ms = 1500
goal_steps = -1
batch = -1
[job.p-reduce]
group_size = 1
[job.hop]
graph = [[0, 1], [2, 3]]
)"),
            R"(f.toml:4: job.workers: found "four" (a text), allowed is a whole number from 0 to )"
            R"(1000000 (workers)
f.toml:5: job.heartbeat_ms: found 1500, allowed is less than half of lease_ms (2000), so that one )"
            R"(lost heartbeat is not a death
f.toml:6: job.goal_steps: found -1, allowed is a whole number from 0 to 9007199254740992 (steps)
f.toml:7: job.batch: found -1, allowed is a whole number from 0 to 2147483648 (samples)
f.toml:9: job.p-reduce.group_size: found 1, allowed is 0 (chosen by prd) or 2 to 100000
f.toml:11: job.hop.graph: found no path from rank 0 to rank 2, allowed is a connected graph)");
}

TEST(ConfigTest, EnginesCheckTheirOwnTables) {
  const std::string job = "[[job]]\nname = \"*\"\nengine = \"all-reduce\"\nworkers = 9\n";
  // History of one group cannot connect nine workers in threes, whichever engine is chosen now.
  EXPECT_THAT(ErrorOf(job + "[job.p-reduce]\ngroup_size = 3\nhistory_window = 1\n"),
              HasSubstr("f.toml:7: job.p-reduce.history_window: found 1, allowed is"));
  EXPECT_THAT(ErrorOf(job + "[job.p-reduce]\ngroup_size = 1\n"),
              HasSubstr("f.toml:6: job.p-reduce.group_size: found 1, allowed is 0 (chosen by prd) "
                        "or 2 to 100000"));
  EXPECT_THAT(ErrorOf(job + "p-reduce = 3\n"),
              HasSubstr("f.toml:5: job.p-reduce: found 3, allowed is a table: [job.p-reduce]"));
  EXPECT_THAT(ErrorOf(job + "[job.p-reduce]\ngroupsize = 3\n"),
              HasSubstr("job.p-reduce.groupsize: unknown key; did you mean \"group_size\"?"));
}

TEST(ConfigTest, AGraphIsANameOrAListOfEdges) {
  const std::string job =
      "[[job]]\nname = \"*\"\nengine = \"ad-psgd\"\nworkers = 3\n[job.ad-psgd]\n";
  const auto graph = [&](const std::string& value) {
    const Result<Config> config = ParseConfig(job + "graph = " + value + "\n", "f.toml");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return config->jobs[0].spec.engine.Get<AdPsgdOptions>().graph;
  };
  EXPECT_EQ(graph("\"ring\""), Graph({.kind = Graph::Kind::kRing, .edges = {}}));
  EXPECT_EQ(graph("\"complete\""), Graph({.kind = Graph::Kind::kComplete, .edges = {}}));
  EXPECT_EQ(graph("[[0, 1],\n [1, 2]]"),
            Graph({.kind = Graph::Kind::kEdges, .edges = {{0, 1}, {1, 2}}}));
  const auto wrong = [&](const std::string& value) {
    return ErrorOf(job + "seed = 2\ngraph = " + value + "\n");
  };
  const std::string allowed =
      R"(, allowed is "ring", "complete", or a list of pairs [a, b] of whole numbers )"
      "from 0 to 999999";
  EXPECT_EQ(wrong("\"star\""), "f.toml:7: job.ad-psgd.graph: found \"star\" (a text)" + allowed);
  EXPECT_EQ(wrong("7"), "f.toml:7: job.ad-psgd.graph: found 7" + allowed);
  for (const char* list : {"[0, 1]", "[[0, 1, 2]]", "[[0, -1]]", "[[0, 1.5]]", "[[0, 1], \"x\"]"}) {
    EXPECT_EQ(wrong(list), "f.toml:7: job.ad-psgd.graph: found an array" + allowed) << list;
  }
  EXPECT_EQ(wrong("[]"), "f.toml:7: job.ad-psgd.graph: found 0 edges, allowed is 1 to 1000000");
  EXPECT_EQ(wrong("[[0, 1], [1, 1]]"),
            "f.toml:7: job.ad-psgd.graph: found [1, 1], allowed is an edge between two ranks");
  EXPECT_EQ(wrong("[[0, 1], [2, 3]]"),
            "f.toml:7: job.ad-psgd.graph: found no path from rank 0 to rank 2, allowed is a "
            "connected graph");
  EXPECT_EQ(wrong("[[0, 1]]"),
            "f.toml:7: job.ad-psgd.graph: found no edge of rank 2, allowed is a list that names "
            "all 3 workers");
}

TEST(ConfigTest, AnEnginesRulesOverSeveralKeysNameTheLine) {
  const std::string hop = "[[job]]\nname = \"*\"\nengine = \"hop\"\nworkers = 4\n[job.hop]\n";
  EXPECT_EQ(ErrorOf(hop + "graph = \"ring\"\nbackups = 3\n"),
            "f.toml:7: job.hop.backups: found 3, allowed is 0 to 2: so many neighbours has rank 0");
  EXPECT_THAT(ErrorOf(hop + "backups = 1\nmax_iteration_gap = 0\n"),
              HasSubstr("f.toml:7: job.hop.max_iteration_gap: found 0, allowed is 1 to 10000 with "
                        "backups"));
}

TEST(ConfigTest, RulesOverSeveralKeys) {
  EXPECT_THAT(
      ErrorOf(std::string(kJob) + "lease_ms = 1000\nheartbeat_ms = 500\n"),
      HasSubstr(
          "f.toml:5: job.heartbeat_ms: found 500, allowed is less than half of lease_ms (1000)"));
  // The default heartbeat does not fit; the file has no line for it, so its table is named.
  EXPECT_THAT(ErrorOf(std::string(kJob) + "lease_ms = 600\n"),
              HasSubstr("f.toml:1: job.heartbeat_ms: found 500"));
  EXPECT_THAT(ErrorOf(std::string(kJob) + "workers = 9\nmax_workers = 8\n"),
              HasSubstr("f.toml:4: job.workers: found 9, allowed is up to max_workers (8)"));
  EXPECT_THAT(ErrorOf(std::string(kJob) + "goal_samples = 9007199254740993\n"),
              HasSubstr("f.toml:4: job.goal_samples: found 9007199254740993, allowed is a whole "
                        "number from 0 to 9007199254740992 (samples)"));
  // A wrong key is not reported twice.
  EXPECT_EQ(ErrorOf(std::string(kJob) + "lease_ms = -1\nheartbeat_ms = 5000\n"),
            "f.toml:4: job.lease_ms: found -1, allowed is a whole number from 20 to 3600000 (ms)");
}

TEST(ConfigTest, OffLoopbackNeedsKeysAndSaysSo) {
  const std::string open = "[daemon]\nlisten = \"tcp://0.0.0.0:5775\"\n";
  EXPECT_THAT(ErrorOf(open + kJob),
              HasSubstr("f.toml:2: daemon.listen: found \"tcp://0.0.0.0:5775\""));
  EXPECT_THAT(ErrorOf(open + kJob), HasSubstr("prdctl keygen"));
  EXPECT_EQ(ErrorOf(open + "curve_secret_key_file = \"/k\"\ncurve_authorized_keys_file = \"/c\"\n" +
                    kJob),
            "no error");
  EXPECT_THAT(ErrorOf("[daemon]\ncurve_secret_key_file = \"/k\"\n" + std::string(kJob)),
              HasSubstr("daemon.curve_authorized_keys_file: found \"\", allowed is a file when"));
  for (const char* listen :
       {"", "tcp://127.0.0.1:1", "tcp://127.9.9.9:65535", "tcp://localhost:5775",
        "tcp://[::1]:5775", "tcp://[0:0::0:1]:*", "ipc:///x", "tcp://127.0.0.1:*"}) {
    EXPECT_EQ(ErrorOf("[daemon]\nlisten = \"" + std::string(listen) + "\"\n" + kJob), "no error")
        << listen;
  }
  for (const char* listen :
       {"tcp://*:5775", "tcp://eth0:5775", "tcp://128.0.0.1:5775", "tcp://127.0.0.256:5775",
        "tcp://127.0.0.1.example:5775", "tcp://[::]:5775", "tcp://127.1:5775",
        "tcp://[fd00:7::a]:5775", "tcp://[fe80::1%eth0.7]:5775", "tcp://[::ffff:10.0.0.1]:*"}) {
    EXPECT_THAT(ErrorOf("[daemon]\nlisten = \"" + std::string(listen) + "\"\n" + kJob),
                HasSubstr("prdctl keygen"))
        << listen;
  }
  for (const char* listen : {"tcp://",
                             "tcp://:5775",
                             "tcp://127.0.0.1:0",
                             "tcp://127.0.0.1:65536",
                             "tcp://127.0.0.1:x",
                             "udp://127.0.0.1:1",
                             "ipc://",
                             "ipc://relative",
                             "ipc:///",
                             "tcp://a b:1",
                             "tcp://127.0.0.1:+5",
                             "tcp://::1:5775",
                             "tcp://[::1]",
                             "tcp://[]:5775",
                             "tcp://[1:2:3]:5775",
                             "tcp://[::1::2]:5775",
                             "tcp://[10.0.0.1]:5775",
                             "tcp://[::1:5775",
                             "tcp://[fe80::1%]:5775",
                             "tcp://[fe80::1%eth 0]:5775"}) {
    EXPECT_THAT(ErrorOf("[daemon]\nlisten = \"" + std::string(listen) + "\"\n" + kJob),
                HasSubstr("allowed is tcp://ADDRESS:PORT"))
        << listen;
  }
  EXPECT_THAT(
      ErrorOf("[daemon]\nadmin = \"tcp://127.0.0.1:1\"\n" + std::string(kJob)),
      HasSubstr("daemon.admin: found \"tcp://127.0.0.1:1\", allowed is ipc:///PATH without curve"));
  EXPECT_THAT(ErrorOf("[daemon]\nadmin = \"ipc:///" + std::string(107, 'a') + "\"\n" + kJob),
              HasSubstr("up to 107 bytes"));
}

TEST(ConfigTest, ReadsIdentities) {
  const std::string key(40, 'k');
  const Result<Config> config = ParseConfig(
      "[daemon]\nlisten = \"tcp://10.0.0.1:5775\"\n"
      "curve_secret_key_file = \"/k\"\n"
      "[[identity]]\nname = \"alice\"\nkeys = [\"" +
          key +
          "\"]\nusers = [\"alice\", \"1000\"]\n"
          "jobs = [\"a-*\", \"b?\"]\nmax_jobs = 2\n"
          "max_workers = 16\nmax_connections = 20\nmax_messages_per_s = 500\n"
          "max_read_bytes_per_s = 7\n"
          "max_runs_per_minute = 60\nmax_runs = 9\nmax_history_bytes = 1000\n"
          "[[identity]]\nname = \"ops\"\n"
          "jobs = [\"*\"]\nrole = \"operator\"\n" +
          kJob,
      "f.toml");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ASSERT_EQ(config->identities.size(), 2u);
  EXPECT_EQ(config->identities[0], (Identity{.name = "alice",
                                             .keys = {key},
                                             .users = {"alice", "1000"},
                                             .jobs = {"a-*", "b?"},
                                             .role = Role::kWorker,
                                             .max_jobs = 2,
                                             .max_workers = 16,
                                             .max_connections = 20,
                                             .max_messages_per_s = 500,
                                             .max_read_bytes_per_s = 7,
                                             .max_runs_per_minute = 60,
                                             .max_runs = 9,
                                             .max_history_bytes = 1000,
                                             .line = 4}));
  EXPECT_EQ(config->identities[1].role, Role::kOperator);
}

TEST(ConfigTest, SaysWhatIsWrongWithAnIdentity) {
  const std::string key(40, 'k');
  const auto error = [](const std::string& identity, const std::string& daemon = "") {
    return ErrorOf("[daemon]\nlisten = \"ipc:///w\"\n" + daemon + "[[identity]]\n" + identity +
                   kJob);
  };
  EXPECT_THAT(error("jobs = [\"*\"]\n"),
              HasSubstr("f.toml:3: identity.name: found nothing, needed is a name: 1 to 64"));
  EXPECT_THAT(error("name = \"a b\"\njobs = [\"*\"]\n"), HasSubstr("f.toml:4: identity.name"));
  EXPECT_THAT(error("name = \"a\"\n"),
              HasSubstr("identity.jobs: found nothing, needed is a list; each is a pattern"));
  EXPECT_THAT(error("name = \"a\"\njobs = \"*\"\n"), HasSubstr("allowed is a list"));
  EXPECT_THAT(
      error("name = \"a\"\njobs = [\"*\"]\nkeys = [\"short\"]\n"),
      HasSubstr("f.toml:6: identity.keys: found \"short\" (a text), allowed is a list; each "
                "is a CURVE public key"));
  EXPECT_THAT(error("name = \"a\"\njobs = [\"*\"]\nkeys = [\"" + key + "\"]\n"),
              HasSubstr("daemon.curve_secret_key_file: found \"\", allowed is a file when an "
                        "identity has keys"));
  EXPECT_THAT(error("name = \"a\"\njobs = [\"*\"]\nusers = [7]\n"),
              HasSubstr("identity.users: found 7, allowed is a list; each is a user"));
  EXPECT_THAT(error("name = \"a\"\njobs = []\nrole = \"root\"\n"),
              HasSubstr("identity.role: found \"root\" (a text), allowed is \"worker\","));
  EXPECT_THAT(error("name = \"a\"\njobs = [\"*\"]\nusers = [\"u\"]\n[[identity]]\nname = \"a\"\n"
                    "jobs = [\"*\"]\nusers = [\"v\", \"u\"]\n"),
              ::testing::AllOf(HasSubstr("f.toml:7: identity.name: found \"a\" a second time"),
                               HasSubstr("f.toml:7: identity.users: found \"u\" a second time, "
                                         "allowed is once: identity \"a\" has it")));
  EXPECT_THAT(error("name = \"a\"\njobs = [\"*\"]\nmax_jobs = -1\n"),
              HasSubstr("identity.max_jobs: found -1"));
  EXPECT_THAT(ErrorOf("[daemon]\nlisten = \"tcp://127.0.0.1:1\"\n[[identity]]\nname = \"a\"\n"
                      "jobs = [\"*\"]\n" +
                      std::string(kJob)),
              HasSubstr("f.toml:2: daemon.listen: found \"tcp://127.0.0.1:1\", allowed is "
                        "ipc:///PATH, or CURVE keys, where an identity may train"));
  EXPECT_THAT(ErrorOf("identity = 3\n" + std::string(kJob)),
              HasSubstr("f.toml:1: identity: found 3, allowed are [[identity]] tables"));
  EXPECT_EQ(error("name = \"a\"\njobs = [\"*\"]\nkeys = []\n"), "no error");  // nobody is it
}

TEST(ConfigTest, JobsAreNeededNamedAndTakenOnce) {
  EXPECT_EQ(ErrorOf(""),
            "f.toml: job: found nothing, needed is one or more [[job]] tables, each with name and "
            "engine");
  EXPECT_THAT(ErrorOf("[job]\nname = \"*\"\n"),
              HasSubstr("f.toml:1: job: found a table, allowed is one or more [[job]]"));
  EXPECT_THAT(ErrorOf("job = [1]\n"), HasSubstr("f.toml:1: job: found 1, allowed is"));
  EXPECT_THAT(ErrorOf("[[job]]\n"),
              HasSubstr("f.toml:1: job.name: found nothing, needed is a pattern"));
  EXPECT_THAT(ErrorOf("[[job]]\n"),
              HasSubstr("f.toml:1: job.engine: found nothing, needed is \"all-reduce\","));
  EXPECT_THAT(ErrorOf("[[job]]\nname = \"\"\nengine = \"p-reduce\"\n"),
              HasSubstr("f.toml:2: job.name: found \"\""));
  EXPECT_THAT(ErrorOf(std::string(kJob) + kJob),
              HasSubstr("f.toml:4: job.name: found \"*\" a second time, allowed is once: line 1"));
}

TEST(ConfigTest, ARuleThatAnEarlierOneHidesIsAnError) {
  const auto rules = [](const std::string& first, const std::string& second) {
    const std::string rest = "engine = \"p-reduce\"\n";
    return "[[job]]\nname = \"" + first + "\"\n" + rest + "[[job]]\nname = \"" + second + "\"\n" +
           rest;
  };
  EXPECT_EQ(ErrorOf(rules("*", "mnist*")),
            "f.toml:4: job.name: found \"mnist*\" behind \"*\", allowed is before it: line 1 takes "
            "all its jobs");
  for (const auto& [first, second] :
       {std::pair{"*", "?"}, {"m*", "mnist"}, {"m*t*", "mnist-*"}, {"a??", "ab?"}, {"*x", "?*x"}}) {
    EXPECT_THAT(ErrorOf(rules(first, second)), HasSubstr("takes all its jobs"))
        << first << ", " << second;
    EXPECT_EQ(ErrorOf(rules(second, first)), "no error") << second << ", " << first;
  }
  for (const auto& [first, second] :
       {std::pair{"a?", "a*"}, {"mnist", "mnist*"}, {"*a", "*b"}, {"a*b", "a*"}, {"ab?", "a??"}}) {
    EXPECT_EQ(ErrorOf(rules(first, second)), "no error") << first << ", " << second;
  }
}

TEST(ConfigTest, WhatIsNotTomlIsNamedWithItsLine) {
  EXPECT_THAT(ErrorOf("[daemon]\nlisten = \n"), HasSubstr("f.toml:2: "));
  EXPECT_THAT(ErrorOf("[daemon]\nsync = true\nsync = false\n"), HasSubstr("f.toml:3: "));
  EXPECT_THAT(ErrorOf(std::string(kJob) + "workers = 99999999999999999999\n"),
              HasSubstr("f.toml:4: "));
  EXPECT_THAT(ErrorOf("a = " + std::string(5000, '[')), HasSubstr("f.toml:1: "));
  EXPECT_THAT(ErrorOf("\xff\xfe\x00"), HasSubstr("f.toml:1: "));
}

TEST(ConfigTest, FilesThatCannotBeRead) {
  const Result<Config> missing = LoadConfig("/nowhere/prd.toml");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().message(),
              HasSubstr("/nowhere/prd.toml: cannot be read: No such file"));
  const Result<Config> folder = LoadConfig(PRD_SOURCE_DIR);
  EXPECT_EQ(folder.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(folder.status().message(), HasSubstr("cannot be read"));
  EXPECT_THAT(LoadConfig("/dev/zero").status().message(), HasSubstr("over 4 MiB"));
}

TEST(ConfigTest, TheFirstPatternThatMatchesCounts) {
  const Config config = ParseConfig(
                            "[[job]]\nname = \"mnist-*\"\nengine = \"p-reduce\"\nworkers = 3\n"
                            "[[job]]\nname = \"?\"\nengine = \"all-reduce\"\n",
                            "f.toml")
                            .value();
  const Result<JobSpec> found = FindJob(config, "mnist-7");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->name, "mnist-7");
  EXPECT_EQ(found->workers, 3);
  EXPECT_EQ(found->text, JobSpecToToml(*found));
  EXPECT_EQ(EngineName(FindJob(config, "x")->engine), "all-reduce");
  const Result<JobSpec> none = FindJob(config, "cifar");
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_EQ(
      none.status().message(),
      "job: found \"cifar\", which no [[job]] in f.toml matches; there are \"mnist-*\", \"?\"");
  for (const std::string& name :
       {std::string(), std::string("a\nb"), std::string("\xc3\x28"), std::string(201, 'a')}) {
    EXPECT_EQ(FindJob(config, name).status().code(), Code::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace prd
