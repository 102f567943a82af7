#include "simulation/record.h"

#include <cstring>

namespace corepipe::sim {

namespace {

constexpr int kMostKnown = 512;

enum Flag : int { kDecodes = 1, kFollows = 2, kSums = 4, kDraws = 8, kDrafts = 16 };

}  // namespace

// Seven bits a byte, the sign first.
void Packed::whole(int64_t value) {
  uint64_t left = (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
  for (; left >= 0x80; left >>= 7) bytes_.push_back(static_cast<uint8_t>(left | 0x80));
  bytes_.push_back(static_cast<uint8_t>(left));
}

void Packed::seconds(double value) {
  uint8_t raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes_.insert(bytes_.end(), raw, raw + sizeof value);
}

int64_t Packed::Reader::whole() {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = bytes_[at_++];
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

double Packed::Reader::seconds() {
  double value;
  std::memcpy(&value, &bytes_[at_], sizeof value);
  at_ += sizeof value;
  return value;
}

void StepTable::append(const StepRow& row, double host, const Times& times) {
  const Shape& shape = row.shape;
  const double device = times.lone->seconds;  // of a lone stage
  const bool decodes = shape.generates() && shape.attended == shape.kv_tokens, drafts = shape.each > 1;
  const bool follows = rows_ > 0 && row.starts_at == last_.ready_at + host;
  const bool sums = row.ready_at == row.starts_at + device + times.drawn + times.result && times.result == 0.0;
  const bool draws = sums && times.drawn != 0.0;
  packed_.whole(decodes * kDecodes + follows * kFollows + sums * kSums + draws * kDraws + drafts * kDrafts);
  follows ? known(host, last_host_) : packed_.seconds(row.starts_at);
  sums ? known(device, last_device_) : packed_.seconds(row.ready_at);
  if (draws) known(times.drawn, last_drawn_);
  packed_.whole(shape.sequences);
  if (decodes) {
    packed_.whole(shape.kv_tokens - contexts_ - shape.sequences);
    contexts_ = shape.kv_tokens;
  } else {
    packed_.whole(shape.rows);
    packed_.whole(shape.logit_rows);
    packed_.whole(shape.kv_tokens);
    packed_.whole(shape.attended);
  }
  if (drafts) packed_.whole(shape.each);
  packed_.whole(row.blocks_held - last_.blocks_held);
  packed_.whole(row.running - last_.running);
  packed_.whole(row.waiting - last_.waiting);
  last_ = row;
  ++rows_;
}

// Writes the number of the seconds, and the seconds themselves if they are new or have no number.
void StepTable::known(double seconds, Known& last) {
  if (seconds == last.seconds) return packed_.whole(last.number);
  const auto found = numbers_.find(seconds);
  if (found != numbers_.end()) {
    last = {seconds, found->second};
    return packed_.whole(last.number);
  }
  packed_.whole(-1);
  packed_.seconds(seconds);
  if (static_cast<int>(known_.size()) == kMostKnown) return;
  numbers_.emplace(seconds, static_cast<int>(known_.size()));
  known_.push_back(seconds);
}

double StepTable::Reader::known() {
  const int64_t number = packed_.whole();
  return number < 0 ? packed_.seconds() : table_.known_[number];
}

bool StepTable::Reader::next() {
  if (packed_.at_end()) return false;
  const int64_t flags = packed_.whole();
  row_.starts_at = flags & kFollows ? row_.ready_at + known() : packed_.seconds();
  if (flags & kSums) {
    row_.ready_at = row_.starts_at + known();
    if (flags & kDraws) row_.ready_at += known();
  } else {
    row_.ready_at = packed_.seconds();
  }
  Shape& shape = row_.shape;
  shape.sequences = static_cast<int>(packed_.whole());
  if (flags & kDecodes) {
    contexts_ += packed_.whole() + shape.sequences;
    shape.rows = shape.logit_rows = shape.sequences;
    shape.kv_tokens = shape.attended = contexts_;
  } else {
    shape.rows = static_cast<int>(packed_.whole());
    shape.logit_rows = static_cast<int>(packed_.whole());
    shape.kv_tokens = packed_.whole();
    shape.attended = packed_.whole();
  }
  shape.each = flags & kDrafts ? static_cast<int>(packed_.whole()) : 1;
  row_.blocks_held += static_cast<int>(packed_.whole());
  row_.running += static_cast<int>(packed_.whole());
  row_.waiting += static_cast<int>(packed_.whole());
  return true;
}

void GapTable::append(double seconds, int tokens) {
  if (tokens_ > 0 && seconds == seconds_) {
    tokens_ += tokens;
    return;
  }
  if (tokens_ > 0) {
    packed_.seconds(seconds_);
    packed_.whole(tokens_);
    ++rows_;
  }
  seconds_ = seconds;
  tokens_ = tokens;
}

void GapTable::read(std::vector<double>& seconds, std::vector<double>& tokens) const {
  for (Packed::Reader packed(packed_); !packed.at_end();) {
    seconds.push_back(packed.seconds());
    tokens.push_back(static_cast<double>(packed.whole()));
  }
  if (tokens_ > 0) {
    seconds.push_back(seconds_);
    tokens.push_back(static_cast<double>(tokens_));
  }
}

void RequestTable::append(const RequestRow& row) {
  for (const double seconds : {row.arrival, row.scheduled_at, row.first_at, row.last_at}) packed_.seconds(seconds);
  for (const int count :
       {row.prompt_tokens, row.output_tokens, row.cached_tokens, row.preemptions, row.replica}) {
    packed_.whole(count);
  }
  ++rows_;
}

std::vector<double> RequestTable::columns() const {
  std::vector<double> all(kRequestColumns * rows_);
  Packed::Reader packed(packed_);
  for (size_t row = 0; row < rows_; ++row) {
    for (int column = 0; column < kRequestColumns; ++column) {
      all[column * rows_ + row] = column < 4 ? packed.seconds() : static_cast<double>(packed.whole());
    }
  }
  return all;
}

}  // namespace corepipe::sim
