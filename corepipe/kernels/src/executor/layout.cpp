#include "executor/layout.h"

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace corepipe {

namespace {

class Planner {
 public:
  explicit Planner(const std::vector<Program*>& programs) : programs_(programs), cursors_(programs.size()) {}

  Course run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int p = 0; p < count(); ++p) moved |= advance(p);
    }
    for (int p = 0; p < count(); ++p) {
      if (next(p) != nullptr) fail(p, "waits for a partner that never comes");
    }
    for (const auto& [way, sent] : in_flight_) {
      if (!sent.empty()) fail(way.first, "sends what program " + std::to_string(way.second) + " never receives");
    }
    return std::move(course_);
  }

 private:
  int count() const { return static_cast<int>(programs_.size()); }

  const Step* next(int p) const {
    const auto& steps = programs_[p]->steps();
    return cursors_[p] < steps.size() ? &steps[cursors_[p]] : nullptr;
  }

  [[noreturn]] static void fail(int program, const std::string& what) {
    throw std::invalid_argument("program " + std::to_string(program) + " " + what);
  }

  void check_peer(int p, int peer) const {
    if (peer < 0 || peer >= count() || peer == p) fail(p, "names a partner that is not there");
  }

  bool advance(int p) {
    bool moved = false;
    while (const Step* step = next(p)) {
      if (!take(p, *step)) break;
      moved = true;
    }
    return moved;
  }

  // False if the step has to wait.
  bool take(int p, const Step& step) {
    switch (step.kind) {
      case Step::Kind::compute: course_.stops.push_back({p, &step, -1, {}}); break;
      case Step::Kind::send: send(p, step); break;
      case Step::Kind::receive: return receive(p, step);
      default: return meet(p, step);
    }
    ++cursors_[p];
    return true;
  }

  void send(int p, const Step& step) {
    check_peer(p, step.peer);
    const int channel = static_cast<int>(course_.senders.size());
    course_.senders.push_back(&step);
    in_flight_[{p, step.peer}].push_back(channel);
    course_.stops.push_back({p, &step, channel, {}});
  }

  bool receive(int p, const Step& step) {
    check_peer(p, step.peer);
    std::deque<int>& sent = in_flight_[{step.peer, p}];
    if (sent.empty()) return false;
    const Value& x = course_.senders[sent.front()]->x;
    if (x.width != step.out.width || x.rows != step.out.rows) fail(p, "receives another shape than was sent");
    course_.stops.push_back({p, &step, sent.front(), {}});
    sent.pop_front();
    ++cursors_[p];
    return true;
  }

  // The last member to arrive runs the step for all members.
  bool meet(int p, const Step& step) {
    if (std::count(step.group.begin(), step.group.end(), p) != 1) fail(p, "is not in the group of its collective");
    Stop stop{p, &step, -1, {}};
    for (int member : step.group) {
      if (member != p) check_peer(p, member);
      const Step* other = next(member);
      if (other == nullptr || other->kind != step.kind || other->group != step.group) return false;
      stop.members.push_back(other);
    }
    check_members(p, stop);
    for (int member : step.group) ++cursors_[member];
    course_.stops.push_back(std::move(stop));
    return true;
  }

  static void check_members(int p, const Stop& stop) {
    for (size_t i = 0; i < stop.members.size(); ++i) {
      const Step& member = *stop.members[i];
      if (member.x.rows != stop.step->x.rows || member.out.width != stop.step->out.width) {
        fail(p, "meets a collective of another shape");
      }
      if (member.widths != stop.step->widths) fail(p, "meets a gathering of other widths");
      if (member.x.stride != stop.step->x.stride && member.kind == Step::Kind::gather_slots) {
        fail(p, "meets a gathering of other places");
      }
      if (member.slots.bounds != stop.step->slots.bounds) fail(p, "meets a gathering of other experts");
      if (!member.widths.empty() && member.widths[i] > member.x.width) fail(p, "gathers more than there is");
    }
  }

  const std::vector<Program*>& programs_;
  std::vector<size_t> cursors_;
  std::map<std::pair<int, int>, std::deque<int>> in_flight_;
  Course course_;
};

}  // namespace

Course lay_out(const std::vector<Program*>& programs) { return Planner(programs).run(); }

}  // namespace corepipe
