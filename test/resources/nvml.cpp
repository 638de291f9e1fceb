// Replaces libnvidia-ml.so.1. Reports four GPUs: 0 and 1 are connected by three
// direct NVLinks, 2 and 3 by two. With FAKE_NVML_SWITCH a switch connects all
// GPUs with six links each. FAKE_NVML_LOST is the index of a lost GPU,
// FAKE_NVML_DENIED that of a GPU of another job; both return an error.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr unsigned kGpus = 4;
constexpr int kNotSupported = 3;
constexpr int kNoPermission = 4;
constexpr int kGpuIsLost = 15;

struct PciInfo {
  char old_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

unsigned gpus[kGpus] = {0, 1, 2, 3};

unsigned number_of(const void* device) {
  return *static_cast<const unsigned*>(device);
}

void place(unsigned gpu, PciInfo* info) {
  *info = {};
  info->bus = 0x1b + 0x10 * gpu;
}

bool has_switch() {
  return std::getenv("FAKE_NVML_SWITCH") != nullptr;
}

bool is_named(const char* variable, unsigned gpu) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::atoi(value) == static_cast<int>(gpu);
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return 0;
}

int nvmlShutdown() {
  return 0;
}

const char* nvmlErrorString(int error) {
  return error == kGpuIsLost ? "GPU is lost" : "Not Supported";
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "580.65.06");
  return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = kGpus;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &gpus[index];
  return is_named("FAKE_NVML_LOST", index)     ? kGpuIsLost
         : is_named("FAKE_NVML_DENIED", index) ? kNoPermission
                                               : 0;
}

int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake GPU");
  return 0;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%u", number_of(device));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = 80ULL << 30;
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  place(number_of(device), info);
  return 0;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* is_active) {
  const unsigned count = has_switch() ? 6 : number_of(device) < 2 ? 3 : 2;
  *is_active = link < count ? 1 : 0;
  return link < 8 ? 0 : kNotSupported;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned, PciInfo* info) {
  place(has_switch() ? 10 : number_of(device) ^ 1U, info);
  return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int* kind) {
  *kind = has_switch() ? 2 : 0;
  return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void* from, void* to, int* level) {
  *level = number_of(from) / 2 == number_of(to) / 2 ? 10 : 50;
  return 0;
}

}  // extern "C"
