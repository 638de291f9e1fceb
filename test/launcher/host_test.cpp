#include "launcher/host.h"

#include <csignal>

#include "launcher/output/run_directory.h"
#include "launcher/process/cgroup_path.h"
#include "launcher/process/signal_names.h"
#include "test/support/catch.h"

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
  CHECK(is_gpu_device("nvidia0"));
  CHECK(is_gpu_device("nvidia15"));
  for (const char* name :
       {"nvidia", "nvidiactl", "nvidia-uvm", "nvidia0x", "xnvidia0", "null"}) {
    CHECK(!is_gpu_device(name));
  }
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
  job.options.log_dir = "/logs";
  job.run_id = "../job7";
  CHECK_THROWS_WITH(run_directory_pattern(job), Contains("--rdzv-id"));
}
