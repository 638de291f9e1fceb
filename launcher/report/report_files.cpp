#include "launcher/report/report_files.h"

#include <system_error>
#include <utility>

#include "ddp/detail/error_file.h"
#include "ddp/worker_env.h"

namespace launcher {

ReportFiles::ReportFiles(Places places, Teller warn)
    : places_(std::move(places)), warn_(std::move(warn)) {}

void ReportFiles::add(const Report& report) {
  last_ = report;
}

void ReportFiles::finish() {
  if (places_.error.empty() || last_.error.empty()) {
    return;
  }
  const int error = ddp::detail::write_error_file(places_.error, last_.error);
  if (error != 0) {
    warn_(std::string(ddp::env::kErrorFile) + "=" + places_.error +
          " cannot be written (" + std::generic_category().message(error) +
          ")");
  }
}

}  // namespace launcher
