#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "launcher/base/fd.h"
#include "launcher/net/address.h"
#include "test/launcher/ddprun/run_ddprun.h"
#include "test/support/catch.h"

using Catch::Contains;
using namespace launcher::test;

namespace {

using Variables = std::map<std::string, std::string>;

constexpr const char* kGoodTest =
    "#!/bin/sh\n"
    "[ $RANK = 0 ] || exit 0\n"
    "echo libtorch 2.11.0\n"
    "echo backend gloo\n"
    "echo ranks $WORLD_SIZE\n"
    "echo bytes 1048576\n"
    "echo seconds 0.001\n";

/// A folder with a copy of ddprun, and a script in the place of
/// ddprun-allreduce, which the doctor starts.
class DoctorsFolder {
 public:
  explicit DoctorsFolder(const std::string& test_program = kGoodTest) {
    std::filesystem::copy_file(ddprun_path(), ddprun_);
    if (!test_program.empty()) {
      const std::string path = folder_ / "ddprun-allreduce";
      ddp::test::write_file(path, test_program);
      ::chmod(path.c_str(), 0700);
    }
  }

  /// @param files soft limit of open files; 0: unchanged
  Result examine(const Ddprun::Arguments& options,
                 const Variables& variables = {},
                 rlim_t files = 0,
                 Bound bound = {}) const {
    const auto exec = [&] {
      // As on a host without GPUs and settings.
      ::unsetenv("CUDA_VISIBLE_DEVICES");
      for (const auto& [name, value] : variables) {
        ::setenv(name.c_str(), value.c_str(), 1);
      }
      if (files > 0) {
        rlimit limit{};
        ::getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = files;
        ::setrlimit(RLIMIT_NOFILE, &limit);
      }
      std::vector<char*> argv{const_cast<char*>(ddprun_.c_str()),
                              const_cast<char*>("--doctor")};
      for (const auto& option : options) {
        argv.push_back(const_cast<char*>(option.c_str()));
      }
      argv.push_back(nullptr);
      ::execv(ddprun_.c_str(), argv.data());
      ::_exit(98);
    };
    return run_ddprun({}, {}, "", bound, exec);
  }

 private:
  ddp::test::TemporaryFolder folder_;
  std::string ddprun_ = folder_ / "ddprun";
};

/// Returns the line about a subject, without its line end.
std::string line_about(const std::string& subject, const Result& result) {
  const size_t at = result.out.find(" " + subject + ": ");
  CAPTURE(result.out, result.err);
  REQUIRE(at != std::string::npos);
  const size_t begin = result.out.rfind('\n', at) + 1;
  return result.out.substr(begin, result.out.find('\n', at) - begin);
}

Variables with_fake_gpus(Variables variables = {}) {
  variables["PATH"] = resource("gpus") + ":" + std::getenv("PATH");
  return variables;
}

bool has_gpu() {
  return ::access("/dev/nvidia0", F_OK) == 0;
}

}  // namespace

TEST_CASE("the doctor looks at this machine and tries an all-reduce") {
  const auto result = DoctorsFolder().examine({"--nproc-per-node=2"});
  CAPTURE(result.out);
  CHECK(result.err.empty());
  CHECK(!result.left_something);
  CHECK(line_about("all-reduce", result) ==
        "ok       all-reduce: 2 ranks over gloo: 1 MiB in 1.0 ms, 1.0 GB/s of "
        "bus bandwidth");
  CHECK_THAT(line_about("open files", result), Contains("ok "));
  CHECK_THAT(line_about("port", result), Contains("ok "));
  for (const char* subject : {"host name", "CPUs", "shared memory"}) {
    line_about(subject, result);
  }
  if (!has_gpu()) {
    CHECK(result.code() == 0);
    CHECK(line_about("GPUs", result) ==
          "ok       GPUs: none: ranks run on CPUs, over Gloo");
    CHECK_THAT(result.out, !Contains("error "));
  }
}

TEST_CASE("the doctor reads the options as a job does") {
  const auto result = DoctorsFolder().examine({"--rdzv-conf=tiemout=3"});
  CHECK_THAT(result.err, Contains("(did you mean timeout?)\n"));
  const auto wrong = DoctorsFolder().examine({"--nproc-per-node=0"});
  CHECK(wrong.code() == 2);
  CHECK(wrong.out.empty());
}

TEST_CASE("the doctor where a program holds the port") {
  launcher::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::listen(listener.get(), 1) == 0);
  const auto address = launcher::own_end(listener);
  const std::string port = std::to_string(
      ntohs(reinterpret_cast<const sockaddr_in*>(address.get())->sin_port));
  const auto result = DoctorsFolder().examine({"--master-port=" + port});
  CHECK(result.code() == 1);
  CHECK(line_about("port", result) ==
        "error    port: port " + port +
            " is in use on this host; end the process that listens there (ss "
            "-ltnp), or give another --master-port");
}

TEST_CASE("the doctor and names that do not resolve") {
  const auto result =
      DoctorsFolder().examine({"--nnodes=2",
                               "--node-rank=1",
                               "--master-addr=no-such-host.invalid",
                               "--nproc-per-node=1"});
  CHECK(result.code() == 1);
  CHECK_THAT(line_about("endpoint", result),
             Contains("error    endpoint: no-such-host.invalid cannot be "
                      "resolved (") &&
                 Contains("; check its spelling"));
}

TEST_CASE("the doctor where limits are small") {
  const auto result = DoctorsFolder().examine({"--nproc-per-node=8"}, {}, 90);
  CHECK(result.code() == 1);
  CHECK_THAT(line_about("open files", result),
             Contains("error    open files: at most 90 (hard ") &&
                 Contains("but rank 0 takes some 96; run `ulimit -n "));
}

TEST_CASE("the doctor and CUDA_VISIBLE_DEVICES") {
  const DoctorsFolder folder;
  const auto wrong =
      folder.examine({}, with_fake_gpus({{"CUDA_VISIBLE_DEVICES", "9"}}));
  CHECK(wrong.code() == 1);
  CHECK(line_about("CUDA_VISIBLE_DEVICES", wrong) ==
        "error    CUDA_VISIBLE_DEVICES: CUDA_VISIBLE_DEVICES=9 names GPU 9, "
        "but this host has 4, numbered from 0; correct or unset it");
  const auto some = folder.examine(
      {}, with_fake_gpus({{"CUDA_VISIBLE_DEVICES", "GPU-1,GPU-3"}}));
  CHECK_THAT(line_about("CUDA_VISIBLE_DEVICES", some),
             Contains("shows 2 GPUs of 4"));
  CHECK_THAT(line_about("all-reduce", some), Contains("2 ranks"));
  const auto chosen = folder.examine({"--gpus=97"}, with_fake_gpus());
  CHECK(chosen.code() == 1);
  CHECK(line_about("job", chosen) ==
        "error    job: --gpus: expected GPUs that can be used here, but got 97 "
        "and this host has 4, numbered from 0");
  const auto hidden = folder.examine(
      {"--gpus=2,3"}, with_fake_gpus({{"CUDA_VISIBLE_DEVICES", "0,1"}}));
  CHECK_THAT(line_about("job", hidden),
             Contains("CUDA_VISIBLE_DEVICES=0,1 does not show it"));
  if (!has_gpu()) {
    const auto none = folder.examine({}, {{"CUDA_VISIBLE_DEVICES", "9"}});
    CHECK(none.code() == 0);
    CHECK_THAT(line_about("CUDA_VISIBLE_DEVICES", none),
               Contains("warning  ") && Contains("this host has none; unset"));
  }
}

TEST_CASE("the doctor asks the driver for GPUs and links") {
  const DoctorsFolder folder;
  const auto result = folder.examine({}, with_fake_gpus());
  CHECK_THAT(line_about("GPUs", result),
             Contains("4 Fake GPU of 80 GiB, driver 580.65.06 for CUDA up to "
                      "13.0"));
  CHECK_THAT(result.out,
             Contains("      GPU0  GPU1  GPU2  GPU3  CPUs  NUMA  PCI\n") &&
                 Contains("\nGPU0  X     NV3   SYS   SYS ") &&
                 Contains("\nGPU3  SYS   SYS   NV2   X ") &&
                 Contains("0000:2b:00.0\n"));
  CHECK_THAT(line_about("all-reduce", result), Contains("4 ranks"));
  const auto joined =
      folder.examine({}, with_fake_gpus({{"FAKE_GPU_SWITCH", "1"}}));
  CHECK_THAT(line_about("links", joined),
             Contains("NVLink between all GPUs, 6 links a pair"));
  const auto denied =
      folder.examine({}, with_fake_gpus({{"FAKE_GPU_HIDDEN", "0"}}));
  CHECK_THAT(line_about("GPUs", denied), Contains("ok ") && Contains("3 Fake"));
  CHECK_THAT(line_about("all-reduce", denied), Contains("3 ranks"));
  const auto lost =
      folder.examine({}, with_fake_gpus({{"FAKE_GPU_LOST", "2"}}));
  CHECK(lost.code() == 1);
  CHECK_THAT(line_about("GPUs", lost),
             Contains("error    GPUs: the NVIDIA driver does not answer "
                      "(Unable to determine the device handle for GPU2: GPU is "
                      "lost); run nvidia-smi"));
}

TEST_CASE("the doctor without its all-reduce") {
  const auto result = DoctorsFolder("").examine({});
  CHECK_THAT(line_about("all-reduce", result),
             Contains("warning  all-reduce: not tried") &&
                 Contains("/ddprun-allreduce; install ddp with its libraries"));
}

TEST_CASE("the doctor and an all-reduce that fails") {
  const auto of = [](const std::string& script) {
    const auto result =
        DoctorsFolder("#!/bin/sh\n" + script).examine({"--nproc-per-node=2"});
    CHECK(result.code() == 1);
    CHECK(result.err.empty());
    CHECK(!result.left_something);
    return line_about("all-reduce", result);
  };
  CHECK_THAT(of("echo error rank $RANK: no sums; exit 1\n"),
             Contains("error    all-reduce: rank ") &&
                 Contains(": no sums; start `ddprun --nproc-per-node=N "));
  CHECK_THAT(of("echo a: error while loading shared libraries: libtorch.so: "
                "cannot open >&2; exit 127\n"),
             Contains("all-reduce: a: error while loading shared libraries: "
                      "libtorch.so: cannot open; start"));
  CHECK_THAT(of("kill -SEGV $$\n"), Contains("SIGSEGV"));
  CHECK_THAT(of("exit 0\n"), Contains("it ended without a result"));
}
