#include "launcher/doctor/probes.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <sstream>
#include <system_error>

#include "ddp/base/text/number.h"
#include "launcher/base/text_file.h"
#include "launcher/machine/command.h"

namespace launcher {
namespace {

using ddp::detail::parse_number;

// Without persistence mode the driver starts every GPU for each call.
constexpr std::chrono::seconds kLimit{30};
constexpr int kNotFound = 127;

CommandEnd ask_nvidia_smi(std::vector<std::string> arguments,
                          const Environment& environment) {
  arguments.insert(arguments.begin(), "nvidia-smi");
  return run_command({.argv = std::move(arguments),
                      .environment = environment,
                      .limit = kLimit});
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \r"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \r") + 1);
}

std::vector<std::string_view> fields_of(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    fields.push_back(trimmed(line.substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

/// Removes "\e[4m" and "\e[0m", with which nvidia-smi underlines titles.
std::string without_escapes(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const size_t escape = std::min(text.find("\x1b["), text.size());
    plain += text.substr(0, escape);
    const size_t end = text.find('m', escape);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return plain;
}

void read_place(Gpu& gpu) {
  const std::string folder = "/sys/bus/pci/devices/" + gpu.pci + "/";
  const auto line = [&](const char* name) {
    const std::string text = read_text(folder + name);
    return text.substr(0, text.find('\n'));
  };
  gpu.numa_node = parse_number<int>(line("numa_node")).value_or(-1);
  gpu.cpus = line("local_cpulist");
}

/// Fills `gpus` and `driver`.
///
/// @returns the last line that describes no GPU: an error, if there is one
std::string read_gpus(const std::string& output, GpuFacts& facts) {
  std::string other;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    Gpu gpu;
    if (parse_gpu(line, gpu, facts.driver)) {
      read_place(gpu);
      facts.gpus.push_back(std::move(gpu));
    } else if (!trimmed(line).empty()) {
      other = trimmed(line);
    }
  }
  return other;
}

}  // namespace

bool parse_gpu(std::string_view line, Gpu& gpu, std::string& driver) {
  constexpr size_t kPciLength = 12;
  const auto fields = fields_of(line, ',');
  if (fields.size() != 5 || fields[0].size() < kPciLength ||
      fields[1].rfind("GPU-", 0) != 0) {
    return false;
  }
  // "00000000:3B:00.0" is "0000:3b:00.0" in /sys.
  gpu.pci = fields[0].substr(fields[0].size() - kPciLength);
  std::transform(
      gpu.pci.begin(), gpu.pci.end(), gpu.pci.begin(), [](unsigned char c) {
        return static_cast<char>(std::tolower(c));
      });
  gpu.uuid = fields[1];
  gpu.name = fields[2];
  gpu.memory_bytes = parse_number<int32_t>(fields[3]).value_or(0) * 1048576LL;
  driver = fields[4];
  return true;
}

std::vector<std::vector<std::string>> parse_links(std::string_view text,
                                                  size_t count) {
  std::vector<std::vector<std::string>> links(
      count, std::vector<std::string>(count, "?"));
  std::istringstream lines(without_escapes(text));
  for (std::string line; std::getline(lines, line);) {
    const auto fields = fields_of(line, '\t');
    const bool is_row = fields[0].rfind("GPU", 0) == 0;
    const auto from =
        is_row ? parse_number<size_t>(fields[0].substr(3)) : std::nullopt;
    if (!from || *from >= count || fields.size() <= count) {
      continue;
    }
    for (size_t to = 0; to < count; ++to) {
      links[*from][to] = fields[to + 1];
    }
  }
  return links;
}

int parse_cuda_version(std::string_view text) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(" : ");
    if (line.rfind("CUDA", 0) != 0 || colon == std::string::npos) {
      continue;
    }
    const auto numbers =
        fields_of(std::string_view(line).substr(colon + 3), '.');
    const auto major = parse_number<int>(numbers.front());
    const auto minor = parse_number<int>(numbers.back());
    if (numbers.size() == 2 && major && minor && *major >= 0 && *major < 1000 &&
        *minor >= 0 && *minor < 100) {
      return *major * 1000 + *minor * 10;
    }
  }
  return 0;
}

GpuFacts probe_gpus(int device_files, const Environment& environment) {
  GpuFacts facts;
  facts.device_files = device_files;
  try {
    const CommandEnd list = ask_nvidia_smi(
        {"--query-gpu=pci.bus_id,uuid,name,memory.total,driver_version",
         "--format=csv,noheader,nounits"},
        environment);
    facts.has_nvidia_smi = !list.status || list.status->code != kNotFound;
    const std::string said = read_gpus(list.output, facts);
    if (!list.status || !list.status->is_success()) {
      // A container image may have nvidia-smi where there is no GPU.
      const bool has_gpus = device_files > 0 || !facts.gpus.empty();
      facts.gpus.clear();
      if (has_gpus && facts.has_nvidia_smi) {
        facts.driver_error = !list.status   ? "nvidia-smi hangs"
                             : said.empty() ? list.status->text()
                                            : said;
      }
    }
    if (!facts.gpus.empty()) {
      facts.cuda = parse_cuda_version(
          ask_nvidia_smi({"-q", "-d", "COMPUTE"}, environment).output);
      facts.links =
          parse_links(ask_nvidia_smi({"topo", "-m"}, environment).output,
                      facts.gpus.size());
    }
  } catch (const std::system_error& error) {
    facts.gpus.clear();
    facts.driver_error = error.what();
  }
  return facts;
}

}  // namespace launcher
