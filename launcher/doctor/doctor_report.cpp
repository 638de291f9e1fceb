#include "launcher/doctor/doctor_report.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "launcher/base/text.h"
#include "launcher/doctor/finding.h"

namespace launcher {
namespace {

using DoctorJson = nlohmann::ordered_json;

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::ok:
      return "ok";
    case Severity::warning:
      return "warning";
    case Severity::error:
      break;
  }
  return "error";
}

std::string line_of(const Finding& finding) {
  constexpr size_t kColumn = 9;
  std::string line = severity_name(finding.severity);
  line.append(kColumn - line.size(), ' ');
  line += finding.subject + ": " + finding.text;
  line += finding.fix.empty() ? "" : "; " + finding.fix;
  return on_one_line(line) + "\n";
}

DoctorJson given_or_null(bool is_given, const std::string& text) {
  return is_given ? DoctorJson(text) : DoctorJson();
}

DoctorJson findings_json(const Findings& findings) {
  DoctorJson all = DoctorJson::array();
  for (const Finding& finding : findings) {
    all.push_back({{"severity", severity_name(finding.severity)},
                   {"subject", finding.subject},
                   {"text", finding.text},
                   {"fix", given_or_null(!finding.fix.empty(), finding.fix)}});
  }
  return all;
}

DoctorJson gpus_json(const GpuFacts& facts) {
  DoctorJson all = DoctorJson::array();
  for (size_t from = 0; from < facts.gpus.size(); ++from) {
    const Gpu& gpu = facts.gpus[from];
    DoctorJson links = DoctorJson::array();
    for (size_t to = 0; to < facts.gpus.size(); ++to) {
      links.push_back(given_or_null(from != to, facts.links[from][to]));
    }
    all.push_back(
        {{"name", gpu.name},
         {"uuid", gpu.uuid},
         {"pci", gpu.pci},
         {"memory_bytes", gpu.memory_bytes},
         {"numa_node",
          gpu.numa_node < 0 ? DoctorJson() : DoctorJson(gpu.numa_node)},
         {"cpus", given_or_null(!gpu.cpus.empty(), gpu.cpus)},
         {"links", std::move(links)}});
  }
  return all;
}

DoctorJson all_reduce_json(const AllReduceFacts& facts) {
  if (!facts.is_installed || !facts.error.empty()) {
    return {};
  }
  return {{"backend", facts.backend},
          {"ranks", facts.ranks},
          {"bytes", facts.bytes},
          {"seconds", facts.seconds},
          {"bus_bytes_per_second", bus_bandwidth(facts)}};
}

}  // namespace

std::string topology_table(const GpuFacts& facts) {
  if (facts.gpus.empty()) {
    return "";
  }
  std::vector<std::vector<std::string>> rows{{""}};
  for (size_t from = 0; from < facts.gpus.size(); ++from) {
    const Gpu& gpu = facts.gpus[from];
    const std::string name = "GPU" + std::to_string(from);
    rows.front().push_back(name);
    std::vector<std::string> row{name};
    for (size_t to = 0; to < facts.gpus.size(); ++to) {
      row.push_back(from == to ? "X" : facts.links[from][to]);
    }
    row.push_back(gpu.cpus.empty() ? "?" : gpu.cpus);
    row.push_back(gpu.numa_node < 0 ? "?" : std::to_string(gpu.numa_node));
    row.push_back(gpu.pci);
    rows.push_back(std::move(row));
  }
  for (const char* title : {"CPUs", "NUMA", "PCI"}) {
    rows.front().emplace_back(title);
  }
  return text_table(rows) +
         "NV#: # NVLinks; over PCI, from near to far: PIX one switch, PXB "
         "several,\nPHB the CPU's bridge, NODE bridges of a NUMA node, SYS "
         "between NUMA nodes\n";
}

std::string doctor_text(const MachineFacts& machine, const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += line_of(finding);
  }
  const std::string table = topology_table(machine.gpu);
  return text + (table.empty() ? "" : "\n" + table);
}

std::string doctor_json(const MachineFacts& machine, const Findings& findings) {
  const GpuFacts& gpu = machine.gpu;
  const AllReduceFacts& run = machine.all_reduce;
  const DoctorJson document = {
      {"version", 1},
      {"exit_code", exit_code_of(findings)},
      {"findings", findings_json(findings)},
      {"gpus", gpus_json(gpu)},
      {"driver", given_or_null(!gpu.driver.empty(), gpu.driver)},
      {"driver_cuda", given_or_null(gpu.cuda > 0, cuda_text(gpu.cuda))},
      {"libtorch", given_or_null(!run.libtorch.empty(), run.libtorch)},
      {"cuda", given_or_null(run.cuda > 0, cuda_text(run.cuda))},
      {"nccl", given_or_null(run.nccl > 0, nccl_text(run.nccl))},
      {"all_reduce", all_reduce_json(run)}};
  // Names from the machine may contain invalid UTF-8.
  return document.dump(
             2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace launcher
