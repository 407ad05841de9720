// Every plan, in every state of a step, meets what may end a step: a table in
// testdata/core_matrix.txt, one line for each; PRD_REWRITE=1 rewrites it. And what holds in each
// case, whatever the table says.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/transcript/text.h"
#include "tests/worker/core_transcript.h"

namespace prd::core_matrix_test {
namespace {

// Commands are separated by ";". Each state goes on from the one before it.
struct State {
  std::string name;
  std::string commands;
  bool in_call = true;
};
struct Case {
  std::string plan;
  std::string joined;  // after the common start
  std::vector<State> states;
  std::string beside = {};  // after joined: a group beside the training loop, or one that is held
};

const std::string kPair = R"(in="4*0.5" from=0 out=4 own=0.5 slots=4)";
const std::string kPlaced =
    R"(placement 1 members="3 4" shards="3<-none 4<-none";opened 1;pulled 1)";
const std::string kHosts = "schedule 100 hosts=0,0,0,0";

const std::vector<Case> kCases = {
    {"models", "", {{"waits", "step 1"}, {"reduces", "group 2"}}},
    {"gradients", "", {{"waits", "step 1"}, {"reduces", "group 2"}, {"applies", "reduced 2"}}},
    {"rounds",
     "",
     {{"waits", "step 0"}, {"reduces", "group 2 round"}, {"applies", "reduced 2"}},
     "step 0;group 2 round gives=0;reduced 2;applied 1;group 3 round at=2"},
    {"newest-round",
     "",
     {{"waits", "step 0"}, {"reduces", "group 2 round"}, {"applies", "reduced 2"}},
     "group 2 round gives=0"},
    {"asked",
     "",
     {{"asks", "step 0"}, {"waits", "reply 1 local_steps=1 ready=1"}, {"reduces", "group 2"}}},
    {"asked-late",
     "",
     {{"waits", "step 0;reply 1 local_steps=1 ready=1;step 0"}, {"reduces", "group 2"}},
     "step 0;reply 1 local_steps=1 ready=1"},
    {"change every=2", "", {{"waits", "step 1;step 1"}, {"reduces", "group 2"}}},
    {"ahead", "", {{"waits", "step 1"}, {"reduces", "group 2"}}, "group 2"},
    {"schedule", "", {{"waits", "step 1"}, {"reduces", kHosts}}, kHosts},
    {"background run_ahead=1",
     "",
     {{"waits", "step 1;step 2"}, {"reduces", "group 2"}, {"applies", "reduced 2"}},
     "step 1;group 2"},
    {"background run_ahead=1 members=ahead",
     "",
     {{"waits", "step 1;step 2"}, {"reduces", "group 2"}, {"applies", "reduced 2"}},
     "group 2 passive=1"},
    {"background run_ahead=1 members=schedule",
     kHosts,
     {{"waits", "step 1;step 2"}, {"applies", "reduced 102"}},
     "step 1"},
    {"neighbours",
     "neighbourhood " + kPair,
     {{"waits", "step 1"},
      {"applies", "note offer update 0 version=-1;pulled 1"},
      {"asks", "applied 0"}},
     "note offer update 0 version=-1"},
    {"neighbours serial=1",
     "neighbourhood " + kPair,
     {{"waits", "step 1"}, {"asks", "note offer update 0 version=-1;pulled 1"}}},
    {"store",
     "",
     {{"pushes", "step 0"},
      {"asks", "note stored delta 1 shard=1 epoch=1"},
      {"reads", "reply 1 next=1 workers=2"}}},
};

struct Happening {
  std::string name;
  std::string commands;
  bool call = false;   // only where none is in progress
  bool stays = false;  // the incarnation stays a member up to its Leave
};
const std::vector<Happening> kHappenings = {
    {"cancel", "cancel", false, true},
    {"leave", "leave bye", true, true},
    {"leave soon", "leave-soon bye", false, true},
    {"fail", "fail internal-error \"apply threw\"", false, true},
    {"timeout", "pass 11s", false, true},
    {"new incarnation", "incarnation 1002;refused aborted lost;pass 1s"},
    {"refusal", "refused invalid-argument no"},
    {"release", "released over"},
    {"abort", "abort 2 reason=r", false, true},
    {"failure", "reduced 2 failed", false, true},
    {"copy", "adopt", false, true},
    {"end of run", "end-run", false, true},
    {"controller restarts", "heartbeat identity=7/88", false, true},
    {"second group", "group 950"},
    {"finish", "finish", true, true},
    {"pause", "pause", true, true},
    {"average", "average", true, true},
    {"mean", "mean 1", true, true},
};

std::string Lines(const std::string& commands) {
  std::string lines;
  for (const std::string& command : transcript::Split(commands, ';')) lines += command + "\n";
  return lines;
}

// What the commands after "#" led to, but for repetitions and heartbeats.
std::string Row(const std::string& played) {
  std::string row;
  std::istringstream in(played.substr(played.find("#\n") + 2));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("> ") || line.starts_with("> send 0 heartbeat")) continue;
    if (line.ends_with(" again")) continue;
    row += (row.empty() ? "" : "; ") + line.substr(2);
  }
  return row;
}

// Calls `look` for each plan, state and happening, with what leads to the state.
template <typename Look>
void ForEach(const Look& look) {
  for (const Case& tested : kCases) {
    const std::string joined = "join " + tested.plan + " timeout=10s\n" + Lines(tested.joined);
    const std::string step = tested.states.front().commands;
    std::vector<std::pair<State, std::string>> states = {{{"computes", "", false}, joined}};
    std::string so_far = joined;
    for (const State& state : tested.states) {
      so_far += Lines(state.commands);
      states.emplace_back(state, so_far);
    }
    if (!tested.beside.empty()) {
      states.push_back({{"has one beside", "", false}, joined + Lines(tested.beside)});
    }
    states.push_back({{"copies", ""}, joined + Lines(step + ";adopt")});
    states.push_back({{"finishes", ""}, joined + "finish\n"});
    states.push_back({{"averages finally", ""}, joined + "finish\ngroup 900000 final at=0\n"});
    states.push_back({{"has paused", "", false}, joined + "pause\n"});
    states.push_back({{"resumes", ""}, joined + "pause\nresume\n"});
    for (const auto& [state, lines] : states) {
      for (const Happening& happening : kHappenings) {
        const bool leaves = happening.name == "leave";
        const bool may = !state.in_call || (leaves && state.name == "applies");
        if (happening.call && (!may || (!leaves && state.name == "has paused"))) continue;
        look(tested.plan + ", " + state.name, lines, happening);
      }
    }
  }
}

TEST(CoreMatrixTest, EachPlanInEachStateMeetsEachEnd) {
  std::string table;
  std::string newest;
  std::string nothing;
  const auto end_state = [&] {
    if (!nothing.empty()) table += "  nothing at once:" + nothing + "\n";
    nothing.clear();
  };
  ForEach([&](const std::string& where, const std::string& lines, const Happening& happening) {
    if (where != newest) {
      end_state();
      table += (table.empty() ? "" : "\n") + where + "\n";
    }
    newest = where;
    const std::string row =
        Row(testing::RunCoreTranscript(lines + "#\n" + Lines(happening.commands)));
    if (row.empty()) {
      nothing += (nothing.empty() ? " " : ", ") + happening.name;
    } else {
      table += "  " + happening.name + ": " + row + "\n";
    }
  });
  end_state();
  const std::string path = std::string(PRD_SOURCE_DIR) + "/tests/worker/testdata/core_matrix.txt";
  EXPECT_EQ(transcript::CompareGolden(path, table), "");
}

// The interpreter finds calls that end twice or never, and groups that are reported twice.
TEST(CoreMatrixTest, EachCallEndsOnceAndEachGroupIsReportedOnce) {
  int groups = 0;
  ForEach([&](const std::string& where, const std::string& lines, const Happening& happening) {
    const bool leaves = happening.name == "leave" || happening.name == "fail";
    const bool applies = where.ends_with(", applies");
    const std::string end = happening.name == "leave" ? "pass 1s"
                            : applies && !leaves      ? "applied 1;cancel;leave bye;pass 1s"
                                                      : "cancel;leave bye;pass 1s";
    const std::string all = lines + Lines(happening.commands + ";" + end);
    const std::string played = testing::RunCoreTranscript(all);
    // Leave alone tells of these: gradients whose apply has failed, and a final average before
    // which the shards are read.
    if (applies && leaves && where.starts_with("gradients")) return;
    if (where == "store, averages finally") return;
    if (!happening.stays) return;
    std::istringstream in(all);
    for (std::string line; std::getline(in, line);) {
      const transcript::Command command(line);
      if (command.name() != "group") continue;
      ++groups;
      EXPECT_NE(played.find(" finished " + command.Word(0) + " "), std::string::npos)
          << where << ": " << happening.name << "\n"
          << played;
    }
  });
  EXPECT_GT(groups, 300);
}

}  // namespace
}  // namespace prd::core_matrix_test
