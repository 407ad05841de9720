#include "worker/mesh/fetcher.h"

#include <utility>

namespace prd {

Fetcher::Fetcher(const Context& context, Instant now, Wanted wanted, std::uint64_t number)
    : context_(context),
      wanted_(std::move(wanted)),
      number_(number),
      replica_(context_.store, context_.plan, wanted_.what),
      silence_(now, context_.timeout) {}

void Fetcher::Request(bool out) {
  if (out) {
    failure_ = Status(Code::kUnavailable, RankName(wanted_.source.rank) + " is out");
    return;
  }
  const Result<std::string> endpoint = context_.peers->EndpointOf(wanted_.source);
  failure_ = endpoint.ok() ? context_.peers->Use(*endpoint) : endpoint.status();
  if (!failure_.ok()) return;
  endpoint_ = *endpoint;
  const FrameHeader header{.kind = FrameKind::kFetch,
                           .run = context_.run,
                           .group = number_,
                           .from = context_.self,
                           .to = wanted_.source.incarnation,
                           .stage = wanted_.what.alone ? kParametersAlone : 0,
                           .offset = wanted_.what.result};
  context_.peers->Send(endpoint_, header, SharedBytes());
}

bool Fetcher::Is(const FrameHeader& header) const {
  return header.group == number_ && header.from == wanted_.source.incarnation;
}

bool Fetcher::OnFrame(Instant now, const FrameHeader& header, SharedBytes payload) {
  if (!Is(header) || over()) return false;
  silence_.Progress(now);
  failure_ = replica_.OnFrame(header, std::move(payload));
  return true;
}

bool Fetcher::OnPong(Instant now, const FrameHeader& header) {
  const bool over = header.chunk == static_cast<std::uint32_t>(Answer::kOver);
  return Is(header) && silence_.Answered(now, 0, over);
}

void Fetcher::OnLost(const std::string& endpoint) {
  if (endpoint_ != endpoint || over()) return;
  failure_ = Status(Code::kUnavailable,
                    "the connection to " + RankName(wanted_.source.rank) + " was lost");
}

std::optional<std::string> Fetcher::Watch(Instant now) {
  if (over()) return std::nullopt;
  switch (silence_.Next(now)) {
    case Silence::Step::kWait:
      return std::nullopt;
    case Silence::Step::kAsk: {
      if (silence_.Ask(now, {0}).empty()) return std::nullopt;
      const FrameHeader ping =
          PingOf(Topic::kFetch, number_, context_.run, context_.self, wanted_.source.incarnation);
      (void)context_.peers->Signal(now, endpoint_, ping, SharedBytes());
      return std::nullopt;
    }
    case Silence::Step::kGiveUp:
      break;
  }
  const bool answered = silence_.silent().empty();
  failure_ = Status(answered ? Code::kNotFound : Code::kDeadlineExceeded,
                    RankName(wanted_.source.rank) +
                        (answered ? " has nothing more to send" : " sent nothing for too long"));
  return answered ? std::nullopt : std::optional(endpoint_);
}

std::optional<Instant> Fetcher::NextDeadline() const {
  return replica_.Complete() ? std::nullopt : std::optional(silence_.At());
}

}  // namespace prd
