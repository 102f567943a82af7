#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <unordered_map>

#include "binding/binding.h"
#include "executor/checked.h"
#include "executor/executor.h"

namespace corepipe {

namespace {

using namespace nb::literals;

constexpr double kSignalSeconds = 0.05;  // longest delay of Ctrl-C in wait()

template <class T>
std::vector<T> copy_of(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

template <class T>
void read_field(nb::handle object, const char* name, std::vector<T>& out) {
  Array<T> array;
  if (!nb::try_cast(object.attr(name), array, false)) {
    throw nb::type_error(("sampling: '" + std::string(name) + "' has another type or shape than SamplingBatch states").c_str());
  }
  out = copy_of(array);
}

std::optional<Sampling> read_sampling(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  Sampling s;
#define COREPIPE_READ(type, name, ...) read_field(object, #name, s.name);
  COREPIPE_ROW_PARAMETERS(COREPIPE_READ)
#undef COREPIPE_READ
  read_field(object, "bias_offsets", s.bias_offsets);
  read_field(object, "bias_ids", s.bias_ids);
  read_field(object, "bias_values", s.bias_values);
  read_field(object, "seen_offsets", s.seen_offsets);
  read_field(object, "seen_ids", s.seen_ids);
  read_field(object, "seen_counts", s.seen_counts);
  return s;
}

std::vector<uint32_t> words_of(const Array<int32_t, 2>& masks) {
  std::vector<uint32_t> words(masks.size());
  if (!words.empty()) std::memcpy(words.data(), masks.data(), masks.size() * sizeof(uint32_t));
  return words;
}

nb::dict drawn_to_python(Drawn&& drawn) {
  const size_t rows = drawn.tokens.size(), width = drawn.top_width;
  nb::dict result;
  result["tokens"] = to_numpy(std::move(drawn.tokens), {rows});
  result["logprobs"] = to_numpy(std::move(drawn.logprobs), {rows});
  result["ranks"] = to_numpy(std::move(drawn.ranks), {rows});
  result["top_ids"] = to_numpy(std::move(drawn.top_ids), {rows, width});
  result["top_logprobs"] = to_numpy(std::move(drawn.top_logprobs), {rows, width});
  nb::list overflowed;
  for (size_t row = 0; row < rows; ++row) {
    if (!drawn.finite[row]) overflowed.append(row);
  }
  result["overflowed"] = overflowed;
  return result;
}

nb::dict result_of(Job& job, int width) {
  nb::dict result = drawn_to_python(std::move(job.drawn));
  result["values"] = nb::none();
  if (!job.sampling) {
    const size_t rows = job.values.size() / width;
    result["values"] = to_numpy(std::move(job.values), {rows, static_cast<size_t>(width)});
  }
  result["seconds"] = job.seconds;
  result["weight_bytes"] = job.weight_bytes;
  result["scratch_bytes"] = job.scratch_bytes;
  nb::list spans;
  for (const Span& span : job.spans) spans.append(nb::make_tuple(span.program, span.start_ns, span.end_ns));
  result["spans"] = spans;
  return result;
}

[[noreturn]] void rethrow(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    throw std::runtime_error(e.what());
  }
}

// The hook, callable from a thread without the GIL.
std::function<void(int)> hook_of(nb::object hook) {
  if (hook.is_none()) return nullptr;
  const auto release = [](nb::object* object) {
    nb::gil_scoped_acquire gil;
    delete object;
  };
  std::shared_ptr<nb::object> held(new nb::object(std::move(hook)), release);
  return [held](int program) {
    nb::gil_scoped_acquire gil;
    try {
      (*held)(program);
    } catch (const nb::python_error& e) {
      throw std::runtime_error(std::string("the watch hook failed: ") + e.what());
    }
  };
}

using Counter = nb::ndarray<int64_t, nb::shape<1>, nb::device::cpu>;

// The counter may be memory that another process reads.
void make_pool(JobQueue* self, int threads, std::optional<Counter> beats) {
  static_assert(std::atomic<int64_t>::is_always_lock_free && sizeof(std::atomic<int64_t>) == sizeof(int64_t));
  if (beats && reinterpret_cast<uintptr_t>(beats->data()) % alignof(std::atomic<int64_t>) != 0) {
    throw std::invalid_argument("beats must be aligned to 8 bytes");
  }
  new (self) JobQueue(threads, beats ? reinterpret_cast<std::atomic<int64_t>*>(beats->data()) : nullptr);
}

class PyExecutor {
 public:
  PyExecutor(std::shared_ptr<JobQueue> queue, std::vector<std::shared_ptr<Program>> programs, int result, int width,
             bool same_bits)
      : programs_(std::move(programs)), width_(width) {
    std::vector<Program*> bare;
    for (const auto& program : programs_) {
      require(program != nullptr, "a program is None");
      bare.push_back(program.get());
    }
    executor_ = std::make_unique<Executor>(std::move(queue), std::move(bare), result, width, same_bits);
  }

  // The running batch may be about to call the watch hook, which needs the GIL.
  ~PyExecutor() {
    nb::gil_scoped_release released;
    executor_.reset();
  }

  int64_t submit(Array<int32_t> tokens, Array<int32_t> positions, Array<int32_t> starts, Array<int32_t, 2> tables,
                 Array<int32_t> logit_rows, nb::object sampling, std::optional<Array<int32_t>> types,
                 std::optional<Array<float, 2>> patches, std::optional<Array<int32_t>> adapters) {
    Batch batch;
    batch.tokens = copy_of(tokens);
    batch.positions = copy_of(positions);
    batch.starts = copy_of(starts);
    batch.tables.assign(tables.data(), tables.data() + tables.size());
    batch.table_width = static_cast<int>(tables.shape(1));
    batch.logit_rows = copy_of(logit_rows);
    if (types) batch.types = copy_of(*types);
    if (patches) batch.patches.assign(patches->data(), patches->data() + patches->size());
    if (adapters) batch.adapters = copy_of(*adapters);
    std::shared_ptr<Job> job = executor_->submit(std::move(batch), read_sampling(sampling));
    jobs_.emplace(++last_ticket_, std::move(job));
    return last_ticket_;
  }

  int64_t go_on(int64_t ticket, Array<int32_t> ends) {
    std::shared_ptr<Job> job = executor_->go_on(job_of(ticket), copy_of(ends));
    jobs_.emplace(++last_ticket_, std::move(job));
    return last_ticket_;
  }

  bool adopt(int64_t ticket) {
    const bool runs = executor_->queue().adopt(*job_of(ticket));
    if (!runs) jobs_.erase(ticket);
    return runs;
  }

  void drop(int64_t ticket) {
    executor_->queue().drop(*job_of(ticket));
    jobs_.erase(ticket);
  }

  void heed(std::vector<int> files) { executor_->queue().heed(std::move(files)); }

  void give_masks(int64_t ticket, Array<int32_t, 2> masks) {
    executor_->give_masks(*job_of(ticket), words_of(masks));
  }

  nb::dict wait(int64_t ticket) {
    const std::shared_ptr<Job> job = job_of(ticket);
    if (job->wanted_masks > 0) executor_->queue().forsake(*job);
    for (bool done = false; !done;) {
      {
        nb::gil_scoped_release released;
        done = executor_->queue().wait(*job, kSignalSeconds);
      }
      if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    if (jobs_.erase(ticket) == 0) throw nb::value_error("another thread has redeemed this ticket");
    if (job->error) rethrow(job->error);
    if (job->dropped) throw nb::value_error("the batch was dropped");
    return result_of(*job, width_);
  }

  void set_adapter(int slot, std::shared_ptr<Adapter> adapter) { executor_->set_adapter(slot, std::move(adapter)); }

  void watch(nb::object hook) { executor_->watch(hook_of(std::move(hook))); }

 private:
  std::shared_ptr<Job> job_of(int64_t ticket) const {
    const auto found = jobs_.find(ticket);
    if (found == jobs_.end()) throw nb::value_error("unknown ticket, or one that has been redeemed");
    return found->second;
  }

  std::vector<std::shared_ptr<Program>> programs_;
  const int width_;
  std::unique_ptr<Executor> executor_;
  std::unordered_map<int64_t, std::shared_ptr<Job>> jobs_;
  int64_t last_ticket_ = 0;
};

nb::dict sample(Array<float, 2> logits, nb::object object, std::optional<Array<int32_t, 2>> masks) {
  const int rows = static_cast<int>(logits.shape(0)), vocab = static_cast<int>(logits.shape(1));
  const std::optional<Sampling> sampling = read_sampling(object);
  if (!sampling) throw nb::type_error("sampling must be a SamplingBatch");
  require(vocab >= 1, "the vocabulary is empty");
  check_sampling(*sampling, rows, vocab);
  const std::vector<uint32_t> words = masks ? words_of(*masks) : std::vector<uint32_t>();
  require(words.size() == sampling->masks() * mask_words(vocab), "there must be a mask for each masked row");
  std::vector<const float*> pointers;
  for (int r = 0; r < rows; ++r) pointers.push_back(logits.data() + static_cast<size_t>(r) * vocab);
  Pool pool(1);
  Sampler sampler(1);
  return drawn_to_python(sampler.run(kernels(), pool, pointers, vocab, *sampling, words));
}

// core, number, (n, k, rank), scale, a, b
using PyPart = std::tuple<int, int, std::tuple<int, int, int>, float, Array<uint8_t>, Array<uint8_t>>;

void make_adapter(Adapter* self, const std::vector<PyPart>& parts, bool bf16) {
  std::vector<Adapter::Part> given;
  for (const auto& [core, number, shape, scale, a, b] : parts) {
    const auto [n, k, rank] = shape;
    given.push_back({core, number, n, k, rank, scale, {a.data(), a.size()}, {b.data(), b.size()}});
  }
  new (self) Adapter(given, bf16);
}

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<Adapter>(m, "Adapter")
      .def("__init__", &make_adapter, "parts"_a, "bf16"_a)
      .def_prop_ro("rank", &Adapter::rank);
  nb::class_<JobQueue>(m, "Pool")
      .def("__init__", &make_pool, "threads"_a, "beats"_a.noconvert().none() = nb::none(), nb::keep_alive<1, 3>())
      .def_prop_ro("threads", &JobQueue::threads)
      .def("close", &JobQueue::close, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<PyExecutor>(m, "Executor")
      .def(nb::init<std::shared_ptr<JobQueue>, std::vector<std::shared_ptr<Program>>, int, int, bool>(), "pool"_a,
           "programs"_a, "result"_a, "width"_a, "same_bits"_a = false)
      .def("submit", &PyExecutor::submit, "tokens"_a.noconvert(), "positions"_a.noconvert(),
           "sequence_starts"_a.noconvert(), "block_tables"_a.noconvert(), "logit_rows"_a.noconvert(),
           "sampling"_a.none(), "types"_a.noconvert().none() = nb::none(),
           "patches"_a.noconvert().none() = nb::none(), "adapters"_a.noconvert().none() = nb::none())
      .def("set_adapter", &PyExecutor::set_adapter, "slot"_a, "adapter"_a.none())
      .def("give_masks", &PyExecutor::give_masks, "ticket"_a, "masks"_a.noconvert())
      .def("go_on", &PyExecutor::go_on, "ticket"_a, "ends"_a.noconvert())
      .def("adopt", &PyExecutor::adopt, "ticket"_a)
      .def("drop", &PyExecutor::drop, "ticket"_a)
      .def("heed", &PyExecutor::heed, "files"_a)
      .def("wait", &PyExecutor::wait, "ticket"_a)
      .def("watch", &PyExecutor::watch, "hook"_a.none());
  m.def("sample", &sample, "logits"_a.noconvert(), "sampling"_a, "masks"_a.noconvert().none() = nb::none());
}

}  // namespace corepipe
