// Begins and ends pools as fast as it can: a helper that comes late to a pool's last phase meets its end. Every chunk must
// be done once, and no thread may be left waiting: whoever runs this gives it some time and no more.
//   pool_check [POOLS]
#include <array>
#include <cstdio>
#include <cstdlib>

#include "../pool.h"

int main(int argc, char** argv) {
    const int pools = argc > 1 ? std::atoi(argv[1]) : 20000;
    constexpr int phases = 3;
    for (int threads = 2; threads <= 4; threads++)
        for (int i = 0; i < pools; i++) {
            std::array<std::atomic<int>, 5> done{};
            {
                outrider::Pool pool(threads);
                const auto turn = pool.turn();
                for (int phase = 0; phase < phases; phase++) pool.phase(int(done.size()), [&](int chunk, int) { done[size_t(chunk)]++; });
            }
            for (const auto& count : done)
                if (count != phases) {
                    std::printf("%d threads, pool %d: a chunk was done %d times, not %d\n", threads, i, count.load(), phases);
                    return 1;
                }
        }
    std::printf("%d pools of 2 to 4 threads\n", pools);
}
