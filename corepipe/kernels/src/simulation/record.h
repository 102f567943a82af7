// The record of a simulation: the native version of corepipe/simulation/record.py, in fewer bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "simulation/step_times.h"

namespace corepipe::sim {

struct StepRow {
  double starts_at = 0.0, ready_at = 0.0;
  Shape shape;
  int blocks_held = 0, running = 0, waiting = 0;
};

// A sequence of numbers, small ones in few bytes.
class Packed {
 public:
  void whole(int64_t value);
  void seconds(double value);
  size_t size() const { return bytes_.size(); }

  class Reader {
   public:
    explicit Reader(const Packed& packed) : bytes_(packed.bytes_) {}
    int64_t whole();
    double seconds();
    bool at_end() const { return at_ == bytes_.size(); }

   private:
    const std::vector<uint8_t>& bytes_;
    size_t at_ = 0;
  };

 private:
  std::vector<uint8_t> bytes_;
};

// The steps of a replica, in order.  Values that follow from the previous row take no bytes, and repeated seconds take
// one or two.
class StepTable {
 public:
  // host: seconds of the host before the step.
  void append(const StepRow& row, double host, const Times& times);
  size_t size() const { return rows_; }
  size_t nbytes() const { return packed_.size() + known_.size() * sizeof(double); }

  class Reader {
   public:
    explicit Reader(const StepTable& table) : table_(table), packed_(table.packed_) {}
    bool next();  // false: there is no further row
    const StepRow& row() const { return row_; }

   private:
    double known();

    const StepTable& table_;
    Packed::Reader packed_;
    StepRow row_;
    int64_t contexts_ = 0;
  };

 private:
  struct Known {
    double seconds = -1.0;
    int number = -1;
  };
  void known(double seconds, Known& last);

  Packed packed_;
  Known last_host_, last_device_, last_drawn_;
  std::vector<double> known_;  // seconds that steps take, by their number
  std::unordered_map<double, int> numbers_;
  StepRow last_;
  int64_t contexts_ = 0;  // of the last step that decoded
  size_t rows_ = 0;
};

// A row of `GAP_COLUMNS` is a time between tokens and the number of tokens after it.
class GapTable {
 public:
  void append(double seconds, int tokens);  // consecutive equal ones become one row
  size_t size() const { return rows_ + (tokens_ > 0); }
  size_t nbytes() const { return packed_.size(); }
  void read(std::vector<double>& seconds, std::vector<double>& tokens) const;

 private:
  Packed packed_;
  double seconds_ = 0.0;
  int64_t tokens_ = 0;
  size_t rows_ = 0;
};

struct RequestRow {
  double arrival, scheduled_at, first_at, last_at;
  int prompt_tokens, output_tokens, cached_tokens, preemptions, replica;
};

constexpr int kRequestColumns = 9;

// Requests in the order of their ends.
class RequestTable {
 public:
  void append(const RequestRow& row);
  size_t size() const { return rows_; }
  size_t nbytes() const { return packed_.size(); }
  // Returns one column after the other, `size()` numbers each, in the order of RequestRow.
  std::vector<double> columns() const;

 private:
  Packed packed_;
  size_t rows_ = 0;
};

}  // namespace corepipe::sim
