#pragma once

#include <string>
#include <utility>

#include "ddp/base/atomic_file.h"

namespace ddp::test {

/// Calls a function before each file operation, with the number of the
/// operation. If the function returns a value other than 0, the operation fails
/// with that errno.
template <class BeforeStep>
class WatchedDisk : public detail::Disk {
 public:
  explicit WatchedDisk(BeforeStep before) : before_(std::move(before)) {}

  int write(int fd, const void* data, size_t size) override {
    const int error = before_(step_++);
    return error != 0 ? error : Disk::write(fd, data, size);
  }
  int sync(int fd) override {
    const int error = before_(step_++);
    return error != 0 ? error : Disk::sync(fd);
  }
  int rename(const std::string& from, const std::string& to) override {
    const int error = before_(step_++);
    return error != 0 ? error : Disk::rename(from, to);
  }
  int exchange(const std::string& one, const std::string& other) override {
    const int error = before_(step_++);
    return error != 0 ? error : Disk::exchange(one, other);
  }
  int remove(const std::string& path) override {
    const int error = before_(step_++);
    return error != 0 ? error : Disk::remove(path);
  }

  int steps() const { return step_; }

 private:
  BeforeStep before_;
  int step_ = 0;
};

}  // namespace ddp::test
