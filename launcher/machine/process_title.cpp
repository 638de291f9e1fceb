#include "launcher/machine/process_title.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>

#include "launcher/base/text_file.h"

namespace launcher {

void set_process_title(const std::string& title) {
  ::prctl(PR_SET_NAME, title.c_str());
  // "pid (name) state ...": fields 48 and 49 hold the address range of the
  // arguments. The name may contain any characters, including ")".
  const std::string stat = read_text("/proc/self/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  constexpr int kFirst = 3;
  constexpr int kArgumentsBegin = 48;
  std::string skipped;
  for (int field = kFirst; field < kArgumentsBegin; ++field) {
    fields >> skipped;
  }
  uintptr_t begin = 0;
  uintptr_t end = 0;
  if (fields >> begin >> end && begin < end) {
    char* arguments = reinterpret_cast<char*>(begin);
    std::memset(arguments, 0, end - begin);
    std::memcpy(
        arguments, title.data(), std::min(title.size(), end - begin - 1));
  }
}

}  // namespace launcher
