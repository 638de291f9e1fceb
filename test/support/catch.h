#pragma once

// One include for Catch2 2 (Debian 12) and 3. cmake/find_catch2.cmake says
// which one: a machine may have the headers of both.
#if DDP_CATCH2_MAJOR >= 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace Catch {
inline auto Contains(const std::string& text) {
  return Matchers::ContainsSubstring(text);
}
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif
