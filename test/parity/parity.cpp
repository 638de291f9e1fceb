// One program for all parity tests, so that their common headers are compiled
// once.
//
// usage: parity SIDE [ARGUMENT...] [, SIDE [ARGUMENT...]]...
//        parity    reads calls from stdin, one a line, with tabs between SIDE
//                  and arguments; ends each output by a line "exit CODE"
#include "test/parity/parity.h"

#include <iostream>
#include <map>
#include <sstream>

namespace parity {
namespace {

int run(const Arguments& call) {
  const std::map<std::string, int (*)(const Arguments&)> sides = {
      {"checkpoint", checkpoint},
      {"data_parallel", data_parallel},
      {"ddp_digits", ddp_digits},
      {"exchanges", exchanges},
      {"graphs", graphs},
      {"optimizers", optimizers},
      {"passes", passes},
      {"precision", precision},
      {"sampler", sampler},
      {"sharded", sharded},
      {"sharded_checkpoint", sharded_checkpoint},
  };
  const auto side = sides.find(call.empty() ? "" : call[0]);
  if (side == sides.end()) {
    std::cerr << "expected a side of a parity test, such as \"passes\"\n";
    return 2;
  }
  return side->second({call.begin() + 1, call.end()});
}

int run_calls_of_stdin() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    Arguments call;
    for (std::string word; std::getline(words, word, '\t');) {
      call.push_back(word);
    }
    const int code = run(call);
    std::cout << "\nexit " << code << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace parity

int main(int argc, char** argv) {
  if (argc == 1) {
    return parity::run_calls_of_stdin();
  }
  parity::Arguments call;
  for (int i = 1; i <= argc; ++i) {
    if (i < argc && std::string(argv[i]) != ",") {
      call.emplace_back(argv[i]);
      continue;
    }
    if (const int code = parity::run(call); code != 0) {
      return code;
    }
    call.clear();
  }
  return 0;
}
