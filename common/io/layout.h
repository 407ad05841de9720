// Where the fields of described structs (common/base/visit.h) are in their Cap'n Proto structs: for
// the codec only. Offsets and defaults come from the compiled schema, by the fields' names, once,
// before the first message; a description and a schema that differ end the process.
#ifndef PRD_COMMON_IO_LAYOUT_H_
#define PRD_COMMON_IO_LAYOUT_H_

#include <capnp/schema.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/messages.h"
#include "common/base/shared_list.h"
#include "common/base/time.h"
#include "common/base/visit.h"

namespace prd {

// ---- kinds of fields ----

template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// Two fields of the schema, with High and Low after the name.
template <typename T>
concept Halves = std::same_as<T, RunIdentity> || std::same_as<T, LinkToken>;

template <typename T>
concept List = std::same_as<T, std::vector<typename T::value_type>> ||
    std::same_as<T, SharedList<typename T::value_type>>;

// A std::variant, or a class that derives from one: the schema's unnamed union.
template <typename... Kinds>
std::variant<Kinds...> VariantOf(const std::variant<Kinds...>& variant);
template <typename T>
concept Union = requires(const T& value) {
  VariantOf(value);
};
template <Union T>
using Variant = decltype(VariantOf(std::declval<const T&>()));

// ---- layouts ----

struct Slot {
  std::uint32_t at = 0;    // a byte of the data section, a bit if it is a bool, or a pointer
  std::uint64_t mask = 0;  // the schema's default, which is stored as zero
};

inline constexpr std::size_t kMaxWords = 32;  // of a data section
struct StructLayout {
  bool known = false;
  std::uint16_t words = 0;  // of the data section
  std::uint16_t pointers = 0;
  std::vector<Slot> slots;  // of its fields, in the order of Visit; a union has none
};
template <typename T>
inline StructLayout layout_of;

// A kind in a union.
struct KindLayout {
  std::uint16_t tag = 0;
  // In a struct of its own, to which this pointer points. Otherwise it has no field, or its one
  // field is in the struct of the union.
  bool apart = false;
  std::uint32_t at = 0;
};

template <Union T>
struct UnionLayout {
  static inline std::uint32_t tag_at = 0;  // a byte of the data section
  static inline std::array<KindLayout, std::variant_size_v<Variant<T>>> kinds;
};

template <typename E>
requires std::is_enum_v<E>
struct EnumLayout {
  static inline std::uint16_t last = 0;  // its highest value
};

// ---- from the schema ----

// Ends the process.
[[noreturn]] void Mismatch(capnp::StructSchema schema, const std::string& what);
capnp::StructSchema::Field FieldOf(capnp::StructSchema schema, const std::string& name);
Slot SlotOf(capnp::StructSchema::Field field);

template <typename T>
void Bind(capnp::StructSchema schema);

// Whether a T is stored as this type; learns the layouts of what is in a T.
template <typename T>
bool Fits(capnp::Type type, FieldTraits traits) {
  if constexpr (std::is_arithmetic_v<T>) {
    return type == capnp::Type::from<T>();
  } else if constexpr (std::same_as<T, Instant>) {
    return type.isInt64();
  } else if constexpr (std::same_as<T, std::string>) {
    return (traits & kBytes) != 0 ? type.isData() : type.isText();
  } else if constexpr (std::same_as<T, MeshKey>) {
    return type.isData();
  } else if constexpr (std::is_enum_v<T>) {
    if (!type.isEnum()) return false;
    EnumLayout<T>::last = static_cast<std::uint16_t>(type.asEnum().getEnumerants().size() - 1);
    return true;
  } else if constexpr (List<T>) {
    return type.isList() && Fits<typename T::value_type>(type.asList().getElementType(), kPlain);
  } else {
    if (type.isStruct()) Bind<T>(type.asStruct());
    return type.isStruct();
  }
}

// Visits the fields of a struct for their slots.
class Binder {
 public:
  // With `only`, the one field that is visited is that one, whatever its name.
  Binder(capnp::StructSchema schema, std::vector<Slot>* slots,
         std::optional<capnp::StructSchema::Field> only = {})
      : schema_(schema), slots_(slots), only_(only) {}

  template <typename T>
  Binder& operator()(const char* name, const T&, FieldTraits traits = kPlain,
                     const char* = nullptr) {
    if constexpr (Union<T>) {
      UnionLayout<T>::tag_at = 2 * schema_.getProto().getStruct().getDiscriminantOffset();
      BindKinds<T>(std::make_index_sequence<std::variant_size_v<Variant<T>>>());
    } else if constexpr (Halves<T>) {
      Add<std::uint64_t>(FieldOf(schema_, name + std::string("_high")), traits);
      Add<std::uint64_t>(FieldOf(schema_, name + std::string("_low")), traits);
    } else {
      Add<T>(only_ ? *only_ : FieldOf(schema_, name), traits);
    }
    return *this;
  }
  void CheckAllAreNamed() const;

 private:
  template <typename T>
  void Add(capnp::StructSchema::Field field, FieldTraits traits) {
    named_.insert(field.getIndex());
    if (!Fits<T>(field.getType(), traits)) {
      Mismatch(schema_, std::string(field.getProto().getName().cStr()) + " has another type");
    }
    slots_->push_back(SlotOf(field));
  }

  template <Union T, std::size_t... Is>
  void BindKinds(std::index_sequence<Is...>) {
    (BindKind<std::variant_alternative_t<Is, Variant<T>>>(&UnionLayout<T>::kinds[Is]), ...);
  }
  template <typename Kind>
  void BindKind(KindLayout* to) {
    const capnp::StructSchema::Field field = FieldOf(schema_, Kind::kName);
    named_.insert(field.getIndex());
    to->tag = field.getProto().getDiscriminantValue();
    if constexpr (std::is_empty_v<Kind>) {
      if (!field.getType().isVoid()) Mismatch(schema_, std::string(Kind::kName) + " has fields");
    } else if (field.getType().isStruct()) {
      Bind<Kind>(field.getType().asStruct());
      to->apart = true;
      to->at = SlotOf(field).at;
    } else {
      const Kind none{};
      layout_of<Kind>.words = schema_.getProto().getStruct().getDataWordCount();
      layout_of<Kind>.pointers = schema_.getProto().getStruct().getPointerCount();
      Visit(none, Binder(schema_, &layout_of<Kind>.slots, field));
    }
  }

  capnp::StructSchema schema_;
  std::vector<Slot>* slots_;
  std::optional<capnp::StructSchema::Field> only_;
  std::set<unsigned> named_;  // fields of the schema, by index
};

template <typename T>
void Bind(capnp::StructSchema schema) {
  StructLayout& layout = layout_of<T>;
  if (std::exchange(layout.known, true)) return;
  layout.words = schema.getProto().getStruct().getDataWordCount();
  if (layout.words > kMaxWords) Mismatch(schema, "is larger than kMaxWords");
  layout.pointers = schema.getProto().getStruct().getPointerCount();
  Binder binder(schema, &layout.slots);
  const T none{};
  Visit(none, binder);
  binder.CheckAllAreNamed();
}

}  // namespace prd

#endif  // PRD_COMMON_IO_LAYOUT_H_
