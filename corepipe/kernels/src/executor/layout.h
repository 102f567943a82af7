// The order in which the steps of several programs run.
#pragma once

#include <vector>

#include "executor/program.h"

namespace corepipe {

// A step, in the order of execution.  A collective runs once for all members, as a step of the last to arrive; a value
// that was sent waits in a channel for its receiver.
struct Stop {
  int program;
  const Step* step;
  int channel = -1;                   // of a send or receive
  std::vector<const Step*> members;   // of a collective, in rank order
};

struct Course {
  std::vector<Stop> stops;
  std::vector<const Step*> senders;  // by channel
};

// Each program runs until it needs a value that another one has not sent yet; then the next one runs.  Throws
// std::invalid_argument where exchanges don't match: a partner that never comes, widths that differ.
Course lay_out(const std::vector<Program*>& programs);

}  // namespace corepipe
