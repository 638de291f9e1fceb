// print_and_throw: writes three lines to std::cout and ends by an uncaught
// exception.
#include <iostream>
#include <stdexcept>

int main() {
  for (int epoch = 1; epoch <= 3; ++epoch) {
    std::cout << "epoch " << epoch << '\n';
  }
  throw std::runtime_error("no data");
}
