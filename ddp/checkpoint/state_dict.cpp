#include "ddp/checkpoint/state_dict.h"

#include <limits>
#include <sstream>
#include <vector>

#include <c10/core/GradMode.h>

#include "ddp/checkpoint/detail/sharded_state.h"
#include "ddp/checkpoint/pickle/python_value.h"
#include "ddp/checkpoint/pickle/torch_file.h"
#include "ddp/job/error_text.h"
#include "ddp/tensors/expanded.h"

namespace ddp {
namespace {

using torch::nn::Module;

constexpr const char* kWrapped = "module";
const std::string kWrappedPrefix = "module.";

/// Returns the innermost module within wrappers.
const Module& unwrap(const Module& module) {
  const auto children = module.named_children();
  const bool wraps = children.size() == 1 && children[0].key() == kWrapped &&
                     module.named_parameters(/*recurse=*/false).is_empty() &&
                     module.named_buffers(/*recurse=*/false).is_empty();
  return wraps ? unwrap(*children[0].value()) : module;
}

void collect(const Module& module,
             const std::string& prefix,
             StateDict& result) {
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined()) {
        result.insert(prefix + item.key(), item.value().detach());
      }
    }
  };
  add(module.named_parameters(/*recurse=*/false));
  add(module.named_buffers(/*recurse=*/false));
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", result);
  }
}

/// Returns the number of wrapper prefixes that all names have: 2 for
/// "module.module.fc.weight".
size_t wrappers_around(const StateDict& tensors) {
  size_t count = tensors.is_empty() ? 0 : std::numeric_limits<size_t>::max();
  for (const auto& item : tensors) {
    const auto& name = item.key();
    size_t mine = 0;
    while (mine < count && name.compare(mine * kWrappedPrefix.size(),
                                        kWrappedPrefix.size(),
                                        kWrappedPrefix) == 0) {
      ++mine;
    }
    count = mine;
  }
  return count;
}

/// Removes `count` wrapper prefixes from all names.
StateDict without_wrappers(const StateDict& tensors, size_t count) {
  StateDict result;
  for (const auto& item : tensors) {
    result.insert(item.key().substr(count * kWrappedPrefix.size()),
                  item.value());
  }
  return result;
}

bool is_convertible(c10::ScalarType from, c10::ScalarType to) {
  return from == to || (c10::isFloatingType(from) && c10::isFloatingType(to));
}

IncompatibleKeys keys_of_one_side(const StateDict& expected,
                                  const StateDict& given) {
  IncompatibleKeys keys;
  for (const auto& item : expected) {
    if (!given.contains(item.key())) {
      keys.missing.push_back(item.key());
    }
  }
  for (const auto& item : given) {
    if (!expected.contains(item.key())) {
      keys.unexpected.push_back(item.key());
    }
  }
  return keys;
}

/// Returns one phrase for each difference.
std::vector<std::string> differences(const StateDict& expected,
                                     const StateDict& given,
                                     bool is_strict) {
  std::vector<std::string> found;
  for (const auto& item : expected) {
    const auto* tensor = given.find(item.key());
    const auto& mine = item.value();
    std::ostringstream text;
    if (tensor == nullptr) {
      if (!is_strict) {
        continue;
      }
      text << "\"" << item.key() << "\" is missing";
    } else if (tensor->sizes() != mine.sizes()) {
      text << "\"" << item.key() << "\": expected shape " << mine.sizes()
           << ", but got " << tensor->sizes();
    } else if (!is_convertible(tensor->scalar_type(), mine.scalar_type())) {
      text << "\"" << item.key() << "\": expected dtype " << mine.scalar_type()
           << ", but got " << tensor->scalar_type();
    } else if (tensor->layout() != c10::kStrided || tensor->is_meta()) {
      text << "\"" << item.key() << "\": expected a dense tensor, but got "
           << tensor->toString();
    } else {
      continue;
    }
    found.push_back(text.str());
  }
  for (const auto& item : given) {
    if (is_strict && !expected.contains(item.key())) {
      found.push_back("the module has no \"" + item.key() + "\"");
    }
  }
  return found;
}

std::string join(const std::vector<std::string>& phrases) {
  std::string text;
  for (const auto& phrase : phrases) {
    text += (text.empty() ? "" : "; ") + phrase;
  }
  return text;
}

/// Returns the tensors under the module's names.
/// @throws c10::Error as `load_state_dict`.
StateDict match(const Module& module,
                const StateDict& tensors,
                const LoadStateDictOptions& options) {
  const auto expected = state_dict(module);
  const auto mine = wrappers_around(expected);
  const auto theirs = wrappers_around(tensors);
  const auto given =
      theirs > mine ? without_wrappers(tensors, theirs - mine) : tensors;
  const auto wrong = differences(expected, given, options.strict());
  TORCH_CHECK(wrong.empty(), "it does not fit the module: ", join(wrong));
  return given;
}

}  // namespace

namespace detail {

c10::IValue to_value(const StateDict& tensors) {
  auto dict = new_dict();
  for (const auto& item : tensors) {
    dict.toGenericDict().insert(item.key(), item.value());
  }
  return dict;
}

StateDict to_state_dict(const c10::IValue& value) {
  TORCH_CHECK(value.isGenericDict(),
              "expected a state dict, but got ",
              describe(value),
              "; save model.state_dict()");
  StateDict result;
  for (const auto& item : value.toGenericDict()) {
    TORCH_CHECK(item.key().isString() && item.value().isTensor(),
                "expected a state dict of tensors by name, but got ",
                describe(item.value()),
                " under ",
                item.key());
    result.insert(item.key().toStringRef(), item.value().toTensor());
  }
  return result;
}

c10::IValue find_state_dict(const c10::IValue& value) {
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    for (const char* key : {"model", "state_dict", "model_state_dict"}) {
      const auto found = dict.find(key);
      if (found != dict.end() && found->value().isGenericDict()) {
        return find_state_dict(found->value());
      }
    }
  }
  return value;
}

void check_state_dict(const Module& module, const StateDict& tensors) {
  match(module, tensors, {});
}

}  // namespace detail

StateDict state_dict(const Module& module) {
  StateDict result;
  collect(unwrap(module), "", result);
  return result;
}

IncompatibleKeys load_state_dict(Module& module,
                                 const StateDict& tensors,
                                 const LoadStateDictOptions& options) {
  const auto given = match(module, tensors, options);
  const auto mine = state_dict(module);
  const c10::NoGradGuard no_grad;
  detail::begin_loading(mine);
  for (const auto& item : mine) {
    if (const auto* tensor = given.find(item.key())) {
      detail::load_tensor(item.value(), *tensor);
    }
  }
  return keys_of_one_side(mine, given);
}

void save_state_dict(const Module& module, const std::string& path) {
  detail::write_torch_file(path, detail::to_value(state_dict(module)));
}

IncompatibleKeys load_state_dict(Module& module,
                                 const std::string& path,
                                 const LoadStateDictOptions& options) {
  const auto file = detail::read_torch_file(path);
  return detail::explain("Cannot load " + path, [&] {
    return load_state_dict(
        module,
        detail::to_state_dict(detail::find_state_dict(file.value)),
        options);
  });
}

}  // namespace ddp
