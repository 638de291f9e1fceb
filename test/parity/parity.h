#pragma once

#include <string>
#include <vector>

/// The C++ sides of the Python files with these names. Each does the work that
/// its file describes and returns the exit code of its process.
namespace parity {

using Arguments = std::vector<std::string>;

int checkpoint(const Arguments& args);
int data_parallel(const Arguments& args);
int ddp_digits(const Arguments& args);
int exchanges(const Arguments& args);
int graphs(const Arguments& args);
int optimizers(const Arguments& args);
int passes(const Arguments& args);
int precision(const Arguments& args);
int sampler(const Arguments& args);
int sharded(const Arguments& args);
int sharded_checkpoint(const Arguments& args);

}  // namespace parity
