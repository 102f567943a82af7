// Fork-join over a fixed set of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace corepipe {

// The contract of a region: nothing is allocated inside, and nothing in it can throw.  The caller reserves
// before, for each thread, all memory that its items write to: an error on one thread could not stop the others, which
// continue with data in the caller's frame.  Bodies are noexcept, so that a breach ends the process at once.
//
// Items are handed out one by one, so a thread that loses its core holds up one item and no more.
// One parallel region at a time; the thread that calls `parallel` takes part as thread 0.  Idle threads
// spin for a while (a step opens a region every few microseconds), then sleep.
class Pool {
 public:
  // Throws std::invalid_argument for threads < 1, std::runtime_error where the system starts no more of them; those
  // that run are ended first.
  // `beats`, which outlives the pool, grows while regions run; null: no counter.
  explicit Pool(int threads, std::atomic<int64_t>* beats = nullptr);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // Runs body(item, thread) for each item in [0, items), starting them in ascending order, and returns
  // when all are done.  An item may wait for an earlier item.
  template <class F>
  void parallel(int items, F&& body) noexcept {
    static_assert(std::is_nothrow_invocable_v<F&, int, int>, "a region can't throw: declare its body noexcept");
    if (size_ == 1 || items <= 1) {
      for (int i = 0; i < items; ++i) {
        body(i, 0);
        beat();
      }
      return;
    }
    run(items, [](void* f, int item, int thread) noexcept { (*static_cast<std::remove_reference_t<F>*>(f))(item, thread); },
        &body);
  }

  // Shows that thread 0 makes progress.  Only this thread writes, so that no other core loses the cache line.
  void beat() { beats_->store(beats_->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

 private:
  using Body = void (*)(void*, int item, int thread) noexcept;

  void run(int items, Body body, void* context) noexcept;
  bool take_one(int thread) noexcept;
  void work(int thread);
  bool wait_for_work();
  void end_threads();

  const int size_;
  std::atomic<int64_t> own_beats_{0};
  std::atomic<int64_t>* const beats_;

  // Region number in the high half, number of items not yet taken in the low half.  The three fields below belong
  // to the region in `word_`: they are stable for a thread that has taken one of its items.
  alignas(64) std::atomic<uint64_t> word_{0};
  Body body_ = nullptr;
  void* context_ = nullptr;
  int items_ = 0;

  alignas(64) std::atomic<int> done_{0};

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

// Runs work() on a thread of its own.  Throws std::runtime_error that says how many of `wanted` there are already.
std::thread start_thread(std::function<void()> work, int running, int wanted);

// Tells the core that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() is true; after some microseconds yields the core to other threads of the machine.
template <class Ready>
inline void spin_until(Ready&& ready) {
  for (int spins = 0; !ready(); ++spins) {
    if (spins < 2000) {
      spin_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace corepipe
