#include "dp/servers/detail/server_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/job/error_text.h"
#include "ddp/tensors/optimizer_state.h"

namespace dp::detail {
namespace {

std::string before(const std::string& path) {
  return path + ".before";
}

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

void rename_file(const std::string& from, const std::string& to) {
  TORCH_CHECK(std::rename(from.c_str(), to.c_str()) == 0,
              "Cannot rename ",
              from,
              ": ",
              std::system_category().message(errno));
}

}  // namespace

ServerFile::ServerFile(const std::string& path, int server)
    : path_(path + "." + std::to_string(server)) {}

void ServerFile::write(const std::vector<std::string>& names,
                       const Shard& shard,
                       int64_t updates,
                       int64_t run) {
  ddp::StateDict parameters;
  for (size_t i = 0; i < names.size(); ++i) {
    // All parameters lie in one storage, of which a file would have a copy for
    // each dtype.
    const auto& parameter = shard.parameters()[i];
    const bool has_first_dtype =
        parameter.dtype() == shard.parameters().front().dtype();
    parameters.insert(
        names[i],
        has_first_dtype ? parameter.detach() : parameter.detach().clone());
  }
  auto value = ddp::detail::new_dict().toGenericDict();
  value.insert("model", ddp::detail::to_value(parameters));
  value.insert("optimizer", ddp::detail::optimizer_to_value(shard.optimizer()));
  value.insert("step", updates);
  value.insert("run", run);
  ddp::detail::write_torch_file(path_ + ".new", value);
  // Do not keep a damaged file, or a file of another training, as the previous
  // checkpoint.
  if (last_ == Last::newest) {
    rename_file(path_, before(path_));
  } else if (last_ == Last::nowhere && is_there(before(path_))) {
    TORCH_CHECK(std::remove(before(path_).c_str()) == 0,
                "Cannot remove ",
                before(path_),
                ": ",
                std::system_category().message(errno));
  }
  rename_file(path_ + ".new", path_);
  last_ = Last::newest;
}

ResumePoints ServerFile::read() {
  ResumePoints saved;
  for (const auto& path : {path_, before(path_)}) {
    try {
      if (is_there(path)) {
        auto state = read_file(path);
        if (!states_.empty() && state.run != states_.front().run) {
          continue;
        }
        is_newest_read_ = is_newest_read_ || path == path_;
        saved.updates.push_back(state.updates);
        states_.push_back(std::move(state));
      }
    } catch (const std::exception& error) {
      saved.problem = ddp::detail::text_of(error);
    }
  }
  if (!saved.updates.empty()) {
    saved.problem.clear();
    saved.run = states_.front().run;
  }
  return saved;
}

ServerFile::State ServerFile::read_file(const std::string& path) const {
  const auto file = ddp::detail::read_torch_file(path);
  return ddp::detail::explain("Cannot load " + path, [&] {
    const ddp::detail::DictReader saved(file.value, "checkpoint");
    return State{saved.integer("step"),
                 saved.integer("run"),
                 ddp::detail::to_state_dict(saved.get("model")),
                 saved.get("optimizer")};
  });
}

void ServerFile::restore(int64_t updates,
                         const std::vector<std::string>& names,
                         Shard& shard) {
  const auto state =
      std::find_if(states_.begin(), states_.end(), [&](const State& one) {
        return one.updates == updates;
      });
  ddp::detail::explain("Cannot go on from " + path_, [&] {
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < names.size(); ++i) {
      const auto* value = state->parameters.find(names[i]);
      TORCH_CHECK(
          value != nullptr && state->parameters.size() == names.size(),
          "expected the parameters of this server, ",
          names[i],
          " among them, but got others; use as many servers as wrote it");
      TORCH_CHECK(value->sizes() == shard.parameters()[i].sizes(),
                  "expected ",
                  names[i],
                  " of shape ",
                  shard.parameters()[i].sizes(),
                  ", but got ",
                  value->sizes());
      values.push_back(*value);
    }
    ddp::detail::load_optimizer(shard.optimizer(), state->optimizer);
    copy_all(values, shard.parameters());
  });
  last_ =
      is_newest_read_ && state == states_.begin() ? Last::newest : Last::before;
  states_.clear();
}

}  // namespace dp::detail
