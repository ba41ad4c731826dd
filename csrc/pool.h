// Threads for one forward pass at a time.
//
// run() lets every thread execute the same function; inside it, phase() hands out numbered chunks of work
// one at a time and ends with a barrier. A thread that the system has taken off its processor holds up
// at most its current chunk: the others take the rest, spin for some microseconds, then sleep, which frees
// a processor for it. (Barriers that only spin against a descheduled thread make a pass many times slower.)
// Which thread computes a chunk never changes a result.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

class Pool {
  public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // One pool for each thread count, shared by all models of the process.
    static std::shared_ptr<Pool> shared(int threads);

    int size() const { return size_; }

    // Runs job(thread index) on every thread and returns when all are done. One run at a time; a second caller waits.
    void run(const std::function<void(int)>& job);

    // To be called by every thread of a run, in the same order. Calls work(i) for each i in [0, chunks), then
    // `last` once, on the thread that arrives last, before any thread leaves.
    template <class Work, class Last>
    void phase(int chunks, Work&& work, Last&& last) {
        const uint32_t generation = generation_.load(std::memory_order_acquire);
        for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < chunks;) work(i);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            last();
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_seq_cst);
            if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
        } else {
            await(generation_, generation);
        }
    }
    template <class Work>
    void phase(int chunks, Work&& work) {
        phase(chunks, work, [] {});
    }

  private:
    void await(std::atomic<uint32_t>& word, uint32_t old);
    void worker(int index);

    const int size_;
    std::mutex one_run_;
    const std::function<void(int)>* job_ = nullptr;
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
    alignas(64) std::atomic<uint32_t> start_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
    alignas(64) std::atomic<int> sleepers_{0};
};

}  // namespace outrider
