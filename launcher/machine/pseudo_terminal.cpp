#include "launcher/machine/pseudo_terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <array>

namespace launcher {
namespace {

constexpr winsize kUsualSize{24, 80, 0, 0};
constexpr int kLeastColumns = 20;

Fd open_other_end(const Fd& master) {
  std::array<char, 128> name;
  if (::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0 ||
      ::ptsname_r(master.get(), name.data(), name.size()) != 0) {
    return {};
  }
  return Fd(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

std::optional<winsize> own_terminal_size() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO}) {
    winsize size{};
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      return size;
    }
  }
  return {};
}

winsize terminal_size(const std::optional<winsize>& own,
                      size_t prefix_columns) {
  winsize size = own.value_or(kUsualSize);
  const int left = size.ws_col - static_cast<int>(prefix_columns);
  if (own && left >= kLeastColumns) {
    size.ws_col = static_cast<unsigned short>(left);
  }
  return size;
}

Pipe make_pseudo_terminal(const winsize& size) {
  Pipe ends{Fd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)), Fd()};
  ends.write = open_other_end(ends.read);
  termios settings{};
  if (!ends.write || ::tcgetattr(ends.write.get(), &settings) != 0) {
    return {};
  }
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  const bool is_set = ::tcsetattr(ends.write.get(), TCSANOW, &settings) == 0 &&
                      ::ioctl(ends.write.get(), TIOCSWINSZ, &size) == 0;
  return is_set ? std::move(ends) : Pipe();
}

}  // namespace launcher
