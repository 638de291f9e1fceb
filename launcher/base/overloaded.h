#pragma once

namespace launcher {

/// Combines lambdas, one per alternative, into a visitor of a std::variant.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace launcher
