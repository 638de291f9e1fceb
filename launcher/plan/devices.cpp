#include "launcher/plan/devices.h"

#include <algorithm>

#include "ddp/base/gpu_checks.h"
#include "ddp/base/text/number.h"
#include "launcher/base/error.h"

namespace launcher {
namespace {

constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

/// Returns std::nullopt for a UUID such as GPU-5e3... or MIG-...
std::optional<int> to_index(const std::string& id) {
  return ddp::detail::parse_number<int>(id);
}

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) {
    text += (text.empty() ? "" : ",") + item;
  }
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  const size_t end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::string gpus_of(const HostInfo& host) {
  if (host.gpu_count == 0) {
    return "this host has none (no /dev/nvidia0 that can be opened)";
  }
  return "this host has " + std::to_string(host.gpu_count) +
         ", numbered from 0";
}

std::vector<std::string> first_gpus(int count) {
  std::vector<std::string> ids;
  for (int index = 0; index < count; ++index) {
    ids.push_back(std::to_string(index));
  }
  return ids;
}

std::vector<std::string> named_gpus(const HostInfo& host,
                                    const std::string& variable) {
  std::vector<std::string> ids;
  for (size_t begin = 0; begin <= variable.size();) {
    const size_t end = std::min(variable.find(',', begin), variable.size());
    const std::string id = trimmed(variable.substr(begin, end - begin));
    if (!ddp::detail::names_a_gpu(id)) {
      break;
    }
    const auto index = to_index(id);
    if (index && host.gpu_count > 0 && *index >= host.gpu_count) {
      throw LaunchError(kExitUsage,
                        std::string(kVisibleDevices) + "=" + variable +
                            " names GPU " + id + ", but " + gpus_of(host) +
                            "; correct or unset it");
    }
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      throw LaunchError(kExitUsage,
                        std::string(kVisibleDevices) + "=" + variable +
                            " names GPU " + id +
                            " twice; name each once, or unset it");
    }
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

}  // namespace

std::vector<std::string> visible_gpus(const HostInfo& host,
                                      const Environment& environment) {
  const std::string* variable = find_variable(environment, kVisibleDevices);
  if (variable == nullptr || host.gpu_count == 0) {
    return first_gpus(host.gpu_count);
  }
  return named_gpus(host, *variable);
}

std::optional<std::string> chosen_gpus(const LaunchOptions& options,
                                       const HostInfo& host,
                                       const Environment& environment) {
  if (!options.gpus) {
    return std::nullopt;
  }
  const auto visible = visible_gpus(host, environment);
  for (const auto& id : *options.gpus) {
    if (std::find(visible.begin(), visible.end(), id) != visible.end()) {
      continue;
    }
    const std::string* variable = find_variable(environment, kVisibleDevices);
    const std::string reason = variable != nullptr && host.gpu_count > 0
                                   ? std::string(kVisibleDevices) + "=" +
                                         *variable + " does not show it"
                                   : gpus_of(host);
    throw UsageError("--gpus: expected GPUs that can be used here, but got " +
                     id + " and " + reason);
  }
  return join(*options.gpus);
}

int count_gpus_for_workers(const LaunchOptions& options,
                           const HostInfo& host,
                           const Environment& environment) {
  return static_cast<int>(options.gpus
                              ? options.gpus->size()
                              : visible_gpus(host, environment).size());
}

std::vector<std::string> gpus_by_worker(const LaunchOptions& options,
                                        const HostInfo& host,
                                        const Environment& environment,
                                        int worker_count) {
  const std::string* variable = find_variable(environment, kVisibleDevices);
  const int known = host.gpu_count > 0 ? host.gpu_count : worker_count;
  auto gpus = options.gpus          ? *options.gpus
              : variable != nullptr ? named_gpus(host, *variable)
                                    : first_gpus(known);
  if (static_cast<int>(gpus.size()) < worker_count) {
    throw UsageError(
        "--virtual-local-rank: expected as many GPUs as workers (" +
        std::to_string(worker_count) + "), but got " +
        (gpus.empty() ? "none" : join(gpus)) + " (" +
        (options.gpus          ? "--gpus"
         : variable != nullptr ? kVisibleDevices
                               : "all of this host") +
        "); start fewer workers or give more GPUs");
  }
  gpus.resize(static_cast<size_t>(worker_count));
  return gpus;
}

bool needs_a_gpu_each(const LaunchOptions& options,
                      const HostInfo& host,
                      const Environment& environment,
                      int worker_count) {
  const auto ids = options.gpus.value_or(visible_gpus(host, environment));
  return worker_count > 1 && static_cast<int>(ids.size()) >= worker_count &&
         std::all_of(ids.begin(), ids.end(), [](const std::string& id) {
           return id.rfind("MIG-", 0) == 0;
         });
}

std::vector<std::optional<int>> gpu_nodes_of_workers(
    const LaunchOptions& options,
    const HostInfo& host,
    const Environment& environment,
    int worker_count) {
  const auto ids = options.gpus.value_or(visible_gpus(host, environment));
  const auto& nodes = host.topology.gpu_nodes;
  std::vector<std::optional<int>> result(static_cast<size_t>(worker_count));
  for (size_t worker = 0; worker < result.size() && worker < ids.size();
       ++worker) {
    const auto gpu = to_index(ids[worker]);
    const bool is_known =
        gpu && *gpu >= 0 && static_cast<size_t>(*gpu) < nodes.size();
    if (is_known && nodes[static_cast<size_t>(*gpu)] >= 0) {
      result[worker] = nodes[static_cast<size_t>(*gpu)];
    }
  }
  return result;
}

int choose_worker_count(const LaunchOptions& options,
                        const HostInfo& host,
                        const Environment& environment) {
  using Kind = WorkerCount::Kind;
  if (!options.worker_count) {
    return options.gpus ? static_cast<int>(options.gpus->size()) : 1;
  }
  const WorkerCount wanted = *options.worker_count;
  if (wanted.kind == Kind::number) {
    return wanted.number;
  }
  if (wanted.kind == Kind::cpu) {
    return host.cpu_count;
  }
  if (const int gpus = count_gpus_for_workers(options, host, environment)) {
    return gpus;
  }
  if (wanted.kind == Kind::gpu) {
    const std::string* variable = find_variable(environment, kVisibleDevices);
    throw UsageError(
        "--nproc-per-node: gpu asks for one worker per GPU, but " +
        (variable != nullptr && host.gpu_count > 0
             ? std::string(kVisibleDevices) + "=" + *variable + " shows none"
             : gpus_of(host)) +
        "; give a number, auto or cpu");
  }
  return host.cpu_count;
}

}  // namespace launcher
