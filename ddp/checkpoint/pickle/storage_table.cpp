#include "ddp/checkpoint/pickle/storage_table.h"

#include <vector>

#include "ddp/checkpoint/pickle/dtype_names.h"
#include "ddp/checkpoint/pickle/pickle_stack.h"
#include "ddp/checkpoint/pickle/python_value.h"

namespace ddp::detail {
namespace {

bool is_text(const c10::IValue& value, const char* text) {
  return value.isString() && value.toStringRef() == text;
}

}  // namespace

/// Ids are ("storage", class, key, location, count). Before PyTorch 1.6 they
/// have a sixth part, None, and ("module", class, file, source) is the class of
/// a module.
c10::IValue StorageTable::find(const c10::IValue& id) {
  TORCH_CHECK(id.isTuple(), kDamagedPickle);
  const auto parts = id.toTupleRef().elements().vec();
  if (parts.size() == 4 && is_text(parts[0], "module")) {
    return parts[1];
  }
  TORCH_CHECK((parts.size() == 5 || parts.size() == 6) &&
                  is_text(parts[0], "storage") && parts[2].isString() &&
                  parts[4].isInt() && parts[4].toInt() >= 0,
              kDamagedPickle);
  TORCH_CHECK(parts.size() == 5 || parts[5].isNone(),
              "it holds parts of a storage, as no PyTorch since 0.4 writes; "
              "save it with a newer one");
  const auto type = name_of(parts[1]);
  const auto dtype = dtype_of_storage(type);
  TORCH_CHECK(dtype, "it holds a tensor of unknown dtype ", type);
  const auto& key = parts[2].toStringRef();
  auto& storage = storages_[key];
  if (!storage.bytes.defined()) {
    storage = {reader_(key,
                       parts[4].toInt(),
                       static_cast<int64_t>(c10::elementSize(*dtype))),
               *dtype};
  }
  TORCH_CHECK(storage.dtype == *dtype || storage.bytes.numel() == 0,
              "it gives storage ",
              key,
              " two dtypes, ",
              storage.dtype,
              " and ",
              *dtype);
  return python_object(type, storage.bytes);
}

}  // namespace ddp::detail
