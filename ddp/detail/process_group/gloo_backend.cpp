#include "ddp/detail/process_group/backends.h"

#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ddp/detail/process_group/batch_threads.h"
#include "ddp/detail/process_group/tcp.h"

namespace ddp::detail {
namespace {

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

std::vector<GlooDevice> gloo_devices(const std::string& reach) {
  const BatchThreadsGuard each_device_has_a_thread;
  std::vector<GlooDevice> devices;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME");
      names != nullptr && *names != '\0') {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
    return devices;
  }
  devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(
      local_address_towards(reach)));
  return devices;
}

/// Gloo writes to sockets whose other end may be gone; the signal's default
/// would end the program without a word instead of by an exception.
void ignore_broken_pipes() {
  struct sigaction current {};
  ::sigaction(SIGPIPE, nullptr, &current);
  if (current.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSpec& spec) {
  ignore_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(spec.connect_timeout);
  options->devices = gloo_devices(spec.reach);
  options->threads = static_cast<int>(2 * options->devices.size());
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
      spec.store, spec.rank, spec.size, options);
  backend->setTimeout(spec.timeout);
  return backend;
}

}  // namespace ddp::detail
