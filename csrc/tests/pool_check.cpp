// Creates and destroys pools as fast as it can, so that helpers come late to a pool's last phase and meet its
// end. Every chunk must be done once, and no thread may be left waiting (the caller of this program sets a
// time limit).
//   pool_check [POOLS]
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "threads/pool.h"

int main(int argc, char** argv) {
    const int pools = argc > 1 ? std::atoi(argv[1]) : 3000;
    constexpr int phases = 3;
    for (int threads = 2; threads <= 4; threads++)
        for (int i = 0; i < pools; i++) {
            std::array<std::atomic<int>, 5> done{};
            {
                outrider::Pool pool(threads);
                const auto lock = pool.lock();
                for (int phase = 0; phase < phases; phase++)
                    pool.phase(int(done.size()), [&](int chunk, int) { done[size_t(chunk)]++; });
            }
            for (const auto& count : done)
                if (count != phases) {
                    std::printf("%d threads, pool %d: a chunk was done %d times, not %d\n", threads, i,
                                count.load(), phases);
                    return 1;
                }
        }
    // More chunks than a share can count, and the first ones so slow that other threads must steal some.
    for (int threads = 2; threads <= 4; threads++) {
        std::vector<std::atomic<int>> done(200000);
        outrider::Pool pool(threads);
        const auto lock = pool.lock();
        pool.phase(int(done.size()), [&](int chunk, int) {
            if (chunk < 1000) std::this_thread::sleep_for(std::chrono::microseconds(1));
            done[size_t(chunk)]++;
        });
        for (const auto& count : done)
            if (count != 1) {
                std::printf("%d threads, many chunks: one was done %d times\n", threads, count.load());
                return 1;
            }
    }
    std::printf("%d pools of 2 to 4 threads\n", pools);
}
