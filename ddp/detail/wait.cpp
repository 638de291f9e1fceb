#include "ddp/detail/wait.h"

namespace ddp::detail {
namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void fail(const c10d::Backend& group,
                       const std::string& what,
                       const std::string& why) {
  TORCH_CHECK(false,
              "rank ",
              group.getRank(),
              ": ",
              what,
              " failed, most likely because another rank has left: ",
              first_line(why),
              ". The rank that left first says why in its own output");
}

}  // namespace

void wait(const c10::intrusive_ptr<c10d::Work>& work,
          const c10d::Backend& group,
          const std::string& what) {
  try {
    work->wait();
  } catch (const c10::Error& error) {
    fail(group, what, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(group, what, error.what());
  }
}

}  // namespace ddp::detail
