#include "engines/registry.h"

#include "engines/ad_psgd/ad_psgd.h"
#include "engines/all_reduce/all_reduce.h"
#include "engines/backup/backup.h"
#include "engines/eager/eager.h"
#include "engines/esync/esync.h"
#include "engines/hop/hop.h"
#include "engines/p_reduce/p_reduce.h"
#include "engines/prague/prague.h"
#include "engines/ssp/ssp.h"

namespace prd {

namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

std::string_view EngineName(const EngineOptions& options) {
  return std::visit(Overloaded{
                        [](const AllReduceOptions&) { return std::string_view("all-reduce"); },
                        [](const PReduceOptions&) { return std::string_view("p-reduce"); },
                        [](const EagerOptions&) { return std::string_view("eager"); },
                        [](const BackupOptions&) { return std::string_view("backup"); },
                        [](const EsyncOptions&) { return std::string_view("esync"); },
                        [](const PragueOptions&) { return std::string_view("prague"); },
                        [](const AdPsgdOptions&) { return std::string_view("ad-psgd"); },
                        [](const HopOptions&) { return std::string_view("hop"); },
                        [](const SspOptions&) { return std::string_view("ssp"); },
                    },
                    options);
}

std::vector<EngineOptions> AllEngines() {
  return {AllReduceOptions{}, PReduceOptions{}, EagerOptions{}, BackupOptions{}, EsyncOptions{},
          PragueOptions{},    AdPsgdOptions{},  HopOptions{},   SspOptions{}};
}

Status Validate(const EngineOptions& options, int workers) {
  return std::visit([workers](const auto& of) { return Validate(of, workers); }, options);
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) {
  using Made = std::unique_ptr<Engine>;
  return std::visit(
      Overloaded{
          [](const AllReduceOptions& of) -> Made { return std::make_unique<AllReduce>(of); },
          [](const PReduceOptions& of) -> Made { return std::make_unique<PReduce>(of); },
          [](const EagerOptions& of) -> Made { return std::make_unique<Eager>(of); },
          [](const BackupOptions& of) -> Made { return std::make_unique<Backup>(of); },
          [](const EsyncOptions& of) -> Made { return std::make_unique<Esync>(of); },
          [](const PragueOptions& of) -> Made { return std::make_unique<Prague>(of); },
          [](const AdPsgdOptions& of) -> Made { return std::make_unique<AdPsgd>(of); },
          [](const HopOptions& of) -> Made { return std::make_unique<Hop>(of); },
          [](const SspOptions& of) -> Made { return std::make_unique<Ssp>(of); },
      },
      options);
}

}  // namespace prd
