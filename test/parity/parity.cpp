// One program for all parity tests, so that their common headers are compiled
// once.
//
// usage: parity SIDE [ARGUMENT...]
#include "test/parity/parity.h"

#include <iostream>
#include <map>

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(const parity::Arguments&)> sides = {
      {"checkpoint", parity::checkpoint},
      {"data_parallel", parity::data_parallel},
      {"ddp_digits", parity::ddp_digits},
      {"exchanges", parity::exchanges},
      {"graphs", parity::graphs},
      {"optimizers", parity::optimizers},
      {"passes", parity::passes},
      {"precision", parity::precision},
      {"sampler", parity::sampler},
  };
  const auto side = sides.find(argc > 1 ? argv[1] : "");
  if (side == sides.end()) {
    std::cerr << "expected a side of a parity test, such as \"passes\"\n";
    return 2;
  }
  return side->second({argv + 2, argv + argc});
}
