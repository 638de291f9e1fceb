#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

#include "ddp/job/error_text.h"

namespace ddp::detail {

/// Runs `work` and returns its result. Any error becomes a c10::Error of the
/// attempt and the reason: "Cannot load a.pt: No such file or directory".
template <class Work>
auto explain(const std::string& attempt, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    TORCH_CHECK(false, attempt, ": ", text_of(error));
  }
}

}  // namespace ddp::detail
