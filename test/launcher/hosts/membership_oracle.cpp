#include "test/launcher/hosts/membership_oracle.h"

#include <stdexcept>

namespace launcher::test {
namespace {

void require(bool truth, const char* what) {
  if (!truth) {
    throw std::runtime_error(what);
  }
}

}  // namespace

void MembershipOracle::on_told(const World& world) {
  const auto [seat, is_new] =
      groups_[world.generation].seats.emplace(world.host_rank, world);
  if (is_new) {
    untold_ = world.generation;
  }
  require(seat->second.first_rank == world.first_rank &&
              seat->second.world_size == world.world_size &&
              seat->second.host_count == world.host_count &&
              seat->second.master.port == world.master.port,
          "two groups of one generation");
}

void MembershipOracle::on_all_told() {
  if (!untold_) {
    return;
  }
  const Group& group = groups_[*untold_];
  untold_.reset();
  const World& first = group.seats.begin()->second;
  require(static_cast<int>(group.seats.size()) == first.host_count,
          "a host of the world was not told");
  require(first.host_count >= terms_.least_hosts &&
              first.host_count <= terms_.most_hosts,
          "a world of a wrong size");
  require(first.restarts <= terms_.max_restarts, "too many restarts");
  int previous = -1;
  for (const auto& [rank, seat] : group.seats) {
    require(rank == previous + 1 && seat.first_rank < seat.world_size &&
                (rank == 0) == (seat.first_rank == 0) &&
                seat.master.host == first.master.host,
            "a lost rank");
    previous = rank;
  }
}

void MembershipOracle::on_entered(size_t host,
                                  const World& world,
                                  int worker_count,
                                  const std::string& store_host) {
  Group& group = groups_[world.generation];
  require(group.hosts.emplace(world.host_rank, host).second,
          "two hosts of one rank");
  const World& seat = group.seats.at(world.host_rank);
  const auto next = group.seats.find(world.host_rank + 1);
  const int end =
      next == group.seats.end() ? seat.world_size : next->second.first_rank;
  require(end - seat.first_rank == worker_count, "ranks that nobody has");
  require((world.host_rank == 0) == (world.master.host == store_host),
          "rank 0's store is elsewhere");
}

void MembershipOracle::on_succeeded(size_t host, int generation) {
  groups_[generation].succeeded.insert(host);
}

void MembershipOracle::on_closed(int exit_code) {
  require(!exit_code_ || *exit_code_ == exit_code, "two ends of one job");
  exit_code_ = exit_code;
  if (exit_code == 0) {
    const Group& last = groups_.rbegin()->second;
    require(last.succeeded.size() == last.seats.size(),
            "success without all hosts");
  }
}

}  // namespace launcher::test
