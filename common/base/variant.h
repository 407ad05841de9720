// Large variants, compiled once. What copies, moves, compares and ends a std::variant of twenty
// structs is a second of compilation in every file that holds one. A struct derived from the
// variant declares these functions, and one .cc file defines them:
//
//   struct Body : std::variant<This, That> { PRD_DECLARE_VARIANT(Body) };   // in the header
//   PRD_DEFINE_VARIANT(Body)                                                // in its .cc file
//
// std::visit, std::get_if and std::holds_alternative take such a struct as they take the variant.
#ifndef PRD_COMMON_BASE_VARIANT_H_
#define PRD_COMMON_BASE_VARIANT_H_

#include <variant>

#define PRD_DECLARE_VARIANT(Name)         \
  using variant::variant;                 \
  using Variant = variant;                \
  Name();                                 \
  Name(const Name& other);                \
  Name(Name&& other) noexcept;            \
  Name& operator=(const Name& other);     \
  Name& operator=(Name&& other) noexcept; \
  ~Name();                                \
  friend bool operator==(const Name& a, const Name& b);

#define PRD_DEFINE_VARIANT(Name)                                                         \
  Name::Name() = default;                                                                \
  Name::Name(const Name& other) = default;                                               \
  Name::Name(Name&& other) noexcept = default;                                           \
  Name& Name::operator=(const Name& other) = default;                                    \
  Name& Name::operator=(Name&& other) noexcept = default;                                \
  Name::~Name() = default;                                                               \
  bool operator==(const Name& a, const Name& b) {                                        \
    return static_cast<const Name::Variant&>(a) == static_cast<const Name::Variant&>(b); \
  }

#endif  // PRD_COMMON_BASE_VARIANT_H_
