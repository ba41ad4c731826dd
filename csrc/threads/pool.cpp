#include "threads/pool.h"

#include <chrono>
#include <map>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "threads/placement.h"

namespace outrider {

static void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// How long a thread spins before it sleeps. Longer than threads wait for each other at the end of a phase,
// even of a wide pass (half a chunk, some 50 to 100 microseconds), because waking a thread takes as long
// again on a virtual machine; far shorter than a time slice of the scheduler. (Measured by the clock, because
// a pause instruction takes five times as long on some processors as on others.)
constexpr std::chrono::microseconds kSpinTime{150};
// The same of a helper, which also waits for the next pass: longer than a step takes between two passes of a
// small model, drafts included. (After 250 microseconds asleep a helper joined a head's pass 45 too late.)
constexpr std::chrono::microseconds kHelperSpinTime{500};

// Spins until `done()`, for so long at most. Returns whether it is.
template <class Condition>
static bool spin_until(const Condition& done, std::chrono::microseconds most) {
    using Clock = std::chrono::steady_clock;
    if (done()) return true;
    const Clock::time_point end = Clock::now() + most;
    do
        for (int i = 0; i < 16; i++) {
            relax();
            if (done()) return true;
        }
    while (Clock::now() < end);
    return false;
}

Pool::Pool(int threads) : next_reads_(size_t(threads)), shares_(size_t(threads)) {
    for (int i = 1; i < threads; i++) helpers_.push_back(std::make_unique<Helper>());
    for (int i = 1; i < threads; i++) helpers_[size_t(i) - 1]->thread = std::thread([this, i] { helper(i); });
}

Pool::~Pool() {
    stop_ = true;
    phase_.fetch_add(1);
    phase_.notify_all();
    for (auto& h : helpers_) h->thread.join();
}

std::shared_ptr<Pool> Pool::shared(int threads) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<Pool>> pools;
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Pool> pool = pools[threads].lock();
    if (!pool) pools[threads] = pool = std::make_shared<Pool>(threads);
    return pool;
}

static uint64_t packed(uint32_t number, int next, int end) {
    return uint64_t(number) << 32 | uint64_t(uint32_t(next)) << 16 | uint64_t(uint32_t(end));
}

void Pool::publish(int chunks, const void* work, Call call) {
    const uint32_t number = phase_.load(std::memory_order_relaxed) + 1;
    Job& job = jobs_[number & 1];
    job.work.store(work, std::memory_order_relaxed);
    job.call.store(call, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    for (int i = 0; i < size(); i++)
        shares_[size_t(i)].remaining.store(packed(number, share(chunks, i), share(chunks, i + 1)),
                                           std::memory_order_release);
    phase_.store(number, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake();
}

// The system tends to wake a thread on the processor of the thread that wakes it, and may leave both there
// for the whole pass while another processor is idle.
void Pool::wake() {
    caller_.store(thread_id(), std::memory_order_relaxed);
    asleep_.clear();
    for (const auto& h : helpers_)
        if (h->asleep.load(std::memory_order_relaxed))
            asleep_.push_back(h->id.load(std::memory_order_relaxed));
    avoid_current_cpu(asleep_);
    phase_.notify_all();
}

// Computes chunks of the current phase until none is left.
void Pool::help(int thread) {
    for (int i = 0; i < size(); i++) take(shares_[size_t((thread + i) % size())], i == 0, thread);
}

void Pool::take(Share& share, bool own, int thread) {
    uint64_t remaining = share.remaining.load(std::memory_order_acquire);
    for (;;) {
        const uint32_t number = uint32_t(remaining >> 32);
        const int next = int(remaining >> 16 & kMaxChunks), end = int(remaining & kMaxChunks);
        if (next == end) return;
        const Job& job = jobs_[number & 1];
        const void* work = job.work.load(std::memory_order_relaxed);
        const Call call = job.call.load(std::memory_order_relaxed);
        // Succeeds only if the phase is still the one whose job was read: a phase does not end while one of
        // its chunks is left.
        const uint64_t left = own ? packed(number, next + 1, end) : packed(number, next, end - 1);
        if (!share.remaining.compare_exchange_weak(remaining, left, std::memory_order_acq_rel,
                                                   std::memory_order_acquire))
            continue;
        call(work, own ? next : end - 1, thread);
        done_.fetch_add(1, std::memory_order_seq_cst);
        if (thread != 0 && caller_sleeps_.load(std::memory_order_seq_cst)) done_.notify_all();
        remaining = share.remaining.load(std::memory_order_acquire);
    }
}

// Prefetches what `thread` reads next, until `done()`.
template <class Condition>
void Pool::prefetch_until(int thread, const Condition& done) const {
    constexpr size_t line = 64, piece = 8 * line;
    const NextRead& next = next_reads_[size_t(thread)];
    const uint8_t* const first = next.first.load(std::memory_order_relaxed);
    const size_t bytes = next.bytes.load(std::memory_order_relaxed);
    for (size_t at = 0; at + piece <= bytes && !done(); at += piece)
        for (size_t i = at; i < at + piece; i += line) __builtin_prefetch(first + i, 0, 2);
}

void Pool::finish(int chunks) {
    const auto over = [&] { return done_.load(std::memory_order_acquire) == chunks; };
    prefetch_until(0, over);
    if (spin_until(over, kSpinTime)) return;
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    for (int done; (done = done_.load(std::memory_order_seq_cst)) != chunks;) done_.wait(done);
    caller_sleeps_.store(false, std::memory_order_relaxed);
}

void Pool::helper(int thread) {
    Helper& own = *helpers_[size_t(thread) - 1];
    own.id = thread_id();
    uint32_t seen = 0;
    const auto begun = [&] { return phase_.load(std::memory_order_acquire) != seen; };
    for (;;) {
        if (!spin_until(begun, kHelperSpinTime)) {
            own.asleep.store(true, std::memory_order_relaxed);
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            phase_.wait(seen, std::memory_order_seq_cst);
            sleepers_.fetch_sub(1, std::memory_order_relaxed);
            own.asleep.store(false, std::memory_order_relaxed);
            copy_affinity(caller_.load(std::memory_order_relaxed));
        }
        seen = phase_.load(std::memory_order_acquire);
        // Read after `seen`: the end of the pool counts as a phase, after which there is none to wait for.
        if (stop_) return;
        help(thread);
        prefetch_until(thread, begun);
    }
}

}  // namespace outrider
