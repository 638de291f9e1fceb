#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>

#include "launcher/base/error.h"
#include "launcher/doctor/doctor.h"
#include "launcher/job/launch.h"
#include "launcher/machine/host.h"
#include "launcher/machine/topology.h"
#include "launcher/options/options.h"
#include "launcher/plan/plan.h"

namespace launcher {
namespace {

/// Opens missing standard streams. A program may be started without stdin,
/// stdout or stderr; files opened later must not get their descriptors.
void open_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::dup(fd)) {
    if (fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
  }
}

int print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    throw LaunchError(kExitFailure,
                      "stdout cannot be written (" +
                          std::generic_category().message(errno) + ")");
  }
  return 0;
}

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "ddprun: %s\n", warning.c_str());
  }
}

int run(int argc, char** argv) {
  const Environment environment = current_environment();
  const auto parsed = parse_options({argv + 1, argv + argc}, environment);
  if (const auto* information = std::get_if<Information>(&parsed)) {
    return print(information->text);
  }
  if (const auto* doctor = std::get_if<DoctorOptions>(&parsed)) {
    warn(doctor->job.warnings);
    const Diagnosis diagnosis = examine(*doctor, environment);
    print(diagnosis.text);
    return diagnosis.exit_code;
  }
  const auto& options = std::get<LaunchOptions>(parsed);
  HostInfo host = probe_host();
  if (options.numa_binding) {
    host.topology = read_topology(usable_cpus());
  }
  const Job job = make_job(options, host, environment, make_run_id());
  if (!options.dry_run) {
    return launch(job);
  }
  warn(job.warnings);
  return print(dry_run(job));
}

}  // namespace
}  // namespace launcher

int main(int argc, char** argv) {
  launcher::open_standard_streams();
  try {
    return launcher::run(argc, argv);
  } catch (const launcher::LaunchError& error) {
    std::fprintf(stderr, "ddprun: %s\n", error.what());
    return error.exit_code();
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "ddprun: the system refuses what a job needs (%s); check "
                 "ulimit -a\n",
                 error.what());
    return launcher::kExitFailure;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddprun: internal error: %s\n", error.what());
    return launcher::kExitFailure;
  }
}
