#include <stdexcept>
#include <string>

#include "kernels/kernels.h"
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace outrider {

// Measured: AMD's processors from Zen 5 on do not. Others are not known to keep them, and repeating
// prefetches costs little there.
static bool drops_prefetches() {
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d))
        return true;
    return (a >> 8 & 15) + (a >> 20 & 255) < 26;  // the family
#else
    return true;
#endif
}
const bool kDropsPrefetches = drops_prefetches();

CacheType cache_type_by_name(const std::string& name) {
    if (name == "f32") return CacheType::f32;
    if (name == "f16") return CacheType::f16;
    if (name == "q8_0") return CacheType::q8_0;
    throw std::invalid_argument("keys and values cannot be held as \"" + name +
                                "\"; choose f16, f32 or q8_0");
}

#if defined(__x86_64__)
static bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
// (Not every compiler has a name for it. Its registers are AVX2's, which the system must save.)
static bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!has_avx2() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return false;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
static bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
// Linux lets a process use tiles once it has asked: all its threads, also those to come. It refuses where a
// thread's stack for signals is too small for them, and other systems do not let us ask.
static bool may_use_tiles() {
#if defined(__linux__)
    constexpr int tile_data = 18, ask = 0x1023;  // XFEATURE_XTILE_DATA, ARCH_REQ_XCOMP_PERM
    static const bool granted = syscall(SYS_arch_prctl, ask, tile_data) == 0;
    return granted;
#else
    return false;
#endif
}
static bool has_amx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned tiles = 1u << 24, int8 = 1u << 25, xgetbv = 1u << 27;
    if (!(d & tiles) || !(d & int8) || !__get_cpuid(1, &a, &b, &c, &d) || !(c & xgetbv)) return false;
    unsigned saved = 0;  // what the system saves of a thread
    asm volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    constexpr unsigned tile_state = 3u << 17;  // their configuration and their data
    return (saved & tile_state) == tile_state && may_use_tiles();
}
#endif

static const Kernels* usable(const Kernels* kernels, bool cpu_has_it) {
    return cpu_has_it ? kernels : nullptr;
}

const Kernels& choose_kernels(const char* name) {
    const Kernels *avx2 = nullptr, *avxvnni = nullptr, *avx512 = nullptr, *amx = nullptr, *neon = nullptr;
#if defined(__x86_64__)
    __builtin_cpu_init();
    avx2 = usable(avx2_kernels(), has_avx2());
    avxvnni = usable(avxvnni_kernels(), has_avxvnni());
    avx512 = usable(avx512_kernels(), has_avx512());
    amx = avx512 ? usable(amx_kernels(), has_amx()) : nullptr;
#elif defined(__aarch64__) && defined(__linux__)
    neon = usable(neon_kernels(), (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0);
#elif defined(__aarch64__) && defined(__APPLE__)
    neon = neon_kernels();  // all of Apple's processors have the dot products
#endif
    const std::string wanted = name;
    if (wanted == "auto")
        for (const Kernels* best :
             {amx ? measured_amx_kernels() : nullptr, avx512, avxvnni, avx2, neon, portable_kernels()})
            if (best) return *best;
    if (wanted == "portable") return *portable_kernels();
    if (wanted == "avx2" && avx2) return *avx2;
    if (wanted == "avxvnni" && avxvnni) return *avxvnni;
    if (wanted == "avx512" && avx512) return *avx512;
    if (wanted == "amx" && amx) return *amx;
    if (wanted == "neon" && neon) return *neon;
    throw std::invalid_argument("this processor has no \"" + wanted +
                                "\" kernels; choose auto, portable, avx2, avxvnni, avx512, amx or neon");
}

}  // namespace outrider
