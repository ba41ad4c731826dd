#include "pool.h"

#include <map>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace outrider {

static void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

Pool::Pool(int threads) : size_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < size_; i++) threads_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
    stop_ = true;
    start_.fetch_add(1);
    start_.notify_all();
    for (auto& t : threads_) t.join();
}

std::shared_ptr<Pool> Pool::shared(int threads) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<Pool>> pools;
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Pool> pool = pools[threads].lock();
    if (!pool) pools[threads] = pool = std::make_shared<Pool>(threads);
    return pool;
}

// About 50 microseconds of spinning: longer than a balanced phase's tail, far shorter than a scheduler's slice.
void Pool::await(std::atomic<uint32_t>& word, uint32_t old) {
    for (int i = 0; i < 1000; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word.load(std::memory_order_seq_cst) == old) word.wait(old, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Pool::run(const std::function<void(int)>& job) {
    std::lock_guard<std::mutex> lock(one_run_);
    job_ = &job;
    start_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) start_.notify_all();
    job(0);
    phase(0, [](int) {});  // everyone is done
}

void Pool::worker(int index) {
    for (uint32_t seen = 0;;) {
        await(start_, seen);
        seen++;
        if (stop_) return;
        (*job_)(index);
        phase(0, [](int) {});
    }
}

}  // namespace outrider
