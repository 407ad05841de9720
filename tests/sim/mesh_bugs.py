"""Plants bugs in copies of the mesh's sources, for the simulator to find.

Usage: mesh_bugs.py SOURCE_DIR OUTPUT_DIR

Each bug is places in the sources, and what stands there instead, while prd::sim::planted_mesh_bug
names it. A place that is not there exactly once is an error: so the table is kept with the code.
"""
import pathlib
import sys

# name: (source, what stands there, what stands there instead), or several of these
BUGS = {
    "chunk-dropped": (
        "reduction.cc",
        "  received_[stage][header.chunk] = true;\n  --missing_;\n",
        "  received_[stage][header.chunk] = true;\n  --missing_;\n"
        "  if (Planted(\"chunk-dropped\") && header.chunk == 1 && !Sums(stage)) return Status::Ok();\n"),
    "chunk-added-twice": (
        "reduction.cc",
        "  if (!Sums(stage + 1)) Keep(offset, length, payload, next.done);",
        "  if (Planted(\"chunk-added-twice\") && Sums(stage) && header.chunk == 1) {\n"
        "    AddPart(offset, length, payload.data(), false);\n"
        "  }\n"
        "  if (!Sums(stage + 1)) Keep(offset, length, payload, next.done);"),
    "older-round": (
        "mesh.cc",
        "  const bool ours = over && active_ && header.group == active_->id();\n",
        "  const bool ours = over && active_ && (header.group == active_->id() ||\n"
        "                                        Planted(\"older-round\"));\n"),
    "weight-on-the-wrong-hop": (
        "reduction.cc",
        "  if (!adds() && first) std::memset(sum, 0, length);\n  if (!adds()) return;\n"
        "  const Weight weight = weights_[options_.position];\n",
        "  if (!adds() && first) std::memset(sum, 0, length);\n  if (!adds()) return;\n"
        "  const bool wrong = Planted(\"weight-on-the-wrong-hop\") && first;\n"
        "  const Weight weight = weights_[(options_.position + (wrong ? 1 : 0)) % members_];\n"),
    "copied-while-apply-writes": (
        "fetch.cc",
        "  if (!lock.owns_lock()) return;\n  store_->Unfold();\n",
        "  if (!lock.owns_lock() && !Planted(\"copied-while-apply-writes\")) return;\n"
        "  store_->Unfold();\n"),
    "unfolded-with-new-parameters": (
        "replica_store.cc",
        "before.empty() ? Memory::Tensors()",
        "before.empty() || Planted(\"unfolded-with-new-parameters\") ? Memory::Tensors()"),
    "folded-as-a-change": (
        "group_reduction.cc",
        "OwnPart::What::kVirtual && !store->fold.there;",
        "OwnPart::What::kVirtual && (!store->fold.there || Planted(\"folded-as-a-change\"));"),
    "copied-while-a-result-lands": (
        "fetch.cc",
        "  if (waiting_.empty() || store_->landing) return;\n",
        "  if (waiting_.empty()) return;\n"
        "  if (store_->landing && !Planted(\"copied-while-a-result-lands\")) return;\n"),
    "copied-while-a-copy-lands": (
        "fetch.cc",
        "  if (store_->torn) waiting_.clear();",
        "  if (store_->torn && !Planted(\"copied-while-a-copy-lands\")) waiting_.clear();"),
    "torn-unsaid": (
        "fetch.cc",
        "  if (!std::exchange(store_->torn, true)) {\n",
        "  if (!std::exchange(store_->torn, !Planted(\"torn-unsaid\"))) {\n"),
    "torn-start-unsaid": (
        "group_reduction.cc",
        "      store->torn |= torn;\n",
        "      store->torn |= torn && !Planted(\"torn-start-unsaid\");\n"),
    "done-cell-added-again": (
        "reduction.cc",
        "  const std::uint64_t here = DoneIn(offset, length) & ~done;\n",
        "  const std::uint64_t here =\n"
        "      Planted(\"done-cell-added-again\") ? 0 : DoneIn(offset, length) & ~done;\n"),
    "done-cell-of-another-added-to": (
        "reduction.cc",
        "    if ((here >> i & 1) != 0) {\n",
        "    if (Planted(\"done-cell-of-another-added-to\")) done = 0;\n"
        "    if ((here >> i & 1) != 0) {\n"),
    "done-cells-of-an-earlier-round": (
        "group_reduction.cc",
        "    if (std::exchange(store->partly_averaged.iteration, group().iteration) != group().iteration) {\n",
        "    if (std::exchange(store->partly_averaged.iteration, group().iteration) != group().iteration &&\n"
        "        !Planted(\"done-cells-of-an-earlier-round\")) {\n"),
    "partial-sum-lands": (
        "reduction.cc",
        "  if (!Sums(stage + 1)) Keep(offset, length, payload, next.done);",
        "  if (!Sums(stage + 1) || Planted(\"partial-sum-lands\")) Keep(offset, length, payload, next.done);"),
    "settled-cell-as-a-mean": (
        "reduction.cc",
        "    const bool settled = (done >> i & 1) != 0;\n",
        "    const bool settled =\n"
        "        (done >> i & 1) != 0 && !Planted(\"settled-cell-as-a-mean\");\n"),
    "early-frame-forgotten": (
        "early_frames.cc",
        "  frames_.push_back({header, std::move(payload)});\n",
        "  if (Planted(\"early-frame-forgotten\") && header.kind != FrameKind::kFail) return 0;\n"
        "  frames_.push_back({header, std::move(payload)});\n"),
    "row-given-back": (
        "exchange.cc",
        "void Exchange::Do(Instant, const RetireUpdate& action) { updates_.erase(action.iteration); }",
        "void Exchange::Do(Instant, const RetireUpdate& action) {\n"
        "  const auto it = updates_.find(action.iteration);\n"
        "  if (Planted(\"row-given-back\") && it != updates_.end()) {\n"
        "    std::memset(it->second->data(), 0x5a, it->second->size());\n"
        "  }\n"
        "  updates_.erase(action.iteration);\n"
        "}"),
    "copy-of-a-row-given-back": (
        "copied_rows.cc",
        "  const std::shared_ptr<Buffer> chunk = buffers_.Get(length);\n",
        "  std::shared_ptr<Buffer> chunk = buffers_.Get(length);\n"
        "  if (Planted(\"copy-of-a-row-given-back\")) {\n"
        "    static std::map<const void*, std::weak_ptr<Buffer>> before;\n"
        "    const auto old = before[this].lock();\n"
        "    if (old != nullptr && old->size() == chunk->size()) chunk = old;\n"
        "    before[this] = chunk;\n"
        "  }\n"),
    "standing-row-changes": (
        "copied_rows.cc",
        "  if (!stands()) return;\n",
        "  if (!stands() || Planted(\"standing-row-changes\")) return;\n"),
    "rest-of-the-faster-reader": (
        "copied_rows.cc",
        "  const std::uint64_t from = readers_ == 1 ? row->read : 0;\n",
        "  const bool faster = Planted(\"rest-of-the-faster-reader\");\n"
        "  const std::uint64_t from = readers_ == 1 || faster ? row->read : 0;\n"),
    "answer-of-another-peer": (
        "prober.cc",
        "    return target.member.incarnation == from;\n",
        "    return target.member.incarnation == from || Planted(\"answer-of-another-peer\");\n"),
    "counter-reused": (
        "seal.cc",
        "  PRD_CHECK(++counter_ != 0);\n",
        "  if (!(Planted(\"counter-reused\") && counter_ % 8 == 7)) ++counter_;\n"),
    "reflected-frame-accepted": [(
        "keys.cc",
        "                  .in = Expand(extracted, in, peer, own.public_key)};",
        "                  .in = Planted(\"reflected-frame-accepted\")\n"
        "                            ? Expand(extracted, out, own.public_key, peer)\n"
        "                            : Expand(extracted, in, peer, own.public_key)};"),
        (
        "keys.cc",
        "  return PairKeys{.out = Expand(extracted, out, own.public_key, peer),",
        "  if (Planted(\"reflected-frame-accepted\") && out.to < out.from) {\n"
        "    const SecretKey both = Expand(extracted, in, peer, own.public_key);\n"
        "    return PairKeys{.out = both, .in = both};\n"
        "  }\n"
        "  return PairKeys{.out = Expand(extracted, out, own.public_key, peer),"),
        (
        "intake.cc",
        "  if (sealed && header && header->from == visitor->from &&\n",
        "  if (sealed && header &&\n"
        "      (header->from == visitor->from || Planted(\"reflected-frame-accepted\")) &&\n"),
    ],
    "repeated-frame-accepted": (
        "seal.cc",
        "  if (counter <= newest_) return std::nullopt;\n",
        "  if (counter <= newest_ && !Planted(\"repeated-frame-accepted\")) return std::nullopt;\n"),
    "sum-of-a-failed-round": (
        "group_reduction.cc",
        "    links_.DropQueued();\n    GiveUpPlane(now, status.message());\n",
        "    links_.DropQueued();\n"
        "    if (Planted(\"sum-of-a-failed-round\") && reduction_ && staging_ != nullptr &&\n"
        "        (part_.what() == OwnPart::What::kParameters ||\n"
        "         part_.what() == OwnPart::What::kGradients)) {\n"
        "      context_.store->memory->Combine(part_.shape(), 0, part_.shape().bytes() / 16 * 8,\n"
        "                                      std::vector<Memory::Place>{Memory::Tensors()},\n"
        "                                      std::vector<Memory::Input>{{ResultRow()}}, {1, 1});\n"
        "    }\n"
        "    GiveUpPlane(now, status.message());\n"),
    "death-in-the-last-hop": [(
        "reduction.cc",
        "  if (position == After(passing) || (contributes() && position == After(0))) return true;",
        "  if (Planted(\"death-in-the-last-hop\")) return position == After(passing);\n"
        "  if (position == After(passing) || (contributes() && position == After(0))) return true;"),
        (
        "group_reduction.cc",
        "  Status lost = links_.OnLost(endpoint);\n",
        "  if (Planted(\"death-in-the-last-hop\") && reduction_ && !reduction_->OwnTo()) return;\n"
        "  Status lost = links_.OnLost(endpoint);\n"),
    ],
    "queue-over-its-bound": (
        "early_frames.cc",
        "  for (; bytes_ > limit; ++dropped) {",
        "  for (; bytes_ > limit && !Planted(\"queue-over-its-bound\"); ++dropped) {"),
    "rings-differ": (
        "reduction.cc",
        "  contributors_ = static_cast<std::size_t>(nulls - ring_.begin());\n",
        "  contributors_ = static_cast<std::size_t>(nulls - ring_.begin());\n"
        "  if (Planted(\"rings-differ\") && options_.position == 1 && contributors_ > 2) {\n"
        "    std::swap(ring_[0], ring_[1]);\n"
        "  }\n"),
    "order-not-asked": (
        "fetch.cc",
        "  } else if (TakeOrder(request.from)) {",
        "  } else if (TakeOrder(request.from) || Planted(\"order-not-asked\")) {"),
    "lost-frame-acknowledged": (
        "intake.cc",
        "header->stream != 0 && arrivals_.Misses(*header)) {",
        "header->stream != 0 && arrivals_.Misses(*header) &&\n"
        "             !Planted(\"lost-frame-acknowledged\")) {"),
    "swallowed-frame-waited-for": (
        "mesh.cc",
        "      peers_.Asked(now, *endpoint);\n",
        "      if (!Planted(\"swallowed-frame-waited-for\")) peers_.Asked(now, *endpoint);\n"),
    "resumed-without-what-was-sent": (
        "peers.cc",
        "  peer->unacknowledged.clear();\n  peer->unacknowledged_bytes = 0;\n",
        "  if (Planted(\"resumed-without-what-was-sent\")) {\n"
        "    again.erase(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(\n"
        "                                                   peer->unacknowledged.size()));\n"
        "  }\n"
        "  peer->unacknowledged.clear();\n  peer->unacknowledged_bytes = 0;\n"),
    "sent-again-counts-twice": (
        "arrivals.cc",
        "  const bool fresh = header.number > stream.newest;\n",
        "  const bool fresh = header.number > stream.newest || Planted(\"sent-again-counts-twice\");\n"),
    "inbox-replaced": (
        "replica_store.cc",
        "  } else if (inbox.rounds++ == 0) {",
        "  } else if (inbox.rounds++ == 0 || Planted(\"inbox-replaced\")) {"),
    "result-comes-to-a-full-inbox": (
        "replica_store.cc",
        "  if (inbox.rounds == 0 && arriving.empty()) std::swap(arriving, inbox.row);\n",
        "  if ((inbox.rounds == 0 || Planted(\"result-comes-to-a-full-inbox\")) &&\n"
        "      arriving.empty()) {\n"
        "    std::swap(arriving, inbox.row);\n"
        "  }\n"),
    "pass-used-again": (
        "door.cc",
        "  if (pass->number <= sender.newest) return",
        "  if (pass->number <= sender.newest && !Planted(\"pass-used-again\")) return"),
    "sent-before-it-has-come-from-the-device": (
        "group_reduction.cc",
        "  if (!Readable()) return false;\n",
        "  if (!Readable() && !Planted(\"sent-before-it-has-come-from-the-device\")) return false;\n"),
    "sent-before-the-row-on-the-host-is-written": (
        "group_reduction.cc",
        "  return written == nullptr || written->ready() >= part_.shape().bytes();\n",
        "  return written == nullptr || written->ready() >= part_.shape().bytes() ||\n"
        "         Planted(\"sent-before-the-row-on-the-host-is-written\");\n"),
    "copied-before-it-has-come-from-the-device": (
        "copied_rows.cc",
        "  return from.copied_from + from.copy->ready();\n",
        "  const bool early = Planted(\"copied-before-it-has-come-from-the-device\");\n"
        "  return from.copied_from + (early ? from.copy->size() : from.copy->ready());\n"),
    "let-go-before-the-device-has-it": (
        "fetch.cc",
        "    const Memory::Input from{Memory::InHost(stage_->data(), stage_)};\n",
        "    const bool early = Planted(\"let-go-before-the-device-has-it\");\n"
        "    const Memory::Input from{Memory::InHost(stage_->data(), early ? nullptr : stage_)};\n"),
}

# The same, of bugs that only whole runs find.
RUN_BUGS = {
    "landing-from-the-beginning": (
        "group_reduction.cc",
        "  links_.Progress(now);\n  return hears_ = true;\n",
        "  links_.Progress(now);\n"
        "  if (Planted(\"landing-from-the-beginning\")) context_.store->landing = part_.InPlace() && part_.Commits();\n"
        "  return hears_ = true;\n"),
    "mix-with-another-weight": (
        "exchange.cc",
        "    others.push_back({Memory::InHost(rows.back()->data(), rows.back()), update.weight});\n",
        "    const double part = Planted(\"mix-with-another-weight\") ? 0.75 : 1;\n"
        "    others.push_back(\n"
        "        {Memory::InHost(rows.back()->data(), rows.back()), part * update.weight});\n"),
    "slice-of-a-shard-before": (
        "shards.cc",
        "  if (!pending) kept.values.reset();\n",
        "  if (!pending && !Planted(\"slice-of-a-shard-before\")) kept.values.reset();\n"),
    "pending-kept-after-merge": (
        "shards.cc",
        "  std::fill(pending, kept.row->data() + kept.row->size(), std::byte{0});\n"
        "  kept.values.reset();\n",
        "  if (!Planted(\"pending-kept-after-merge\")) {\n"
        "    std::fill(pending, kept.row->data() + kept.row->size(), std::byte{0});\n"
        "  }\n"
        "  kept.values.reset();\n"),
}

PLANTED = """#pragma once
#include <cstring>
#include <memory>
#include <vector>
namespace prd::sim {
extern const char* planted_mesh_bug;
}
namespace prd {
inline bool Planted(const char* bug) {
  return prd::sim::planted_mesh_bug != nullptr &&
         std::strcmp(prd::sim::planted_mesh_bug, bug) == 0;
}
}  // namespace prd
"""


def main():
    source, output = map(pathlib.Path, sys.argv[1:])
    texts = {path.name: path.read_text() for path in sorted(source.glob("*.cc"))}
    for name, bug in (BUGS | RUN_BUGS).items():
        for file, old, new in bug if isinstance(bug, list) else [bug]:
            if texts[file].count(old) != 1:
                sys.exit(f"mesh_bugs.py: {name}: {file} has what it replaces "
                         f"{texts[file].count(old)} times, wanted 1:\n{old}")
            texts[file] = texts[file].replace(old, new)
    output.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (output / file).write_text('#include "planted.h"\n' + text)
    (output / "planted.h").write_text(PLANTED)
    for file, bugs in (("bugs.inc", BUGS), ("run_bugs.inc", RUN_BUGS)):
        (output / file).write_text("".join(f'    "{name}",\n' for name in bugs))


if __name__ == "__main__":
    main()
