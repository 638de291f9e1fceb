#include "launcher/doctor/hosts/doctors_guest.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectLimit{5'000};
constexpr milliseconds kBetweenTries{500};
/// More than the host's rounds take.
constexpr milliseconds kRoundsTime{90'000};

constexpr const char* kTryTimer = "doctors: the next try";
constexpr const char* kEndTimer = "doctors: the end";

}  // namespace

DoctorsGuest::DoctorsGuest(EventLoop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      try_until_(std::chrono::steady_clock::now() + options_.wait) {
  connect();
}

DoctorsGuest::~DoctorsGuest() {
  loop_.disarm_timer(kTryTimer);
  loop_.disarm_timer(kEndTimer);
}

HostsFacts DoctorsGuest::facts() const {
  HostsFacts facts = facts_;
  for (WayFacts& way : facts.ways) {
    way.from = facts.own;
  }
  return facts;
}

void DoctorsGuest::connect() {
  Fd socket = begin_to_connect(options_.addresses[next_address_]);
  if (!socket) {
    on_unreached(errno);
    return;
  }
  loop_.arm_timer(
      kTryTimer, kConnectLimit, [this] { on_unreached(ETIMEDOUT); });
  connection_ = std::make_unique<Connection>(
      loop_,
      std::move(socket),
      Connection::State::connecting,
      kLongestWayMessage,
      Connection::Handlers{
          .on_open = [this] { greet(); },
          .on_lines =
              [this](const std::vector<std::string>& lines) { read(lines); },
          .on_closed = [this](int error) { on_closed(error); }});
}

void DoctorsGuest::greet() {
  loop_.disarm_timer(kTryTimer);
  is_connected_ = true;
  // The host may have come after this one, and waits as long.
  set_end(options_.wait + kRoundsTime);
  WayHello hello = options_.hello;
  if (hello.address.empty()) {
    hello.address = numeric_host(own_end(connection_->socket()));
  }
  connection_->send(encode_way(hello));
}

void DoctorsGuest::on_unreached(int error) {
  connection_.reset();
  next_address_ = (next_address_ + 1) % options_.addresses.size();
  if (std::chrono::steady_clock::now() < try_until_) {
    loop_.arm_timer(kTryTimer, kBetweenTries, [this] { connect(); });
    return;
  }
  const std::string place = options_.place + ", where the hosts meet";
  end(error == ECONNREFUSED
          ? "nobody listens at " + place +
                "; start `ddprun --doctor` there, too, and look at its report"
          : options_.hello.hello.host + " cannot connect to " + place + " (" +
                std::generic_category().message(error) +
                "); check its address, the routes and the firewalls");
}

void DoctorsGuest::on_closed(int error) {
  if (!is_connected_) {
    on_unreached(error);
  } else if (has_answer_) {
    end("the connection to " + options_.place +
        ", where the hosts meet, was lost; look at the report there");
  } else {
    end("who listens at " + options_.place +
        " is no ddprun --doctor, or has ended; end what does, or give another "
        "port, and start it on all hosts again");
  }
}

void DoctorsGuest::read(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto message = decode_way(line);
    if (is_over_ || !message) {
      if (!is_over_) {
        end("who listens at " + options_.place +
            " is no ddprun --doctor; end what does, or give another port");
      }
      return;
    }
    has_answer_ = true;
    take(*message);
  }
}

void DoctorsGuest::take(const WayMessage& message) {
  if (const auto* order = std::get_if<WayOrder>(&message)) {
    former_probes_ = std::move(probes_);
    probes_ = std::make_unique<WayProbes>(
        loop_, *order, [this](const WayResults& results) {
          keep(results);
          if (connection_) {
            connection_->send(encode_way(results));
          }
        });
  } else if (const auto* refusal = std::get_if<WayRefusal>(&message)) {
    end(refusal->text);
  } else if (const auto* farewell = std::get_if<WayFarewell>(&message)) {
    facts_.hosts = farewell->hosts;
    facts_.own = farewell->own;
    facts_.waited_seconds = farewell->waited_seconds;
    facts_.lost = farewell->lost;
    is_over_ = true;
  }
}

void DoctorsGuest::keep(const WayResults& results) {
  for (const WayFacts& way : results.ways) {
    const auto known = std::find_if(
        facts_.ways.begin(), facts_.ways.end(), [&](const WayFacts& each) {
          return each.to == way.to;
        });
    if (known == facts_.ways.end()) {
      facts_.ways.push_back(way);
    } else {
      *known = merged(*known, way);
    }
  }
}

void DoctorsGuest::set_end(milliseconds limit) {
  loop_.arm_timer(kEndTimer, limit, [this] {
    end(options_.place +
        ", where the hosts meet, has not answered in time; look at the report "
        "there");
  });
}

void DoctorsGuest::end(const std::string& error) {
  facts_.error = error;
  is_over_ = true;
}

}  // namespace launcher
