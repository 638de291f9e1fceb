#pragma once

#include <string>
#include <vector>

#include <c10/util/Exception.h>

namespace ddp::test {

/// Collects the warnings of this thread while it exists.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : guard_(this) { c10::WarningUtils::set_warnAlways(true); }
  ~Warnings() override { c10::WarningUtils::set_warnAlways(false); }
  void process(const c10::Warning& warning) override {
    texts_.push_back(warning.msg());
  }
  const std::vector<std::string>& texts() const { return texts_; }
  void clear() { texts_.clear(); }

 private:
  std::vector<std::string> texts_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace ddp::test
