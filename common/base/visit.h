// A message, a record, or a struct inside one names its fields once, where it is declared:
//
//   struct Probed {
//     Rank rank = kNoRank;
//     Incarnation incarnation = 0;
//     static constexpr const char* kName = "probed";
//     static void Visit(auto& m, auto&& field) {
//       field("rank", m.rank, kPlain, "target")("incarnation", m.incarnation);
//     }
//   };
//
// All else follows from that list: the bytes on the wire and in the history (common/io/codec.h),
// snapshots (archive.h), the simulator's hashes, prdctl's JSON, random messages of tests.
//
// A name is the schema's (schemas/), in snake case; the codec ends the process at its first use if
// the two differ. `kName`, of a kind of message or record, is its name in the schema's union. Kinds
// without fields need no Visit. The list's order is that of the JSON, and of the snapshot unless
// the struct has an Archive of its own; texts and lists are encoded in it.
#ifndef PRD_COMMON_BASE_VISIT_H_
#define PRD_COMMON_BASE_VISIT_H_

#include <type_traits>

namespace prd {

// What holds for a field besides its name and type.
enum FieldTraits : unsigned {
  kPlain = 0,
  // Tools do not show it while it is zero or empty, or never.
  kUnlessZero = 1,
  kHidden = 2,
  // The encoding leaves it out while it is zero or empty. Texts, lists and structs only.
  kSparse = 4,
  kFinite = 8,  // decoders refuse NaN and infinities
  kBytes = 16,  // the text is Data in the schema
};
constexpr FieldTraits operator|(FieldTraits a, FieldTraits b) {
  return static_cast<FieldTraits>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

// Accepts any list of fields.
struct AnyFields {
  AnyFields& operator()(const char*, auto&, FieldTraits = kPlain, const char* = nullptr) {
    return *this;
  }
};

// The struct names its fields, or is a kind without any.
template <typename T>
concept Described = requires(T& m, AnyFields visitor) {
  std::remove_const_t<T>::Visit(m, visitor);
}
|| (std::is_empty_v<T> && requires { T::kName; });

// Calls visitor(name, field, traits, shown) for every field; a field of a constant m is constant.
// The visitor returns itself and has defaults for `traits` and `shown`. `shown`, if not null, is
// what tools call the field; "goal_*" means that they show the fields of the struct that it is in
// its place, as "goal_steps" and so on.
template <Described T>
void Visit(T& m, auto&& visitor) {
  if constexpr (!std::is_empty_v<T>) std::remove_const_t<T>::Visit(m, visitor);
}

}  // namespace prd

#endif  // PRD_COMMON_BASE_VISIT_H_
