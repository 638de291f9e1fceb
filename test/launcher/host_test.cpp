#include "launcher/machine/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "ddp/base/gpu_checks.h"
#include "launcher/base/exit_status.h"
#include "launcher/machine/cgroup.h"
#include "launcher/workers/output/run_directory.h"
#include "test/support/catch.h"
#include "test/support/child.h"
#include "test/support/temporary_folder.h"

using Catch::Contains;
using namespace launcher;

TEST_CASE("this machine has a name and CPUs") {
  const auto host = probe_host();
  CHECK(!host.name.empty());
  CHECK(host.cpu_count >= 1);
  CHECK(host.gpu_count >= 0);
}

TEST_CASE("CPU quotas round up") {
  CHECK(cpus_of_quota("max 100000\n", 8) == 8);
  CHECK(cpus_of_quota("200000 100000\n", 8) == 2);
  CHECK(cpus_of_quota("250000 100000", 8) == 3);
  CHECK(cpus_of_quota("1000 100000", 8) == 1);
  CHECK(cpus_of_quota("-1\n 100000", 8) == 8);
  CHECK(cpus_of_quota("", 8) == 8);
}

TEST_CASE("GPU device files") {
  CHECK(ddp::detail::is_gpu_file("nvidia0"));
  CHECK(ddp::detail::is_gpu_file("nvidia15"));
  for (const char* name :
       {"nvidia", "nvidiactl", "nvidia-uvm", "nvidia0x", "xnvidia0", "null"}) {
    CHECK(!ddp::detail::is_gpu_file(name));
  }
}

TEST_CASE("GPU device files of a folder are counted") {
  const ddp::test::TemporaryFolder folder;
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "null"}) {
    std::ofstream(folder.path() + "/" + name);
  }
  CHECK(ddp::detail::count_gpu_files(folder.path()) == 2);
  CHECK(ddp::detail::count_gpu_files(folder.path() + "/none") == 0);
}

TEST_CASE("GPUs that LibTorch does not see are no reason for the CPU") {
  using ddp::detail::unseen_gpus_problem;
  const std::string problem = unseen_gpus_problem(4, nullptr, "driver too old");
  CHECK_THAT(problem,
             Contains("this host has 4") && Contains("none: driver too old") &&
                 Contains("backend \"gloo\""));
  CHECK(unseen_gpus_problem(4, "0,1", "") != "");
  CHECK(unseen_gpus_problem(0, nullptr, "no driver") == "");
  CHECK(unseen_gpus_problem(4, "", "hidden") == "");
  CHECK(unseen_gpus_problem(4, "-1", "hidden") == "");
  CHECK(unseen_gpus_problem(4, "NoDevFiles", "hidden") == "");
  CHECK(unseen_gpus_problem(4, "GPU-8f3a", "") != "");
  CHECK(unseen_gpus_problem(4, "MIG-8f3a", "") != "");
}

TEST_CASE("GPUs that a scheduler denies are not counted") {
  const ddp::test::TemporaryFolder folder;
  ::chmod(folder.path().c_str(), 0755);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia2"}) {
    std::ofstream(folder / name);
    ::chmod((folder / name).c_str(), 0666);
  }
  ::chmod((folder / "nvidia1").c_str(), 0);
  const int status = ddp::test::status_of_child([&] {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) {
      ::_exit(100);
    }
    ::_exit(ddp::detail::count_gpu_files(folder.path()));
  });
  CHECK(WEXITSTATUS(status) == 2);
}

TEST_CASE("an nccl.h of another minor version than LibTorch's is refused") {
  using ddp::detail::nccl_header_problem;
  constexpr uint64_t built = (2ULL << 32) | (28ULL << 16) | 9;
  CHECK(nccl_header_problem(built, 2, 28) == "");
  CHECK_THAT(nccl_header_problem(built, 2, 21),
             Contains("nccl.h of NCCL 2.28") && Contains("that of NCCL 2.21") &&
                 Contains("DDP_NCCL_INCLUDE_DIR"));
  CHECK(nccl_header_problem(built, 3, 28) != "");
}

TEST_CASE("the cgroup's folder on hybrid, unified and container hosts") {
  const std::string unified =
      "24 23 0:22 / /proc rw - proc proc rw\n"
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(unified, "0::/user.slice/a.scope\n") ==
        "/sys/fs/cgroup/user.slice/a.scope");
  CHECK(cgroup_folder(unified, "0::/\n") == "/sys/fs/cgroup");
  const std::string hybrid =
      "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(hybrid, "2:cpu:/x\n0::/y\n") ==
        "/sys/fs/cgroup/unified/y");
  const std::string part =
      "32 23 0:28 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
  CHECK(cgroup_folder(part, "0::/docker/1/b\n") == "/sys/fs/cgroup/b");
  CHECK(!cgroup_folder(part, "0::/elsewhere\n"));
  CHECK(!cgroup_folder(unified, "0::/../other\n"));
  CHECK(!cgroup_folder("", "0::/y\n"));
  CHECK(!cgroup_folder(hybrid, "2:cpu:/x\n"));
}

TEST_CASE("the folder of a controller of version 1") {
  const std::string mounts =
      "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
      "33 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  const std::string own = "4:memory:/slurm/job_1\n2:cpu,cpuacct:/x\n0::/y\n";
  CHECK(cgroup_folder(mounts, own, "memory") ==
        "/sys/fs/cgroup/memory/slurm/job_1");
  CHECK(cgroup_folder(mounts, own, "cpuacct") == "/sys/fs/cgroup/cpu/x");
  CHECK(cgroup_folder(mounts, own) == "/sys/fs/cgroup/unified/y");
  CHECK(!cgroup_folder(mounts, own, "mem"));
  CHECK(!cgroup_folder(mounts, "4:pids:/memory\n0::/y\n", "memory"));
  for (const char* odd : {"", "memory", "4:memory", ":", "::", "4:memory:x"}) {
    CHECK(!cgroup_folder(mounts, odd, "memory"));
  }
}

TEST_CASE("names of signals") {
  CHECK(signal_name(SIGTERM) == "SIGTERM");
  CHECK(signal_name(50) == "signal 50");
  CHECK(signal_number("SIGUSR2") == SIGUSR2);
  CHECK(signal_number("INT") == SIGINT);
  CHECK(signal_number("SIGNOTHING") == 0);
}

TEST_CASE("a run's folder has torchrun's layout") {
  Job job;
  job.run_id = "job7";
  CHECK(run_directory_pattern(job) == "/tmp/ddprun_XXXXXX");
  job.environment["TMPDIR"] = "/var/tmp";
  CHECK(run_directory_pattern(job) == "/var/tmp/ddprun_XXXXXX");
  job.options.log_dir = "/logs";
  CHECK(run_directory_pattern(job) == "/logs/job7_XXXXXX");
  job.options.log_dir = "/dev/null";
  CHECK(run_directory_pattern(job) == "/var/tmp/ddprun_XXXXXX");
  job.environment["TORCHELASTIC_ERROR_FILE"] = "/runs/attempt_3/1/error.json";
  CHECK(run_directory_pattern(job) == "/runs/attempt_3/1/ddprun_XXXXXX");
  for (const char* chosen : {"",
                             "/dev/null",
                             "/home/u/error.json",
                             "/home/u/1/error.json",
                             "/home/u/attempt_3/1/why.json",
                             "runs/attempt_3/1/error.json"}) {
    job.environment["TORCHELASTIC_ERROR_FILE"] = chosen;
    CHECK(run_directory_pattern(job) == "/var/tmp/ddprun_XXXXXX");
  }
  job.options.log_dir = "/logs";
  job.run_id = "../job7";
  CHECK_THROWS_WITH(run_directory_pattern(job), Contains("--rdzv-id"));
}

namespace {

mode_t rights_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

/// Sets the umask of the process in a scope.
class UmaskGuard {
 public:
  explicit UmaskGuard(mode_t mask) : old_(::umask(mask)) {}
  ~UmaskGuard() { ::umask(old_); }
  UmaskGuard(const UmaskGuard&) = delete;
  UmaskGuard& operator=(const UmaskGuard&) = delete;

 private:
  mode_t old_;
};

Job job_with_temporary_folder(const std::string& folder) {
  Job job;
  job.run_id = "job7";
  job.environment["TMPDIR"] = folder;
  return job;
}

}  // namespace

TEST_CASE("the files of a --log-dir are for whom umask says") {
  const mode_t mask = GENERATE(0022, 0077, 0007);
  const UmaskGuard guard(mask);
  const ddp::test::TemporaryFolder folder;
  Job job = job_with_temporary_folder(folder.path());
  job.options.log_dir = folder / "new/logs";
  const std::string empty = RunDirectory(job).path();
  CHECK(::access(empty.c_str(), F_OK) != 0);  // removed again
  const RunDirectory run(job);
  CHECK(run.is_kept());
  CHECK(rights_of(folder / "new") == (0777 & ~mask));
  CHECK(rights_of(run.path()) == (0777 & ~mask));
  make_directories(run.path() + "/attempt_0/1");
  CHECK(rights_of(run.path() + "/attempt_0/1") == (0777 & ~mask));
  create_log(run.path() + "/stdout.log");
  CHECK(rights_of(run.path() + "/stdout.log") == (0666 & ~mask));
}

TEST_CASE("logs in a folder of a group belong to the group") {
  const UmaskGuard guard(0027);
  const ddp::test::TemporaryFolder folder;
  const std::string shared = folder / "shared";
  REQUIRE(::mkdir(shared.c_str(), 0700) == 0);
  // Only root may give the folder to a foreign group.
  const gid_t group = ::geteuid() == 0 ? 4711 : ::getegid();
  REQUIRE(::chown(shared.c_str(), static_cast<uid_t>(-1), group) == 0);
  REQUIRE(::chmod(shared.c_str(), 02770) == 0);
  Job job = job_with_temporary_folder(folder.path());
  job.options.log_dir = shared;
  const RunDirectory run(job);
  const std::string worker = run.path() + "/attempt_0/0";
  make_attempt_folder(run.path() + "/attempt_0");
  make_worker_folder(worker);
  const std::string log = worker + "/stdout.log";
  create_log(log);
  for (const std::string& path :
       {run.path(), run.path() + "/attempt_0", worker, log}) {
    CAPTURE(path);
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    CHECK(status.st_gid == group);
    CHECK((status.st_mode & 07777) == (path == log ? 0640 : 02750));
  }
}

TEST_CASE("a temporary folder is its owner's, and goes") {
  const UmaskGuard guard(0022);
  const ddp::test::TemporaryFolder folder;
  std::string path;
  {
    const RunDirectory run(job_with_temporary_folder(folder.path()));
    path = run.path();
    CHECK_THAT(path, Contains(folder / "ddprun_"));
    CHECK(!run.is_kept());
    CHECK(rights_of(path) == 0700);
  }
  CHECK(folder.size() == 0);
}

TEST_CASE("a temporary folder is made where one can be, or not at all") {
  const ddp::test::TemporaryFolder folder;
  Job job = job_with_temporary_folder("/proc/self");
  CHECK_THAT(RunDirectory(job, {"/no/such/folder", folder.path()}).path(),
             Contains(folder / "ddprun_"));
  CHECK(RunDirectory(job, {"/no/such/folder"}).path().empty());
  job.options.log_dir = "/dev/null";
  job.options.redirects = parse_stream_map("3");
  CHECK(RunDirectory(job, {}).path().empty());
  job.options.log_dir.clear();
  CHECK_THROWS_WITH(
      RunDirectory(job, {"/no/such/folder"}),
      Contains("cannot write to /proc/self (") && Contains("set TMPDIR"));
}

TEST_CASE("a folder that cannot be made: the kernel's own reason") {
  const ddp::test::TemporaryFolder folder;
  ddp::test::write_file(folder / "file", "");
  CHECK_NOTHROW(make_directories("/proc/self"));
  CHECK_THROWS_WITH(make_directories("/proc/self/none"),
                    Contains("cannot write to /proc/self/none (No such file or "
                             "directory)"));
  CHECK_THROWS_WITH(make_directories(folder / "file/x"),
                    Contains("file (Not a directory)"));
}
