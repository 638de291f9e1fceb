// ddprun_man FILE: writes the manual page of ddprun. Used only by the build.
#include <fstream>

#include "launcher/options/options.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  std::ofstream file(argv[1]);
  file << launcher::manual();
  file.close();
  return file ? 0 : 1;
}
