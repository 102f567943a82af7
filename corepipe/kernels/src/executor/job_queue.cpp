#include "executor/job_queue.h"

#include <poll.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "executor/checked.h"
#include "executor/executor.h"

namespace corepipe {

JobQueue::JobQueue(int threads, std::atomic<int64_t>* beats)
    : pool_(threads, beats), scratch_(threads), attention_(threads), sampler_(threads) {
  kernels();  // an unknown COREPIPE_ISA is reported here
  thread_ = start_thread([this] { work(); }, threads - 1, threads);
}

void JobQueue::push(std::shared_ptr<Job> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) throw std::runtime_error("the pool is closed");
    waiting_.push_back(job);
    if (job->before && job->before->done) settle(*job->before);
  }
  work_.notify_one();
}

bool JobQueue::wait(const Job& job, double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return done_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return job.done; });
}

void JobQueue::give_masks(Job& job, std::vector<uint32_t> masks) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    require(!job.has_masks, "the batch has its masks");
    job.masks = std::move(masks);
    job.has_masks = true;
  }
  masks_.notify_all();
}

void JobQueue::forsake(Job& job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job.forsaken = true;
  }
  masks_.notify_all();
}

// Without a beat: a process that fills the masks for seconds is seen to work, and one that sleeps meanwhile hangs.
void JobQueue::await_masks(Job& job) {
  std::unique_lock<std::mutex> lock(mutex_);
  masks_.wait(lock, [&] { return job.has_masks || job.forsaken || closed_; });
  if (!job.has_masks) throw std::runtime_error("the batch was never given its masks");
}

void JobQueue::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    if (closed_) return;
    running_ = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    try {
      running_->executor->run(*running_);
    } catch (...) {
      running_->error = std::current_exception();
    }
    lock.lock();
    running_->done = true;
    settle(*running_);
    running_.reset();
    done_.notify_all();
  }
}

bool JobQueue::adopt(const Job& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  return !job.dropped;
}

void JobQueue::drop(Job& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& one) { return one.get() == &job; });
  if (found == waiting_.end()) return;
  const std::shared_ptr<Job> dropped = *found;
  waiting_.erase(found);
  job.dropped = job.done = true;
  job.before.reset();
  settle(job);
}

void JobQueue::heed(std::vector<int> files) {
  std::lock_guard<std::mutex> lock(mutex_);
  heeded_ = std::move(files);
}

// Called with the mutex held, when a job is done or dropped: jobs that follow it get their tokens, or are dropped.
void JobQueue::settle(const Job& before) {
  std::vector<std::shared_ptr<Job>> dropped;
  const auto drops = [&](const std::shared_ptr<Job>& job) {
    if (job->before.get() != &before) return false;
    const bool starts = goes_on(*job);
    if (starts) job->batch.tokens = before.drawn.tokens;
    job->before.reset();
    job->dropped = job->done = !starts;
    if (!starts) dropped.push_back(job);
    return !starts;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), drops), waiting_.end());
  for (const auto& job : dropped) settle(*job);
}

bool JobQueue::goes_on(const Job& job) const {
  const Job& before = *job.before;
  if (before.error || before.dropped) return false;
  const Drawn& drawn = before.drawn;
  for (size_t row = 0; row < drawn.tokens.size(); ++row) {
    const int32_t token = drawn.tokens[row];
    const bool ends = std::find(job.ends.begin(), job.ends.end(), token) != job.ends.end();
    if (ends || !drawn.finite[row] || !job.executor->takes(token)) return false;
  }
  std::vector<pollfd> files;
  for (int file : heeded_) files.push_back({file, POLLIN, 0});
  return files.empty() || poll(files.data(), files.size(), 0) == 0;
}

// Called with the mutex held; null stands for all executors.
void JobQueue::fail_waiting(const Executor* executor, const char* reason) {
  const auto fail = [&](const std::shared_ptr<Job>& job) {
    if (executor != nullptr && job->executor != executor) return false;
    job->error = std::make_exception_ptr(std::runtime_error(reason));
    job->done = true;
    return true;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), fail), waiting_.end());
  done_.notify_all();
}

void JobQueue::withdraw(const Executor* executor) {
  std::unique_lock<std::mutex> lock(mutex_);
  fail_waiting(executor, "the executor is gone");
  if (running_ != nullptr && running_->executor == executor) running_->forsaken = true;
  masks_.notify_all();
  done_.wait(lock, [&] { return running_ == nullptr || running_->executor != executor; });
}

void JobQueue::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    fail_waiting(nullptr, "the pool was closed");
  }
  work_.notify_all();
  masks_.notify_all();
  std::lock_guard<std::mutex> lock(closing_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace corepipe
