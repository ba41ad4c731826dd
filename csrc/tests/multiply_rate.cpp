// How many products of 8-bit integers a second the processor's instructions give when nothing else holds them
// up: the arithmetic limit that benchmarks/prefill.py compares prompts with. Each instruction has as many
// independent sums as hide its latency; nothing is loaded or stored.
//
//   c++ -O2 -std=c++20 -pthread multiply_rate.cpp -o multiply_rate && ./multiply_rate THREADS
//
// Prints a line for each instruction that the processor has: its name, and thousand million multiplications a
// second of all threads together, the best of several tries.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace {

constexpr int kSteps = 1 << 22;  // times the twelve instructions below

// Twelve instructions that add to twelve registers, as one string.
#define TWELVE(line)                                                                                    \
    line("0") line("1") line("2") line("3") line("4") line("5") line("6") line("7") line("8") line("9") \
        line("10") line("11")

struct Instruction {
    const char* name;
    int products;  // of one instruction
    void (*run)();
};

#if defined(__x86_64__)
#define VNNI512(r) "vpdpbusd %%zmm30, %%zmm31, %%zmm" r "\n\t"
#define VNNI256(r) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" r "\n\t"
#define MADD256(r) "vpmaddubsw %%ymm14, %%ymm15, %%ymm" r "\n\t"
#define CLOBBERS \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
[[gnu::target("avx512f,avx512vnni")]] void vnni512() {
    for (int i = 0; i < kSteps; i++) asm volatile(TWELVE(VNNI512)::: CLOBBERS);
}
[[gnu::target("avx2,avxvnni")]] void vnni256() {
    for (int i = 0; i < kSteps; i++) asm volatile(TWELVE(VNNI256)::: CLOBBERS);
}
[[gnu::target("avx2")]] void madd256() {
    for (int i = 0; i < kSteps; i++) asm volatile(TWELVE(MADD256)::: CLOBBERS);
}
std::vector<Instruction> instructions() {
    std::vector<Instruction> found;
    if (__builtin_cpu_supports("avx512vnni")) found.push_back({"avx512", 64, vnni512});
    if (__builtin_cpu_supports("avxvnni")) found.push_back({"avxvnni", 32, vnni256});
    if (__builtin_cpu_supports("avx2")) found.push_back({"avx2", 32, madd256});
    return found;
}
#elif defined(__aarch64__)
#define SDOT(r) "sdot v" r ".4s, v30.16b, v31.16b\n\t"
[[gnu::target("+dotprod")]] void sdot() {
    for (int i = 0; i < kSteps; i++)
        asm volatile(TWELVE(SDOT)::
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11");
}
std::vector<Instruction> instructions() {
#ifdef __linux__
    if (!(getauxval(AT_HWCAP) & (1 << 20))) return {};  // HWCAP_ASIMDDP
#endif
    return {{"neon", 16, sdot}};
}
#else
std::vector<Instruction> instructions() { return {}; }
#endif

// All threads begin together; the slowest one's time counts.
double seconds(const Instruction& instruction, int threads) {
    using Clock = std::chrono::steady_clock;
    std::atomic<int> ready{0};
    std::vector<double> taken(size_t(threads), 0.0);
    std::vector<std::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([&, i] {
            ready++;
            while (ready < threads) {
            }
            const auto began = Clock::now();
            instruction.run();
            taken[size_t(i)] = std::chrono::duration<double>(Clock::now() - began).count();
        });
    for (std::thread& thread : all) thread.join();
    return *std::max_element(taken.begin(), taken.end());
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
    for (const Instruction& instruction : instructions()) {
        double least = seconds(instruction, threads);
        for (int i = 0; i < 20; i++) least = std::min(least, seconds(instruction, threads));
        std::printf("%s %.1f\n", instruction.name,
                    12.0 * kSteps * instruction.products * threads / least / 1e9);
    }
    return 0;
}
