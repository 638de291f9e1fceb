// ddprun_man FILE URL: writes the manual page of ddprun, which names the URL of
// the project unless it is empty. Used only by the build.
#include <fstream>
#include <string_view>

#include "launcher/options/options.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  std::ofstream file(argv[1]);
  file << launcher::manual();
  if (const std::string_view url = argv[2]; !url.empty()) {
    file << ".SH SEE ALSO\n.UR " << url << "\n.UE\n";
  }
  file.close();
  return file ? 0 : 1;
}
