// The simulated fleet for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "binding/binding.h"
#include "executor/checked.h"
#include "simulation/fleet.h"

namespace corepipe {

namespace {

using namespace nb::literals;

constexpr int64_t kMost = 1 << 30;  // upper limit of counts; real values are far below it

constexpr int kStepColumns = 12;

double step_column(const sim::StepRow& row, int column) {
  switch (column) {
    case 0: return row.starts_at;
    case 1: return row.ready_at;
    case 2: return row.shape.rows;
    case 3: return row.shape.sequences;
    case 4: return static_cast<double>(row.shape.kv_tokens);
    case 5: return static_cast<double>(row.shape.attended);
    case 6: return row.shape.logit_rows;
    case 7: return row.blocks_held;
    case 8: return row.running;
    case 9: return row.waiting;
    case 10: return 0.0;  // longest: sequences grow
    default: return row.shape.each;
  }
}

// Reads a table part by part.
struct StepReader {
  sim::StepTable::Reader rows;
  std::vector<int> columns;
};

nb::object read_steps(StepReader& self, size_t most) {
  std::vector<double> read;
  size_t rows = 0;
  for (; rows < most && self.rows.next(); ++rows) {
    for (const int column : self.columns) read.push_back(step_column(self.rows.row(), column));
  }
  std::vector<double> all(read.size());
  for (size_t row = 0; row < rows; ++row) {
    for (size_t at = 0; at < self.columns.size(); ++at) all[at * rows + row] = read[row * self.columns.size() + at];
  }
  return to_numpy(std::move(all), {self.columns.size(), rows});
}

std::vector<int> checked_columns(const std::vector<int>& columns) {
  for (const int column : columns) require(0 <= column && column < kStepColumns, "no such column of steps");
  return columns;
}

nb::object step_columns(const sim::StepTable& table, const std::vector<int>& columns) {
  const size_t rows = table.size();
  std::vector<double> all(columns.size() * rows);
  sim::StepTable::Reader reader(table);
  for (size_t row = 0; row < rows && reader.next(); ++row) {
    for (size_t at = 0; at < columns.size(); ++at) all[at * rows + row] = step_column(reader.row(), columns[at]);
  }
  return to_numpy(std::move(all), {columns.size(), rows});
}

sim::Limits limits_of(nb::handle config, const std::vector<double>& draft_rates) {
  sim::Limits limits;
  const auto whole = [&](const char* name) { return nb::cast<int64_t>(config.attr(name)); };
  const auto count = [&](const char* name) {
    const int64_t value = whole(name);
    return static_cast<int>(std::min<int64_t>(value, kMost));
  };
  limits.stages = count("stages");
  limits.blocks = count("num_blocks");
  limits.block_size = count("block_size");
  limits.most_running = count("max_num_seqs");
  limits.batch_tokens = count("max_num_batched_tokens");
  limits.longest = count("max_model_len");
  limits.prefix_cache = nb::cast<bool>(config.attr("prefix_cache"));
  limits.most_waiting = whole("max_queued_requests");
  limits.most_waiting_tokens = whole("max_queued_tokens");
  const nb::object cached = config.attr("max_cached_blocks");
  limits.most_cached = cached.is_none() ? limits.blocks : nb::cast<int>(cached);
  limits.draft_rates = draft_rates;
  limits.draft_rows = nb::cast<std::optional<int>>(config.attr("draft_rows")).value_or(limits.batch_tokens);
  for (const auto& window : nb::cast<std::vector<std::optional<int>>>(config.attr("windows"))) {
    limits.windows.push_back(window.value_or(0));
  }
  return limits;
}

// From what a method of `StepTimes` returns.
sim::StepsTimed timed_of(nb::object given) {
  const auto found = nb::cast<nb::tuple>(given);
  sim::StepsTimed timed;
  timed.sent = nb::cast<double>(found[0]);
  timed.drawn = nb::cast<double>(found[1]);
  timed.result = nb::cast<double>(found[2]);
  timed.drafted = nb::cast<double>(found[3]);
  const auto seconds = nb::cast<std::vector<double>>(found[4]);
  require(!seconds.empty(), "a step takes time");
  for (size_t at = 0; at < seconds.size(); at += 2) timed.stages.push_back({seconds[at], seconds.at(at + 1)});
  return timed;
}

void make_times(sim::StepTimes* self, nb::object asked) {
  nb::object decode = asked.attr("decoding"), other = asked.attr("other");
  new (self) sim::StepTimes(
      nb::cast<int>(asked.attr("stages")), nb::cast<bool>(asked.attr("lone_differs")),
      [decode](int sequences, int64_t tokens, int steps) {
        const auto [timed, last] =
            nb::cast<std::pair<nb::object, std::optional<int64_t>>>(decode(sequences, tokens, steps));
        sim::StepsTimed decoded = timed_of(timed);
        if (last) {
          decoded.first = tokens;
          decoded.last = *last;
        }
        return decoded;
      },
      [other](const sim::Shape& shape) {
        return timed_of(
            other(shape.rows, shape.logit_rows, shape.sequences, shape.kv_tokens, shape.attended, shape.each));
      });
}

sim::Rounds rounds_of(nb::object rounds) {
  nb::object generating = rounds.attr("generating_batches"), with_prompts = rounds.attr("batches_with_prompts");
  return {[generating](int64_t sequences, int64_t tokens) { return nb::cast<int>(generating(sequences, tokens)); },
          [with_prompts](int64_t sequences, int64_t tokens, int64_t prompt) {
            return nb::cast<int>(with_prompts(sequences, tokens, prompt));
          }};
}

void make_fleet(sim::Fleet* self, nb::handle config, bool segregated, const std::vector<double>& draft_rates,
                nb::list replicas, int margin, bool told) {
  std::vector<sim::Parts> parts;
  for (nb::handle each : replicas) {
    const auto given = nb::cast<nb::tuple>(each);
    parts.push_back({nb::cast<std::shared_ptr<sim::StepTimes>>(given[0]), rounds_of(given[1]),
                     {nb::cast<double>(given[2]), nb::cast<std::optional<double>>(given[3])}});
  }
  const auto policy = segregated ? sim::Policy::kSegregated : sim::Policy::kMixed;
  new (self) sim::Fleet(limits_of(config, draft_rates), policy, parts, margin, told);
}

const char* add_request(sim::Fleet& self, int64_t number, double arrival, int prompt_tokens, int most_tokens,
                        int64_t answer, nb::tuple segments, uint64_t draft_seed) {
  sim::Asked asked{number, arrival, prompt_tokens, most_tokens, answer, draft_seed, {}};
  for (nb::handle each : segments) {
    const auto segment = nb::borrow<nb::tuple>(each);
    asked.segments.push_back({nb::cast<int64_t>(segment[0]), nb::cast<int>(segment[1])});
  }
  switch (self.add(asked)) {
    case sim::Admission::kOverloaded: return "overloaded";
    case sim::Admission::kInvalid: return "invalid";
    default: return nullptr;
  }
}

nb::object news_of(sim::Fleet& self) {
  const sim::News news = self.take_news();
  nb::list firsts, ends;
  for (const auto& first : news.firsts) firsts.append(nb::make_tuple(first.number, first.at));
  for (const auto& end : news.ends) ends.append(nb::make_tuple(end.number, end.tokens, end.at));
  return nb::make_tuple(firsts, ends);
}

nb::object gaps_of(const sim::Fleet& self) {
  std::vector<double> seconds, tokens;
  self.common().gaps.read(seconds, tokens);
  const size_t rows = seconds.size();
  return nb::make_tuple(to_numpy(std::move(seconds), {rows}), to_numpy(std::move(tokens), {rows}));
}

void bind_replica(nb::module_& m) {
  nb::class_<sim::Replica>(m, "SimulatedReplica")
      .def_prop_ro("unfinished", [](const sim::Replica& self) { return self.scheduler().unfinished(); })
      .def_prop_ro("running", [](const sim::Replica& self) { return self.scheduler().running(); })
      .def_prop_ro("waiting", [](const sim::Replica& self) { return self.scheduler().waiting(); })
      .def_prop_ro("preemptions", [](const sim::Replica& self) { return self.scheduler().preemptions(); })
      .def_prop_ro("prefix_queries", [](const sim::Replica& self) { return self.scheduler().kv().queries(); })
      .def_prop_ro("prefix_hits", [](const sim::Replica& self) { return self.scheduler().kv().hits(); })
      .def_prop_ro("blocks_held", [](const sim::Replica& self) { return self.scheduler().kv().pool().held(); })
      .def_prop_ro("blocks_cached", [](const sim::Replica& self) { return self.scheduler().kv().pool().cached(); })
      .def_prop_ro("busy_seconds", [](const sim::Replica& self) { return self.timeline().busy(); })
      .def_prop_ro("overlap_seconds", [](const sim::Replica& self) { return self.timeline().overlap(); })
      .def_prop_ro("work_seconds", [](const sim::Replica& self) { return self.timeline().work(); })
      .def_prop_ro("hand_over_seconds", [](const sim::Replica& self) { return self.timeline().hand_over(); })
      .def_prop_ro("draft_seconds", [](const sim::Replica& self) { return self.timeline().drafted(); })
      .def_prop_ro("drafted",
                   [](const sim::Replica& self) {
                     const sim::Drafted& drafted = self.scheduler().drafted();
                     return nb::make_tuple(drafted.drafts, drafted.tokens, drafted.accepted,
                                           drafted.accepted_per_position);
                   })
      .def("check", [](const sim::Replica& self) { self.scheduler().check(); })
      .def_prop_ro("steps", [](const sim::Replica& self) { return self.steps().size(); })
      .def_prop_ro("nbytes", [](const sim::Replica& self) { return self.steps().nbytes(); })
      .def(
          "step_columns",
          [](const sim::Replica& self, const std::vector<int>& columns) {
            return step_columns(self.steps(), checked_columns(columns));
          },
          "columns"_a)
      .def(
          "step_reader",
          [](const sim::Replica& self, const std::vector<int>& columns) {
            return new StepReader{sim::StepTable::Reader(self.steps()), checked_columns(columns)};
          },
          nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), "columns"_a);
  nb::class_<StepReader>(m, "SimulatedSteps").def("read", &read_steps, "rows"_a);
}

}  // namespace

void bind_simulation(nb::module_& m) {
  nb::class_<sim::StepTimes>(m, "SimulatedStepTimes").def("__init__", &make_times, "asked"_a);
  bind_replica(m);
  nb::class_<sim::Fleet>(m, "SimulatedFleet")
      .def("__init__", &make_fleet, "limits"_a, "segregated"_a, "draft_rates"_a, "replicas"_a, "margin"_a, "told"_a)
      .def("next_event", &sim::Fleet::next_event)
      .def("advance", &sim::Fleet::advance, "until"_a)
      .def("add", &add_request, "number"_a, "arrival"_a, "prompt_tokens"_a, "most_tokens"_a, "answer"_a, "segments"_a,
           "draft_seed"_a)
      .def("news", &news_of)
      .def("replica", [](sim::Fleet& self, size_t number) -> sim::Replica& { return self.replicas().at(number); },
           nb::rv_policy::reference_internal, "number"_a)
      .def_prop_ro("nbytes",
                   [](const sim::Fleet& self) { return self.common().requests.nbytes() + self.common().gaps.nbytes(); })
      .def("requests",
           [](const sim::Fleet& self) {
             const auto& table = self.common().requests;
             return to_numpy(table.columns(), {sim::kRequestColumns, table.size()});
           })
      .def("gaps", &gaps_of);
}

}  // namespace corepipe
