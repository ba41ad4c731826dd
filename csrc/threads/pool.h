// Threads that compute the phases of a forward pass together with the calling thread.
//
// A phase is a number of chunks. Each thread has an equal, contiguous share of them: it takes them one at a
// time from the front of its own share, then steals from the back of the others'. The phase ends when every
// chunk is done, whichever thread did it, so a helper that is descheduled delays it only while it holds a
// chunk. (A barrier that all threads must reach costs a time slice of the scheduler whenever one is
// descheduled: with one other busy process a pass of 150 phases took ten times as long. See
// benchmarks/contention.py.) Contiguous shares let a thread read memory from front to back, so that
// prefetching fetches what it needs next. Which thread computes a chunk never changes a result.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
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

    int size() const { return int(helpers_.size()) + 1; }

    // Must be held to call phase(), for a whole pass.
    std::unique_lock<std::mutex> lock() { return std::unique_lock<std::mutex>(one_caller_); }

    // What `thread` is likely to read first in the phase after the next one: it prefetches that while it
    // waits for the others at the end of the next phase, when memory is mostly idle.
    void prefetch_next(int thread, const uint8_t* first, size_t bytes) {
        next_reads_[size_t(thread)].first.store(first, std::memory_order_relaxed);
        next_reads_[size_t(thread)].bytes.store(bytes, std::memory_order_relaxed);
    }

    // The first chunk of a thread's share.
    int share(int chunks, int thread) const { return int(int64_t(chunks) * thread / size()); }

    // Calls work(chunk, thread) once for each chunk in [0, chunks), thread in [0, size()).
    template <class Work>
    void phase(int chunks, const Work& work) {
        const int each = std::max(1, (chunks + kMaxChunks - 1) / kMaxChunks);
        if (each == 1) return run_chunks(chunks, work);
        run_chunks((chunks + each - 1) / each, [&](int i, int thread) {
            for (int chunk = i * each, end = std::min(chunks, chunk + each); chunk < end; chunk++)
                work(chunk, thread);
        });
    }

  private:
    using Call = void (*)(const void*, int, int);
    static constexpr int kMaxChunks = 0xffff;  // that a share can count

    template <class Work>
    void run_chunks(int chunks, const Work& work) {
        if (helpers_.empty() || chunks <= 1) {
            for (int i = 0; i < chunks; i++) work(i, 0);
            return;
        }
        publish(chunks, &work,
                [](const void* w, int chunk, int thread) { (*static_cast<const Work*>(w))(chunk, thread); });
        help(0);
        finish(chunks);
    }

    // Atomic, because a late helper may read the fields while they change; it then fails to take a chunk.
    struct Job {
        std::atomic<const void*> work{nullptr};
        std::atomic<Call> call{nullptr};
    };

    // The chunks of a thread's share that nobody has taken yet: number of the phase, first chunk, end.
    struct alignas(64) Share {
        std::atomic<uint64_t> remaining{0};
    };

    struct NextRead {
        std::atomic<const uint8_t*> first{nullptr};
        std::atomic<size_t> bytes{0};
    };

    struct Helper {
        std::thread thread;
        std::atomic<int> id{0};
        std::atomic<bool> asleep{false};
    };

    void publish(int chunks, const void* work, Call call);
    void wake();
    void help(int thread);
    void take(Share& share, bool own, int thread);
    template <class Condition>
    void prefetch_until(int thread, const Condition& done) const;
    void finish(int chunks);
    void helper(int thread);

    std::mutex one_caller_;
    std::vector<std::unique_ptr<Helper>> helpers_;
    std::vector<NextRead> next_reads_;  // of each thread
    std::atomic<int> caller_{0};        // thread id, for the current phase
    std::vector<int> asleep_;           // helpers to wake for it
    std::atomic<bool> stop_{false};
    Job jobs_[2];                                 // of the current phase and of the previous one
    std::vector<Share> shares_;                   // of each thread
    alignas(64) std::atomic<int> done_{0};        // chunks finished in this phase
    alignas(64) std::atomic<uint32_t> phase_{0};  // what idle helpers sleep on
    alignas(64) std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<bool> caller_sleeps_{false};
};

}  // namespace outrider
