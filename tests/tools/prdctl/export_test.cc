// Exports: other tools can read them, and they say what happened.
#include "tools/prdctl/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "tests/tools/prdctl/story.h"
#include "tools/prdctl/json.h"
#include "tools/prdctl/text.h"

namespace prd::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Format>
std::string Exported(const std::vector<Record>& records) {
  std::ostringstream out;
  Format exporter(&out);
  for (const Record& record : records) exporter.Add(record);
  exporter.Finish();
  return out.str();
}

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

const std::vector<Record>& RealRecords() {
  static const auto records =
      MakeRun(9, PReduceSpec(3),
              {.step_ns = {10 * kMs, 12 * kMs, 37 * kMs}, .steps = 12, .reduce_ns = 2 * kMs});
  return records;
}

TEST(JsonLinesTest, OneObjectPerRecordInOrder) {
  const auto lines = Lines(Exported<JsonLinesExporter>(RealRecords()));
  ASSERT_EQ(lines.size(), RealRecords().size());
  std::map<std::string, int> types;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Json json = Json::parse(lines[i]);
    EXPECT_EQ(json["index"], i);
    EXPECT_EQ(json["run"], 9);
    EXPECT_EQ(json["now_ns"], RealRecords()[i].now.ns);
    EXPECT_EQ(json["input"], IsInput(RealRecords()[i].body));
    ++types[json["type"].get<std::string>()];
  }
  for (const char* type : {"run_started", "hello", "worker_joined", "ready", "group_formed",
                           "finished", "group_ended", "finish", "worker_left", "run_ended"}) {
    EXPECT_GT(types[type], 0) << type;
  }
}

TEST(JsonLinesTest, BytesThatAreNotUtf8AreReplaced) {
  Story story;
  story.Write(WorkerJoined{.rank = 0, .host_name = "bad\xff\"name\n"});
  const auto lines = Lines(Exported<JsonLinesExporter>(story.records()));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(Json::parse(lines[1])["host_name"], "bad\xef\xbf\xbd\"name\n");
}

TEST(JsonLinesTest, WhatATerminalMayObeyIsEscaped) {
  const std::string text =
      "a\xc2\x9b"
      "b\xe2\x80\xae"
      "c\x7f\x1b d \xe2\x82\xac";
  const std::string dumped = Dump(Json{{"reason", text}});
  EXPECT_EQ(dumped, "{\"reason\":\"a\\u009bb\\u202ec\\u007f\\u001b d \xe2\x82\xac\"}");
  EXPECT_EQ(Json::parse(dumped)["reason"], text);
}

TEST(CsvTest, OneLinePerMember) {
  Story story;
  story.At(10).Signal(0, 1, 10).At(12).Signal(1, 1, 12);
  story.Form({{0, .25}, {1, .75}}).At(15).Report(0, 1, 2, 3).Report(1, 1, 0, 3).End(1);
  story.At(20).Form({{0, 1}}, GroupKind::kFinal).Report(0, 2, 0, 0, Outcome::kFailed);
  story.Write(GroupEnded{.id = 2, .ok = false, .reason = "a \"quoted\", reason"});
  EXPECT_THAT(
      Lines(Exported<CsvExporter>(story.records())),
      ElementsAre("group,kind,formed_s,ended_s,ok,group_iteration,rank,iteration,weight,ready_s,"
                  "step_s,wait_s,reduce_s,bytes,outcome,reason,failure,included,"
                  "local_steps,fetched_from,passive,conflict,run",
                  "1,train,0.012000000,0.015000000,true,0,0,0,0.25,0.010000000,0.010000000,"
                  "0.002000000,0.003000000,100,ok,because,,0,0,,false,false,1\r",
                  "1,train,0.012000000,0.015000000,true,0,1,0,0.75,0.012000000,0.012000000,"
                  "0.000000000,0.003000000,100,ok,because,,0,0,,false,false,1\r",
                  "2,final,0.020000000,0.020000000,false,0,0,0,1.0,,,0.000000000,0.000000000,100,"
                  "failed,because,\"a \"\"quoted\"\", reason\",0,0,,false,false,1\r"));
}

// A job that is switched: groups of each run have numbers from 1 on, and time goes on.
std::vector<Record> Switched() {
  Story first(3);
  first.At(10).Form({{0, 1}}).Report(0, 1, 0, 1).End(1);
  first.At(20).Write(WorkerLeft{.rank = 0}).Write(RunEnded{.reason = "the job goes on", .next = 5});
  Story second(5, "f");
  second.At(30).Join(0);
  second.At(40).Form({{0, 1}}).Report(0, 1, 0, 1).End(1);
  std::vector<Record> all = first.records();
  for (Record record : second.records()) {
    if (record.index == 0) record.now = {kSecond + 20 * kMs};
    all.push_back(std::move(record));
  }
  return all;
}

TEST(CsvTest, AJobThatWasSwitchedIsOne) {
  const auto lines = Lines(Exported<CsvExporter>(Switched()));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[1], HasSubstr("1,train,0.010000000,"));
  EXPECT_THAT(lines[1], testing::EndsWith(",3\r"));
  EXPECT_THAT(lines[2], HasSubstr("1,train,0.040000000,"));
  EXPECT_THAT(lines[2], testing::EndsWith(",5\r"));
}

TEST(TraceTest, AJobThatWasSwitchedIsOneProcess) {
  const Json trace = Json::parse(Exported<TraceExporter>(Switched()));
  std::set<int> processes;
  std::vector<std::pair<std::string, double>> switches;
  double last_reduce = 0;
  for (const Json& event : trace["traceEvents"]) {
    processes.insert(event["pid"].get<int>());
    const auto name = event["name"].get<std::string>();
    if (name.starts_with("switch")) switches.emplace_back(name, event["ts"].get<double>());
    if (name == "reduce") last_reduce = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_THAT(processes, ElementsAre(3));
  EXPECT_THAT(switches, ElementsAre(std::pair<std::string, double>("switch to f", 20'000)));
  EXPECT_DOUBLE_EQ(last_reduce, 40'000);
}

TEST(CsvTest, TextsOfWorkersComputeNothingAndMoveNoCursor) {
  for (const auto& [failure, cell] :
       std::map<std::string, std::string>{{"=1+1", "'=1+1"},
                                          {"+1", "'+1"},
                                          {"-1", "'-1"},
                                          {"@SUM(A1)", "'@SUM(A1)"},
                                          {"=HYPERLINK(\"x\",1)", "\"'=HYPERLINK(\"\"x\"\",1)\""},
                                          {"1=1", "1=1"},
                                          {"\r\n=1",
                                           "?"
                                           "?=1"},
                                          {"\xc2\x9b"
                                           "2J\xe2\x80\xae",
                                           "?2J?"}}) {
    Story story;
    story.At(20).Form({{0, 1}}, GroupKind::kFinal).Report(0, 1, 0, 0, Outcome::kFailed);
    story.Write(GroupEnded{.id = 1, .ok = false, .reason = failure});
    EXPECT_THAT(Lines(Exported<CsvExporter>(story.records())).back(),
                HasSubstr(",because," + cell + ",0,0,"));
  }
}

TEST(TraceTest, EveryWorkerIsAThreadOfComputeWaitAndReduceSlices) {
  const Json trace = Json::parse(Exported<TraceExporter>(RealRecords()));
  EXPECT_EQ(trace["otherData"]["job"], "mnist");
  struct Thread {
    std::string name;
    double busy_until = 0;
    std::map<std::string, double> length;
    std::map<std::string, int> count;
  };
  std::map<int, Thread> threads;
  std::string process;
  for (const Json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 9);
    if (event["name"] == "process_name") {
      process = event["args"]["name"].get<std::string>();
      continue;
    }
    Thread& thread = threads[event["tid"].get<int>()];
    if (event["name"] == "thread_name") thread.name = event["args"]["name"].get<std::string>();
    if (event["ph"] != "X") continue;
    // A thread's slices must not overlap, or Perfetto nests or drops them.
    EXPECT_GE(event["ts"].get<double>(), thread.busy_until - 1e-3);
    EXPECT_GT(event["dur"].get<double>(), 0);
    thread.busy_until = event["ts"].get<double>() + event["dur"].get<double>();
    thread.length[event["name"].get<std::string>()] += event["dur"].get<double>();
    ++thread.count[event["name"].get<std::string>()];
  }
  EXPECT_EQ(process, "mnist (p-reduce, run 9)");
  ASSERT_EQ(threads.size(), 3u);
  const std::map<int, double> step_us = {{0, 10'000}, {1, 12'000}, {2, 37'000}};
  for (auto& [rank, thread] : threads) {
    EXPECT_THAT(thread.name, HasSubstr("rank " + std::to_string(rank) + " (host"));
    EXPECT_GT(thread.count["compute"], 2);
    EXPECT_NEAR(thread.length["compute"] / thread.count["compute"], step_us.at(rank), 1);
    EXPECT_NEAR(thread.length["reduce"] / thread.count["reduce"], 2000, 1);
  }
  EXPECT_GT(threads[0].count["wait"], 0);
}

TEST(TraceTest, OverlapsOfMessagesOnTheirWayAreCut) {
  Story story;
  story.At(10).Signal(0, 1, 10).Signal(1, 1, 10).Form({{0, .5}, {1, .5}});
  // Says it reduced for longer than since its signal, then computed since before its report.
  story.At(20).Report(0, 1, 5, 15).At(25).Signal(0, 2, 9);
  const Json trace = Json::parse(Exported<TraceExporter>(story.records()));
  std::vector<std::string> slices;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] != 0) continue;
    slices.push_back(event["name"].get<std::string>() + " " + Number(event["ts"].get<double>(), 0) +
                     "+" + Number(event["dur"].get<double>(), 0));
  }
  EXPECT_THAT(slices, ElementsAre("compute 0+10000", "reduce 10000+10000", "compute 20000+5000"));
}

TEST(TraceTest, AHistoryWithoutRecordsIsStillATrace) {
  EXPECT_EQ(Json::parse(Exported<TraceExporter>({}))["traceEvents"].size(), 0u);
}

// ---- text ----

TEST(TextTest, Durations) {
  EXPECT_EQ(*ParseDuration("90"), 90 * kSecond);
  EXPECT_EQ(*ParseDuration("1.5h"), 5400 * kSecond);
  EXPECT_EQ(*ParseDuration("250ms"), 250 * kMs);
  for (const char* wrong : {"", "s", "-1s", "5d", "1e30h", "nan", "inf", "5m2"}) {
    EXPECT_EQ(ParseDuration(wrong).status().code(), Code::kInvalidArgument) << wrong;
  }
}

TEST(TextTest, TablesAlignAndDisarmWhatWorkersSay) {
  Table table({{"N", Table::Align::kRight}, {"TEXT"}, {"LAST"}});
  table.Add({"1", "a", "x"});
  table.Add({"10", "b\x1b[2J", ""});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), " N  TEXT   LAST\n 1  a      x\n10  b?[2J  -\n");
}

TEST(TextTest, WallTime) { EXPECT_EQ(WallTime(1'700'000'000 * kSecond), "2023-11-14 22:13:20"); }

}  // namespace
}  // namespace prd::ctl
