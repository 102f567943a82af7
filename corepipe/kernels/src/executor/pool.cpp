#include "executor/pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace corepipe {

namespace {

constexpr uint64_t kRemaining = 0xffffffffu;
constexpr std::chrono::microseconds kSpin{50};

}  // namespace

Pool::Pool(int threads, std::atomic<int64_t>* beats)
    : size_(threads), beats_(beats != nullptr ? beats : &own_beats_) {
  if (threads < 1) throw std::invalid_argument("a pool needs at least one thread");
  threads_.reserve(threads - 1);
  try {
    for (int t = 1; t < threads; ++t) threads_.push_back(start_thread([this, t] { work(t); }, t, threads));
  } catch (...) {
    end_threads();
    throw;
  }
}

Pool::~Pool() { end_threads(); }

void Pool::end_threads() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Pool::run(int items, Body body, void* context) noexcept {
  body_ = body;
  context_ = context;
  items_ = items;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t region = (word_.load(std::memory_order_relaxed) >> 32) + 1;
  // Sequentially consistent with wait_for_work: either the sleeper sees the word or we see the sleeper.
  word_.store(region << 32 | static_cast<uint32_t>(items));
  if (sleepers_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  while (take_one(0)) {
  }
  spin_until([&] { return done_.load(std::memory_order_acquire) == items; });
}

bool Pool::take_one(int thread) noexcept {
  uint64_t word = word_.load(std::memory_order_acquire);
  do {
    if ((word & kRemaining) == 0) return false;
  } while (!word_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire));
  body_(context_, items_ - static_cast<int>(word & kRemaining), thread);
  if (thread == 0) beat();
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Pool::work(int thread) {
  while (wait_for_work()) {
    while (take_one(thread)) {
    }
  }
}

// False when the pool is being destroyed.
bool Pool::wait_for_work() {
  const auto has_work = [this] { return (word_.load() & kRemaining) != 0; };
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (has_work()) return true;
      spin_pause();
    }
  } while (std::chrono::steady_clock::now() < until);

  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return has_work() || stop_.load(); });
  sleepers_.fetch_sub(1);
  return !stop_.load();
}

std::thread start_thread(std::function<void()> work, int running, int wanted) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw std::runtime_error("only " + std::to_string(running) + " of " + std::to_string(wanted) +
                             " threads could be started: " + error.code().message());
  }
}

}  // namespace corepipe
