#include "ddp/worker_env.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace ddp {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::invalid_argument(
      what +
      ". Start the program with ddprun or torchrun, or set RANK, "
      "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT by hand");
}

std::optional<int> read_int(const EnvReader& reader,
                            const char* name,
                            int least,
                            int most) {
  const char* raw = reader(name);
  if (raw == nullptr) {
    return std::nullopt;
  }
  const std::string_view text(raw);
  int value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      value < least || value > most) {
    fail("Expected the environment variable " + std::string(name) +
         " to be an integer from " + std::to_string(least) + " to " +
         std::to_string(most) + ", but got \"" + raw + "\"");
  }
  return value;
}

int require_int(const EnvReader& reader,
                const char* name,
                int least,
                int most) {
  const auto value = read_int(reader, name, least, most);
  if (!value) {
    fail("Expected the environment variable " + std::string(name) +
         " to be set, but it is missing");
  }
  return *value;
}

constexpr int kMaxRanks = 1 << 24;

}  // namespace

WorkerEnv WorkerEnv::read(const EnvReader& reader) {
  WorkerEnv result;
  if (reader(env::kRank) == nullptr && reader(env::kWorldSize) == nullptr) {
    return result;
  }
  result.launched = true;
  result.world_size = require_int(reader, env::kWorldSize, 1, kMaxRanks);
  result.rank = require_int(reader, env::kRank, 0, kMaxRanks);
  if (result.rank >= result.world_size) {
    fail("Expected RANK to be below WORLD_SIZE, but got RANK=" +
         std::to_string(result.rank) +
         " and WORLD_SIZE=" + std::to_string(result.world_size));
  }
  result.local_world_size = read_int(reader, env::kLocalWorldSize, 1, kMaxRanks)
                                .value_or(result.world_size);
  // Without LOCAL_RANK one host is assumed, as torch.distributed examples do.
  result.local_rank = read_int(reader, env::kLocalRank, 0, kMaxRanks)
                          .value_or(result.rank % result.local_world_size);
  result.host_count =
      read_int(reader, env::kGroupWorldSize, 1, kMaxRanks).value_or(1);
  result.restart_count =
      read_int(reader, env::kRestartCount, 0, kMaxRanks).value_or(0);
  if (result.world_size > 1 || reader(env::kMasterAddr) != nullptr) {
    const char* addr = reader(env::kMasterAddr);
    if (addr == nullptr || *addr == '\0') {
      fail(
          "Expected the environment variable MASTER_ADDR to name the host of "
          "rank 0, but it is missing or empty");
    }
    result.master_addr = addr;
    result.master_port = require_int(reader, env::kMasterPort, 1, 65535);
  }
  const char* agent_store = reader(env::kUseAgentStore);
  result.use_agent_store =
      agent_store != nullptr && std::string_view(agent_store) == "True";
  return result;
}

WorkerEnv WorkerEnv::read() {
  return read([](const char* name) { return std::getenv(name); });
}

}  // namespace ddp
