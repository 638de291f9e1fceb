#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace ddp::detail {

/// Runs `work`. Any error becomes a c10::Error that says what was attempted
/// before it says the reason: "Cannot load a.pt: No such file or directory".
template <class Work>
auto explain(const std::string& attempt, const Work& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, attempt, ": ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    TORCH_CHECK(false, attempt, ": ", error.what());
  }
}

}  // namespace ddp::detail
