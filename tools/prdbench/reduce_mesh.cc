// Teams of processes that run the worker library's data plane.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "tools/prdbench/reduce_team.h"
#include "worker/mesh/mesh.h"

namespace prd::bench {
namespace {

Instant Now() {
  return {std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1)};
}

std::uint64_t Random() {
  std::random_device device;
  return (std::uint64_t{device()} << 32 | device()) | 1;
}

// One worker: reads commands from `in`, a line each, and answers on `out`.
//   peer RANK INCARNATION ENDPOINT     where to find a member
//   reduce GROUP BYTES RANK,RANK,...   answered by "START END" or an error
class MeshWorker : public MeshEvents {
 public:
  MeshWorker(int rank, std::size_t max_bytes, bool tcp, int in, int out)
      : rank_(rank), host_(tcp ? "host-" + std::to_string(rank) : "host"), in_(in), out_(out) {
    values_.assign(max_bytes / sizeof(float) + 1, static_cast<float>(rank));
  }

  int Run() {
    Mesh::Options options;
    options.incarnation = Random();
    options.host = host_;
    Result<std::unique_ptr<Mesh>> mesh = Mesh::Create(&context_, options, &store_, this);
    if (!mesh.ok()) {
      Say(mesh.status().ToString());
      return 1;
    }
    mesh_ = std::move(*mesh);
    store_.parameters =
        Row(values_.size() * sizeof(float));  // as a session knows it from the start
    mesh_->JoinRun(1, {});
    std::string hello = std::to_string(options.incarnation);
    for (const std::string& endpoint : mesh_->endpoints()) hello += " " + endpoint;
    Say(hello);
    while (Turn()) {
    }
    return 0;
  }

  void OnReduced(GroupId, const Status& status, std::uint64_t) override {
    Say(status.ok() ? std::to_string(start_.ns) + " " + std::to_string(Now().ns)
                    : status.ToString());
  }
  void OnFetched(const Status&, Iteration) override {}

 private:
  Layout Row(std::size_t bytes) {
    return Layout({{values_.data(), bytes / sizeof(float), DType::kF32}});
  }

  void Say(const std::string& line) {
    const std::string text = line + "\n";
    if (write(out_, text.data(), text.size()) < 0) std::_Exit(1);
  }

  bool Turn() {
    mesh_->Service(Now());
    std::vector<zmq::pollitem_t> items{{nullptr, in_, ZMQ_POLLIN, 0}};
    mesh_->AppendPollItems(&items);
    std::chrono::milliseconds wait{-1};
    if (const auto deadline = mesh_->NextDeadline()) {
      wait = std::chrono::milliseconds(
          std::max<std::int64_t>(0, (*deadline - Now()) / kMillisecond + 1));
      if (*deadline <= Now()) wait = std::chrono::milliseconds(0);
    }
    zmq::poll(items, wait);
    if (items[0].revents == 0) return true;
    char buffer[4096];
    const ssize_t got = read(in_, buffer, sizeof buffer);
    if (got <= 0) return false;
    pending_.append(buffer, static_cast<std::size_t>(got));
    for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      Obey(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    return true;
  }

  void Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "peer") {
      GroupMember member;
      std::string endpoint;
      words >> member.rank >> member.incarnation >> member.host;
      while (words >> endpoint) member.endpoints.push_back(endpoint);
      peers_.push_back(member);
      return;
    }
    start_ = Now();
    Group group;
    std::size_t bytes = 0;
    words >> group.id >> bytes;
    for (std::size_t rank = 0; words >> rank;) group.members.push_back(peers_.at(rank));
    for (GroupMember& member : group.members.Mutable()) {
      member.weight = 1.0 / static_cast<double>(group.members.size());
    }
    store_.parameters = Row(bytes);
    mesh_->StartReduce(start_, group);
  }

  int rank_;
  std::string host_;
  int in_;
  int out_;
  std::vector<float> values_;
  ReplicaStore store_;
  zmq::context_t context_;
  std::unique_ptr<Mesh> mesh_;
  std::vector<GroupMember> peers_;
  std::string pending_;
  Instant start_;
};

class MeshTeam : public Team {
 public:
  Status Start(int workers, std::size_t max_bytes, bool tcp) {
    for (int rank = 0; rank < workers; ++rank) {
      int down[2];
      int up[2];
      if (pipe(down) != 0 || pipe(up) != 0) return Status(Code::kUnavailable, "no more pipes");
      std::fflush(nullptr);
      const pid_t pid = fork();
      if (pid < 0) return Status(Code::kUnavailable, "no more processes");
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(down[1]);
        close(up[0]);
        std::_Exit(MeshWorker(rank, max_bytes, tcp, down[0], up[1]).Run());
      }
      close(down[0]);
      close(up[1]);
      children_.emplace_back(pid, down[1], up[0]);
    }
    for (int rank = 0; rank < workers; ++rank) {
      Result<std::string> hello = children_[static_cast<std::size_t>(rank)].ReadLine(60'000);
      if (!hello.ok()) return hello.status();
      std::istringstream words(*hello);
      std::string incarnation;
      std::string rest;
      words >> incarnation;
      std::getline(words, rest);
      const std::string host = tcp ? "host-" + std::to_string(rank) : "host";
      for (Child& child : children_) {
        PRD_RETURN_IF_ERROR(child.WriteLine("peer " + std::to_string(rank) + " " + incarnation +
                                            " " + host + rest));
      }
    }
    return Status::Ok();
  }

  Result<double> Reduce(const std::vector<int>& members, std::size_t bytes) override {
    std::string line = "reduce " + std::to_string(++groups_) + " " + std::to_string(bytes);
    for (const int rank : members) line += " " + std::to_string(rank);
    for (const int rank : members) {
      PRD_RETURN_IF_ERROR(children_[static_cast<std::size_t>(rank)].WriteLine(line));
    }
    return Span(&children_, members);
  }

 private:
  std::vector<Child> children_;
  std::uint64_t groups_ = 0;
};

}  // namespace

Result<std::unique_ptr<Team>> StartMeshTeam(int workers, std::size_t max_bytes, bool tcp) {
  auto team = std::make_unique<MeshTeam>();
  PRD_RETURN_IF_ERROR(team->Start(workers, max_bytes, tcp));
  return std::unique_ptr<Team>(std::move(team));
}

}  // namespace prd::bench
