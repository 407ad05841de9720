#include "worker/memory/meanwhile.h"

#include <utility>

#include "common/base/check.h"

namespace prd {
namespace {

thread_local std::function<void()> of_thread;

}  // namespace

Meanwhile::Meanwhile(std::function<void()> what) {
  PRD_CHECK(of_thread == nullptr);
  of_thread = std::move(what);
}

Meanwhile::~Meanwhile() { of_thread = nullptr; }

void Meanwhile::Do() {
  if (of_thread != nullptr) of_thread();
}

}  // namespace prd
