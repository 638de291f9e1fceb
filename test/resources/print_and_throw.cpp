// print_and_throw: writes three lines as a C++ program does, and ends by an
// exception that nobody catches.
#include <iostream>
#include <stdexcept>

int main() {
  for (int epoch = 1; epoch <= 3; ++epoch) {
    std::cout << "epoch " << epoch << '\n';
  }
  throw std::runtime_error("no data");
}
