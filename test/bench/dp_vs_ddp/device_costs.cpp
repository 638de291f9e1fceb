#include "test/bench/dp_vs_ddp/device_costs.h"

#include <c10/util/Exception.h>

#include <fstream>

#include "samples/support/text.h"

namespace ddp::bench {

using samples::format;

namespace {

struct Column {
  const char* name;
  int64_t DeviceCosts::*value;
};
using Columns = std::vector<Column>;

const Columns kTraffic = {{"state", &DeviceCosts::state},
                          {"inputs", &DeviceCosts::inputs},
                          {"outputs", &DeviceCosts::outputs},
                          {"gradients", &DeviceCosts::gradients},
                          {"all_reduce", &DeviceCosts::all_reduce},
                          {"sent", &DeviceCosts::sent},
                          {"received", &DeviceCosts::received}};
const Columns kMemory = {{"parameters", &DeviceCosts::parameters},
                         {"gradients", &DeviceCosts::gradient_storage},
                         {"optimizer", &DeviceCosts::optimizer_state},
                         {"activations", &DeviceCosts::activations},
                         {"results", &DeviceCosts::results}};

const char* name_of(Way way) {
  return way == Way::dp ? "DP" : "DDP";
}

std::string table(const Columns& columns,
                  const std::vector<DeviceCosts>& rows,
                  bool has_total) {
  std::string text = format("%-10s", "");
  for (const auto& column : columns) {
    text += format("%12s", column.name);
  }
  text += has_total ? format("%12s\n", "all") : "\n";
  for (const auto& row : rows) {
    text += format("%-3s %-6ld", name_of(row.way), row.device);
    int64_t total = 0;
    for (const auto& column : columns) {
      text += format("%12ld", row.*column.value);
      total += row.*column.value;
    }
    text += has_total ? format("%12ld\n", total) : "\n";
  }
  return text;
}

}  // namespace

std::vector<DeviceCosts> dp_costs(
    const std::vector<dp::ReplicaTraffic>& traffic, int64_t steps) {
  std::vector<DeviceCosts> rows;
  for (size_t i = 0; i < traffic.size(); ++i) {
    DeviceCosts row;
    row.device = static_cast<int64_t>(i);
    row.state = traffic[i].state_bytes / steps;
    row.inputs = traffic[i].input_bytes / steps;
    row.outputs = traffic[i].output_bytes / steps;
    row.gradients = traffic[i].gradient_bytes / steps;
    rows.push_back(row);
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    rows[i].received = rows[i].state + rows[i].inputs;
    rows[i].sent = rows[i].outputs + rows[i].gradients;
    rows[0].sent += rows[i].received;
    rows[0].received += rows[i].sent;
  }
  return rows;
}

int64_t ring_bytes(int64_t bytes, int64_t ranks) {
  return (2 * (ranks - 1) * bytes + ranks / 2) / ranks;
}

std::string traffic_table(const std::vector<DeviceCosts>& rows) {
  return table(kTraffic, rows, /*has_total=*/false);
}

std::string memory_table(const std::vector<DeviceCosts>& rows) {
  return table(kMemory, rows, /*has_total=*/true);
}

void write_csv(const std::string& file, const std::vector<DeviceCosts>& rows) {
  std::ofstream out(file);
  out << "way,device";
  for (const auto& column : kTraffic) {
    out << ',' << column.name;
  }
  for (const auto& column : kMemory) {
    out << ",memory_" << column.name;
  }
  out << '\n';
  for (const auto& row : rows) {
    out << name_of(row.way) << ',' << row.device;
    for (const auto* columns : {&kTraffic, &kMemory}) {
      for (const auto& column : *columns) {
        out << ',' << row.*column.value;
      }
    }
    out << '\n';
  }
  TORCH_CHECK(out.flush(), "Expected to write ", file, ", but could not.");
}

}  // namespace ddp::bench
