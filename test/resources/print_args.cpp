// print_args ...: prints each argument in brackets; then stdin, if there is
// any.
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  for (int index = 1; index < argc; ++index) {
    std::cout << '<' << argv[index] << '>';
  }
  std::cout << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << "stdin: " << line << std::endl;
  }
}
