#include "common/io/layout.h"

#include <bit>
#include <cstdio>
#include <cstdlib>

namespace prd {
namespace {

std::uint64_t Bits(capnp::schema::Value::Reader value) {
  switch (value.which()) {
    case capnp::schema::Value::BOOL:
      return value.getBool() ? 1 : 0;
    case capnp::schema::Value::INT32:
      return static_cast<std::uint32_t>(value.getInt32());
    case capnp::schema::Value::UINT32:
      return value.getUint32();
    case capnp::schema::Value::INT64:
      return static_cast<std::uint64_t>(value.getInt64());
    case capnp::schema::Value::UINT64:
      return value.getUint64();
    case capnp::schema::Value::FLOAT64:
      return std::bit_cast<std::uint64_t>(value.getFloat64());
    case capnp::schema::Value::ENUM:
      return value.getEnum();
    default:
      return 0;  // pointers: our schemas have no defaults of these
  }
}

// Offsets in a schema count values of the field's own size.
std::uint32_t UnitOf(capnp::Type type) {
  if (type.isInt32() || type.isUInt32()) return 4;
  if (type.isInt64() || type.isUInt64() || type.isFloat64()) return 8;
  return type.isEnum() ? 2 : 1;
}

}  // namespace

void Mismatch(capnp::StructSchema schema, const std::string& what) {
  std::fprintf(stderr, "%s: %s: a bug in prd\n", schema.getProto().getDisplayName().cStr(),
               what.c_str());
  std::abort();
}

capnp::StructSchema::Field FieldOf(capnp::StructSchema schema, const std::string& name) {
  std::string camel;  // the schema's case
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool word = name[i] == '_' && i + 1 < name.size();
    camel += word ? static_cast<char>(name[++i] - 'a' + 'A') : name[i];
  }
  KJ_IF_MAYBE (field, schema.findFieldByName(camel.c_str())) return *field;
  Mismatch(schema, "has no field " + camel);
}

Slot SlotOf(capnp::StructSchema::Field field) {
  const auto slot = field.getProto().getSlot();
  return {.at = slot.getOffset() * UnitOf(field.getType()), .mask = Bits(slot.getDefaultValue())};
}

void Binder::CheckAllAreNamed() const {
  for (const auto field : schema_.getFields()) {
    if (!named_.contains(field.getIndex())) {
      Mismatch(schema_, std::string("no struct has ") + field.getProto().getName().cStr());
    }
  }
}

}  // namespace prd
