#pragma once

namespace launcher::test {

/// A line of a test. As a default argument it gives the caller's position, like
/// std::source_location, which Clang 14 does not have.
///
///     void wait(Place place = Place::current());
struct Place {
  static constexpr Place current(const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
    return {file, line};
  }

  const char* file;
  int line;
};

}  // namespace launcher::test
