#include "launcher/job/policy/actions.h"

namespace launcher {

Actions operator+(Actions first, const Actions& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace launcher
