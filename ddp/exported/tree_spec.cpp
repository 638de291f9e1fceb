#include "ddp/exported/tree_spec.h"

#include <algorithm>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

namespace ddp::detail {
namespace {

TreeSpec spec_of(const JsonValue& spec) {
  TreeSpec result;
  const auto type = spec.find("type");
  if (!type) {
    return result;
  }
  const std::string& name = type->text();
  if (name == "builtins.tuple" || name == "collections.namedtuple") {
    result.kind = TreeSpec::Kind::tuple;
  } else if (name == "builtins.list") {
    result.kind = TreeSpec::Kind::list;
  } else if (name == "builtins.dict" || name == "collections.OrderedDict") {
    result.kind = TreeSpec::Kind::dict;
    const auto keys = JsonValue::parse(spec.at("context").text(), "keys");
    for (const auto& key : keys.elements()) {
      result.keys.push_back(key.text());
    }
  } else {
    type->refuse("a tuple, list or dict");
  }
  for (const auto& child : spec.at("children_spec").elements()) {
    result.children.push_back(spec_of(child));
  }
  if (result.kind == TreeSpec::Kind::dict &&
      result.keys.size() != result.children.size()) {
    spec.refuse("a dict with a key for each value");
  }
  return result;
}

/// Returns the values in a container that `spec` describes.
Values items_of(const TreeSpec& spec,
                const c10::IValue& value,
                const std::string& place) {
  const bool is_dict = spec.kind == TreeSpec::Kind::dict;
  const auto size = spec.children.size();
  const auto check = [&](bool is_so, const auto&... got) {
    TORCH_CHECK(is_so,
                "Expected ",
                place,
                " to be ",
                is_dict ? "a dict of " : "a tuple or list of ",
                size,
                ", but got ",
                got...);
  };
  check(is_dict ? value.isGenericDict() : value.isTuple() || value.isList(),
        "a ",
        value.tagKind());
  if (!is_dict) {
    auto items = value.isTuple() ? value.toTupleRef().elements().vec()
                                 : value.toListRef().vec();
    check(items.size() == size, items.size());
    return items;
  }
  const auto dict = value.toGenericDict();
  check(dict.size() == size, dict.size());
  Values items;
  for (const auto& key : spec.keys) {
    const auto item = dict.find(key);
    check(item != dict.end(), "none of \"", key, "\"");
    items.push_back(item->value());
  }
  return items;
}

bool are_tensors(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](const auto& value) {
    return value.isTensor();
  });
}

}  // namespace

size_t TreeSpec::size() const {
  if (kind == Kind::leaf) {
    return 1;
  }
  size_t sum = 0;
  for (const auto& child : children) {
    sum += child.size();
  }
  return sum;
}

TreeSpec parse_tree_spec(const JsonValue& text) {
  const auto spec = JsonValue::parse(text.text(), "tree spec");
  const auto parts = spec.elements();
  if (parts.size() != 2 || parts[0].integer() != 1) {
    spec.refuse("a tree spec of version 1");
  }
  return spec_of(parts[1]);
}

void flatten_tree(const TreeSpec& spec,
                  const c10::IValue& value,
                  const std::string& place,
                  Values& leaves) {
  if (spec.kind == TreeSpec::Kind::leaf) {
    leaves.push_back(value);
    return;
  }
  const auto items = items_of(spec, value, place);
  for (size_t i = 0; i < items.size(); ++i) {
    const auto key = spec.keys.empty() ? std::to_string(i) : spec.keys[i];
    flatten_tree(spec.children[i], items[i], place + "[" + key + "]", leaves);
  }
}

c10::IValue unflatten_tree(const TreeSpec& spec,
                           const Values& leaves,
                           size_t& next) {
  if (spec.kind == TreeSpec::Kind::leaf) {
    return leaves.at(next++);
  }
  Values values;
  for (const auto& child : spec.children) {
    values.push_back(unflatten_tree(child, leaves, next));
  }
  if (spec.kind == TreeSpec::Kind::tuple) {
    return c10::ivalue::Tuple::create(std::move(values));
  }
  const c10::TypePtr type = are_tensors(values)
                                ? c10::TypePtr(c10::TensorType::get())
                                : c10::TypePtr(c10::AnyType::get());
  if (spec.kind == TreeSpec::Kind::list) {
    c10::impl::GenericList list(type);
    for (auto& value : values) {
      list.push_back(std::move(value));
    }
    return list;
  }
  c10::impl::GenericDict dict(c10::StringType::get(), type);
  for (size_t i = 0; i < values.size(); ++i) {
    dict.insert(spec.keys[i], std::move(values[i]));
  }
  return dict;
}

}  // namespace ddp::detail
