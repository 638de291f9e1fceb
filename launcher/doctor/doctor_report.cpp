#include "launcher/doctor/doctor_report.h"

#include <vector>

#include "launcher/base/text.h"
#include "launcher/doctor/finding.h"

namespace launcher {
namespace {

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

}  // namespace launcher
