#include "launcher/doctor/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "ddp/base/text/number.h"
#include "launcher/base/text_file.h"

namespace launcher {
namespace {

// Parts of nvml.h from the CUDA Toolkit; its ABI is stable.
using Device = void*;
using Return = int;  // 0: success
constexpr Return kNoPermission = 4;

struct PciInfo {
  char old_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct Memory {
  unsigned long long total, free, used;
};

constexpr unsigned kMostLinks = 18;

/// Functions of the library; an older driver may lack some of them.
class Nvml {
 public:
  explicit Nvml(void* library) : library_(library) {}
  ~Nvml() {
    if (is_initialized_) {
      call("nvmlShutdown");
    }
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Return initialize() {
    const Return result = call("nvmlInit_v2");
    is_initialized_ = result == 0;
    return result;
  }

  template <typename... Arguments>
  Return call(const char* name, Arguments... arguments) const {
    constexpr Return kNoFunction = 13;
    const auto function =
        reinterpret_cast<Return (*)(Arguments...)>(::dlsym(library_, name));
    return function == nullptr ? kNoFunction : function(arguments...);
  }

  bool get(const char* name, Device device, unsigned at, auto* value) const {
    return call(name, device, at, value) == 0;
  }

  std::string error_text(Return error) const {
    const auto text_of = reinterpret_cast<const char* (*)(Return)>(
        ::dlsym(library_, "nvmlErrorString"));
    return text_of == nullptr ? "NVML error " + std::to_string(error)
                              : text_of(error);
  }

 private:
  void* library_;
  bool is_initialized_ = false;
};

using Text = std::array<char, 96>;

std::string pci_name(const PciInfo& info) {
  Text text{};
  std::snprintf(text.data(),
                text.size(),
                "%04x:%02x:%02x.0",
                info.domain,
                info.bus,
                info.device);
  return text.data();
}

std::string text_of_gpu(const Nvml& nvml, const char* name, Device device) {
  Text text{};
  const auto size = static_cast<unsigned>(text.size());
  return nvml.call(name, device, text.data(), size) == 0 ? text.data() : "";
}

Gpu read_gpu(const Nvml& nvml, Device device) {
  Gpu gpu;
  gpu.name = text_of_gpu(nvml, "nvmlDeviceGetName", device);
  gpu.uuid = text_of_gpu(nvml, "nvmlDeviceGetUUID", device);
  Memory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory) == 0) {
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
  }
  PciInfo place{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &place) != 0) {
    return gpu;
  }
  gpu.pci = pci_name(place);
  const std::string folder = "/sys/bus/pci/devices/" + gpu.pci + "/";
  const auto line = [&](const char* name) {
    const std::string text = read_text(folder + name);
    return text.substr(0, text.find('\n'));
  };
  gpu.numa_node =
      ddp::detail::parse_number<int>(line("numa_node")).value_or(-1);
  gpu.cpus = line("local_cpulist");
  return gpu;
}

constexpr const char* kNvSwitch = "switch";

/// Returns the peers of a GPU's NVLinks: PCI names of other GPUs, or kNvSwitch
/// for a switch, which connects all GPUs.
std::vector<std::string> ends_of_nvlinks(const Nvml& nvml, Device device) {
  constexpr int kSwitch = 2;
  std::vector<std::string> ends;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int is_active = 0;
    PciInfo remote{};
    if (!nvml.get("nvmlDeviceGetNvLinkState", device, link, &is_active) ||
        is_active == 0 ||
        !nvml.get(
            "nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link, &remote)) {
      continue;
    }
    int kind = 0;
    nvml.get("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, &kind);
    ends.push_back(kind == kSwitch ? kNvSwitch : pci_name(remote));
  }
  return ends;
}

PciPath path_between(const Nvml& nvml, Device from, Device to) {
  int level = -1;
  if (nvml.call("nvmlDeviceGetTopologyCommonAncestor", from, to, &level) != 0) {
    return PciPath::unknown;
  }
  switch (level) {
    case 0:  // one board
    case 10:
      return PciPath::switch_;
    case 20:
      return PciPath::switches;
    case 30:
      return PciPath::host_bridge;
    case 40:
      return PciPath::node;
    case 50:
      return PciPath::system;
    default:
      return PciPath::unknown;
  }
}

std::vector<std::vector<GpuLink>> read_links(const Nvml& nvml,
                                             const std::vector<Device>& devices,
                                             const std::vector<Gpu>& gpus) {
  std::vector<std::vector<std::string>> ends;
  for (Device device : devices) {
    ends.push_back(ends_of_nvlinks(nvml, device));
  }
  const auto count = [&](size_t gpu, const std::string& end) {
    return static_cast<int>(
        std::count(ends[gpu].begin(), ends[gpu].end(), end));
  };
  const size_t size = devices.size();
  std::vector<std::vector<GpuLink>> links(size, std::vector<GpuLink>(size));
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      if (from != to) {
        links[from][to] = {
            path_between(nvml, devices[from], devices[to]),
            count(from, gpus[to].pci) +
                std::min(count(from, kNvSwitch), count(to, kNvSwitch))};
      }
    }
  }
  return links;
}

void read_all(const Nvml& nvml, GpuFacts& facts) {
  Text driver{};
  const auto size = static_cast<unsigned>(driver.size());
  if (nvml.call("nvmlSystemGetDriverVersion", driver.data(), size) == 0) {
    facts.driver = driver.data();
  }
  nvml.call("nvmlSystemGetCudaDriverVersion_v2", &facts.cuda);
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  std::vector<Device> devices;
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    const Return result =
        nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device);
    if (result == kNoPermission) {
      continue;  // a GPU of another job, which the cgroup hides
    }
    if (result != 0) {
      facts.nvml_error =
          "GPU " + std::to_string(index) + ": " + nvml.error_text(result);
      facts.gpus.clear();
      return;
    }
    devices.push_back(device);
    facts.gpus.push_back(read_gpu(nvml, device));
  }
  facts.links = read_links(nvml, devices, facts.gpus);
}

}  // namespace

GpuFacts probe_gpus(int device_files) {
  GpuFacts facts;
  facts.device_files = device_files;
  const std::unique_ptr<void, int (*)(void*)> library(
      ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), ::dlclose);
  facts.has_nvml = library != nullptr;
  if (!library) {
    return facts;
  }
  Nvml nvml(library.get());
  const Return result = nvml.initialize();
  if (result != 0) {
    // The library may exist without a GPU, as in a container image.
    facts.nvml_error = device_files > 0 ? nvml.error_text(result) : "";
    return facts;
  }
  read_all(nvml, facts);
  return facts;
}

}  // namespace launcher
