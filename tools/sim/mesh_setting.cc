#include "tools/sim/mesh_setting.h"

#include <cmath>
#include <iterator>

namespace prd::sim::mesh {
namespace {

struct NamedPlan {
  const char* name;
  Plan plan;
};
const NamedPlan kPlans[] = {
    {"models", {}},
    {"ahead", {.by = GroupPlan{.members = Membership::kAhead}}},
    {"gradients", {.by = GroupPlan{.payload = Payload::kGradients}}},
    {"rounds", {.by = GroupPlan{.payload = Payload::kGradients, .any_time = true}}},
    {"background", {.by = GroupPlan{.any_time = true, .run_ahead = 1}}},
    {"changes", {.every = 8, .by = GroupPlan{.payload = Payload::kChange}}},
    {"neighbours", {.by = NeighbourPlan{}}},
};

}  // namespace

Setting Draw(Prng* prng) {
  const auto chance = [prng](double p) { return prng->Unit() < p; };
  Setting s;
  s.workers = 2 + prng->Below(5);
  s.hosts = 1 + prng->Below(s.workers);
  const double secured = prng->Unit();
  s.security = secured < 0.5    ? MeshSecurity::kNone
               : secured < 0.85 ? MeshSecurity::kAead
                                : MeshSecurity::kCurve;
  const NamedPlan& plan = kPlans[prng->Below(std::size(kPlans))];
  s.plan = plan.plan;
  s.plan_name = plan.name;
  constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
  for (std::size_t n = 1 + prng->Below(4); n > 0; --n) {
    s.shapes.push_back({kDTypes[prng->Below(4)], 1 + prng->Below(70)});
  }
  if (chance(0.5)) s.kept.push_back({kDTypes[prng->Below(4)], 1 + prng->Below(40)});
  s.chunk_bytes = std::size_t{8} << prng->Below(5);
  s.direct_bytes = chance(0.6) ? 0 : 1 << 16;
  s.exact = chance(0.5);
  if (chance(0.7)) s.breaks = 3 * prng->Unit();
  if (chance(0.5)) s.cuts = 2 * prng->Unit();
  if (chance(0.5)) s.kills = 1 * prng->Unit();
  if (chance(0.4)) s.freezes = 1 * prng->Unit();
  if (chance(0.15)) {  // kills alone
    s.breaks = s.cuts = s.freezes = 0;
    s.kills = 1;
  }
  if (chance(0.2)) s.early_bytes = 0;
  s.network.latency = static_cast<DurationNs>(5'000 + prng->Below(400'000));
  s.network.jitter = static_cast<DurationNs>(prng->Below(300'000));
  s.network.bytes_per_s = std::pow(10, 5 + 4 * prng->Unit());
  s.network.uplink_bytes_per_s = std::pow(10, 5 + 4 * prng->Unit());
  if (s.security == MeshSecurity::kAead && chance(0.5)) s.network.attacks = 0.05 * prng->Unit();
  s.devices = chance(0.6) ? 0 : chance(0.35) ? 1 : 0.5;
  s.intrudes = s.security != MeshSecurity::kCurve && chance(0.5);
  return s;
}

std::string Text(const Setting& setting) {
  static constexpr const char* kSecurities[] = {"none", "aead", "curve"};
  return std::to_string(setting.workers) + " workers on " + std::to_string(setting.hosts) +
         " hosts, " + setting.plan_name + ", mesh_security " +
         kSecurities[static_cast<std::size_t>(setting.security)] + ", chunks of " +
         std::to_string(setting.chunk_bytes) + " bytes" +
         (setting.direct_bytes != 0 ? ", direct" : "") + (setting.devices != 0 ? ", devices" : "") +
         (setting.exact ? ", exact" : "");
}

}  // namespace prd::sim::mesh
