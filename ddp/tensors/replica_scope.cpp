#include "ddp/tensors/replica_scope.h"

namespace ddp::detail {
namespace {

thread_local int entered_replicas = 0;

}  // namespace

ReplicaScope::ReplicaScope() {
  ++entered_replicas;
}

ReplicaScope::~ReplicaScope() {
  --entered_replicas;
}

bool ReplicaScope::is_entered() {
  return entered_replicas > 0;
}

}  // namespace ddp::detail
