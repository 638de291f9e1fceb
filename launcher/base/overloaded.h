#pragma once

namespace launcher {

/// Lambdas as one visitor of a std::variant, one for each alternative.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace launcher
