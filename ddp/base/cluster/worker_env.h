#pragma once

#include <functional>
#include <optional>
#include <string>

// The contract between a launcher and a worker: the names of the environment
// variables, and how a worker reads them. Includes no LibTorch: ddprun uses it
// too.
namespace ddp {

/// Names of the variables that ddprun and torchrun set for every worker.
/// Only ddprun sets kJobDir, with --hang-timeout and --on-preempt.
namespace env {
/// Rank of the worker, over all hosts.
inline constexpr const char* kRank = "RANK";
/// Number of workers on all hosts.
inline constexpr const char* kWorldSize = "WORLD_SIZE";
/// Rank within the host.
inline constexpr const char* kLocalRank = "LOCAL_RANK";
/// Number of workers on the host.
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
/// Number of the host.
inline constexpr const char* kGroupRank = "GROUP_RANK";
/// Number of hosts.
inline constexpr const char* kGroupWorldSize = "GROUP_WORLD_SIZE";
/// Role of the worker (`ddprun --role`).
inline constexpr const char* kRoleName = "ROLE_NAME";
/// Rank among the workers of the role.
inline constexpr const char* kRoleRank = "ROLE_RANK";
/// Number of workers of the role.
inline constexpr const char* kRoleWorldSize = "ROLE_WORLD_SIZE";
/// Host of rank 0's store.
inline constexpr const char* kMasterAddr = "MASTER_ADDR";
/// Port of rank 0's store.
inline constexpr const char* kMasterPort = "MASTER_PORT";
/// Number of restarts so far.
inline constexpr const char* kRestartCount = "TORCHELASTIC_RESTART_COUNT";
/// Largest number of restarts.
inline constexpr const char* kMaxRestarts = "TORCHELASTIC_MAX_RESTARTS";
/// Name of the job (`ddprun --rdzv-id`).
inline constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";
/// "True" if the launcher hosts the store; any other value counts as "False",
/// which ddprun sets.
inline constexpr const char* kUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
/// File for the worker's error; see record_errors.h.
inline constexpr const char* kErrorFile = "TORCHELASTIC_ERROR_FILE";
/// Folder of the files that the workers of a job and ddprun exchange; see
/// base/job_files/job_directory.h.
inline constexpr const char* kJobDir = "DDPRUN_JOB_DIR";
}  // namespace env

/// Reads one variable: returns its value, or nullptr if it is not set. Example:
/// `std::getenv`.
using EnvReader = std::function<const char*(const char* name)>;

/// Job information of a worker: from RANK and WORLD_SIZE, or from srun, mpirun,
/// flux or Kubernetes (docs/clusters.md). Without any of them the worker is
/// the only rank of a world of one. A struct that the program fills itself is
/// not checked.
struct WorkerEnv {
  int rank = 0;        ///< in [0, world_size)
  int world_size = 1;  ///< number of workers on all hosts
  /// Rank within this host, which selects the GPU. 0 on every worker where the
  /// scheduler or ddprun shows each worker a single GPU.
  int local_rank = 0;
  int local_world_size = 1;  ///< number of workers on this host
  /// For a task or pod of a scheduler, the scheduler's number (a guess under
  /// mpirun); else GROUP_WORLD_SIZE; else an estimate from MASTER_ADDR and the
  /// numbers of workers.
  int host_count = 1;
  int restart_count = 0;    ///< TORCHELASTIC_RESTART_COUNT
  std::string master_addr;  ///< empty without a launcher
  int master_port = 0;      ///< 0 if master_addr is empty
  /// The launcher hosts the store at master_addr:master_port, so rank 0 must
  /// connect to it as a client like every other rank (torchrun's agent store).
  bool use_agent_store = false;
  /// RANK and WORLD_SIZE are set, or a scheduler has started several tasks.
  bool launched = false;

  /// Reads and checks the variables. RANK needs WORLD_SIZE, and WORLD_SIZE
  /// needs RANK; more than one rank then also needs MASTER_ADDR and
  /// MASTER_PORT, and one rank with MASTER_ADDR needs MASTER_PORT.
  /// LOCAL_WORLD_SIZE defaults to WORLD_SIZE, and LOCAL_RANK to RANK modulo
  /// LOCAL_WORLD_SIZE. Without RANK, one of several tasks of srun, mpirun or
  /// flux takes all of these from its job. Of the variables, only MASTER_ADDR
  /// and MASTER_PORT then replace values of the job; if mpirun or flux does not
  /// give the host of rank 0, MASTER_ADDR is needed. In a pod of Kubernetes,
  /// with MASTER_ADDR and without LOCAL_RANK and TORCHELASTIC_RUN_ID, RANK and
  /// WORLD_SIZE count pods: a pod is one rank, the only one of its host. May
  /// run on any thread while no thread changes the environment.
  ///
  /// @throws std::invalid_argument with one line that names the variable, the
  ///   expected and the actual value (or the scheduler, if its variables
  ///   contradict each other), if a variable is missing or is no integer in its
  ///   range (ports: 1 to 65535), if RANK is not below WORLD_SIZE, if a
  ///   variable contradicts the scheduler (WORLD_SIZE without RANK is not its
  ///   number of tasks), or if a scheduler has started this process with others
  ///   and no variable tells its rank. LOCAL_RANK, LOCAL_WORLD_SIZE and
  ///   GROUP_WORLD_SIZE are compared neither with each other nor with RANK and
  ///   WORLD_SIZE.
  ///
  /// Example:
  /// @code
  ///   const auto env = ddp::WorkerEnv::read();  // from the process itself
  /// @endcode
  static WorkerEnv read(const EnvReader& reader);
  /// As above, with `std::getenv`.
  static WorkerEnv read();
};

}  // namespace ddp
