#include "config/engines_json.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/plan.h"
#include "engines/any_engine.h"

namespace prd {
namespace {

using Json = nlohmann::ordered_json;

Json NamesOf(Field::Names names) {
  Json all = Json::array();
  for (const std::string_view name : names) all.push_back(name);
  return all;
}

class JsonLister final : public Fields {
 public:
  void Table(std::string_view, bool, std::string_view,
             const std::function<void(Fields&)>& describe) override {
    describe(*this);
  }
  void Check(const Status&) override {}

  const Json& keys() const { return keys_; }

  Json operator()(const Field::Text& of) { return {{"type", "text"}, {"default", *of.value}}; }
  Json operator()(const Field::Flag& of) { return {{"type", "flag"}, {"default", *of.value}}; }
  Json operator()(const Field::Whole& of) {
    Json json = {{"type", "whole"},       {"default", *of.value},  {"least", of.range.least},
                 {"most", of.range.most}, {"unit", of.range.unit}, {"names", Json::array()}};
    for (const Field::NamedNumber& named : of.names) {
      json["names"].push_back(named.name);
      if (named.value == *of.value) json["default"] = named.name;
    }
    return json;
  }
  Json operator()(const Field::Real& of) {
    return {{"type", "real"},
            {"default", *of.value},
            {"least", of.range.least},
            {"below", of.range.below}};
  }
  Json operator()(const Field::Name& of) {
    return {{"type", "name"}, {"default", of.names[*of.value]}, {"names", NamesOf(of.names)}};
  }
  Json operator()(const Field::NameOrPairs& of) {
    return {{"type", "name or pairs"},
            {"default", of.names[*of.value]},
            {"names", NamesOf(of.names)},
            {"least", of.least},
            {"most", of.most}};
  }

 protected:
  void Add(const Field& field) override {
    Json json = {{"key", field.key}};
    json.update(std::visit(*this, field.kind));
    json["help"] = field.help;
    keys_.push_back(std::move(json));
  }

 private:
  Json keys_ = Json::array();
};

std::string_view Words(Payload payload) {
  switch (payload) {
    case Payload::kParameters:
      return "parameters";
    case Payload::kGradients:
      return "gradients";
    case Payload::kChange:
      return "changes";
  }
  return "";
}

Json FactsOf(const Plan& plan) {
  Json facts = {{"trains_in_groups", TrainsInGroups(plan)},
                {"trains_in_rounds", TrainsInRounds(plan)},
                {"drawn_ahead", DrawnAhead(plan)},
                {"needs_gradients", NeedsGradients(plan)},
                {"reduces", nullptr}};
  if (TrainsInGroups(plan)) facts["reduces"] = Words(ReducedInTraining(plan).payload);
  return facts;
}

}  // namespace

std::string EnginesJson() {
  Json engines = Json::array();
  for (EngineOptions options : AllEngines()) {
    const EngineAbout& about = options.about();
    JsonLister lister;
    options.Describe(lister);
    engines.push_back({{"name", about.name},
                       {"paper", about.paper},
                       {"help", about.help},
                       {"plan", FactsOf(MakeEngine(options)->plan())},
                       {"keys", lister.keys()}});
  }
  return Json{{"engines", std::move(engines)}}.dump(2) + "\n";
}

}  // namespace prd
