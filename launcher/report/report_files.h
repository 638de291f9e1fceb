#pragma once

#include <functional>
#include <string>

#include "launcher/report/report.h"

namespace launcher {

/// The files that a job's reports go to, beside the console.
class ReportFiles {
 public:
  struct Places {
    std::string error;  ///< ddprun's own error file; empty: none
  };
  using Teller = std::function<void(const std::string& line)>;

  /// @param warn gets a line about what cannot be written
  ReportFiles(Places places, Teller warn);

  /// An attempt is over.
  void add(const Report& report);

  /// The job is over, as the last report says: a failure goes into the error
  /// file, in place of what was there.
  void finish();

 private:
  Places places_;
  Teller warn_;
  Report last_;
};

}  // namespace launcher
