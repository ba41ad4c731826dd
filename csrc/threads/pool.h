// Threads that help the calling one through the phases of a forward pass.
//
// A phase is a number of chunks, and each thread has an equal share of them, next to one another. It takes
// them one at a time from the front, then from the back of the others' shares, and the phase is over when
// every chunk is done, whoever did it: a helper that the system keeps off its processor is not waited for
// unless it holds a chunk. (A barrier that all threads must reach costs a scheduler's slice each time: with
// one other busy process a pass of 150 phases took ten times as long. See benchmarks/contention.py.) So a
// thread goes through memory from front to back, and what is fetched ahead of it is what it comes to next.
// Which thread computes a chunk never changes a result.
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

    // The right to call phase(); hold it for a whole pass.
    std::unique_lock<std::mutex> turn() { return std::unique_lock<std::mutex>(one_caller_); }

    // What `thread` is likely to read first in the phase after the next one that is called: it asks for that
    // while it waits for the others at the phase's end, when memory has little else to do.
    void expect(int thread, const uint8_t* first, size_t bytes) {
        expected_[size_t(thread)].first.store(first, std::memory_order_relaxed);
        expected_[size_t(thread)].bytes.store(bytes, std::memory_order_relaxed);
    }

    // The first chunk of a thread's share.
    int share(int chunks, int thread) const { return int(int64_t(chunks) * thread / size()); }

    // Calls work(chunk, thread) once for each chunk in [0, chunks), thread in [0, size()).
    template <class Work>
    void phase(int chunks, const Work& work) {
        const int each = std::max(1, (chunks + kMost - 1) / kMost);
        if (each == 1) return one_by_one(chunks, work);
        one_by_one((chunks + each - 1) / each, [&](int i, int thread) {
            for (int chunk = i * each, end = std::min(chunks, chunk + each); chunk < end; chunk++)
                work(chunk, thread);
        });
    }

  private:
    using Call = void (*)(const void*, int, int);
    static constexpr int kMost = 0xffff;  // chunks that a share can count

    template <class Work>
    void one_by_one(int chunks, const Work& work) {
        if (helpers_.empty() || chunks <= 1) {
            for (int i = 0; i < chunks; i++) work(i, 0);
            return;
        }
        publish(chunks, &work,
                [](const void* w, int chunk, int thread) { (*static_cast<const Work*>(w))(chunk, thread); });
        help(0);
        finish(chunks);
    }

    // Fields are atomic because a late helper may read them while they change; it then fails to take a chunk.
    struct Job {
        std::atomic<const void*> work{nullptr};
        std::atomic<Call> call{nullptr};
    };

    // What a thread's share still has of a phase: its number, then the first chunk and the end of the rest.
    struct alignas(64) Share {
        std::atomic<uint64_t> rest{0};
    };

    struct Expected {
        std::atomic<const uint8_t*> first{nullptr};
        std::atomic<size_t> bytes{0};
    };

    // A thread beside the caller.
    struct Helper {
        std::thread thread;
        std::atomic<int> id{0};
        std::atomic<bool> asleep{false};
    };

    void publish(int chunks, const void* work, Call call);
    void wake();
    void help(int thread);
    void take(Share& share, bool own, int thread);
    template <class Come>
    void look_ahead(int thread, const Come& come) const;
    void finish(int chunks);
    void helper(int thread);

    std::mutex one_caller_;
    std::vector<std::unique_ptr<Helper>> helpers_;
    std::vector<Expected> expected_;  // of each thread
    std::atomic<int> caller_{0};      // of the phase under way
    std::vector<int> asleep_;         // helpers that it wakes
    std::atomic<bool> stop_{false};
    Job jobs_[2];                                 // of the phase under way, and of the one before
    std::vector<Share> shares_;                   // of each thread
    alignas(64) std::atomic<int> done_{0};        // chunks finished in this phase
    alignas(64) std::atomic<uint32_t> phase_{0};  // what idle helpers sleep on
    alignas(64) std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<bool> caller_sleeps_{false};
};

}  // namespace outrider
