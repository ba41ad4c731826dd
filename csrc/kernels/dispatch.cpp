#include <stdexcept>
#include <string>

#include "kernels/kernels.h"
#if defined(__x86_64__)
#include <cpuid.h>
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
#endif

static const Kernels* usable(const Kernels* kernels, bool cpu_has_it) {
    return cpu_has_it ? kernels : nullptr;
}

const Kernels& choose_kernels(const char* name) {
    const Kernels *avx2 = nullptr, *avxvnni = nullptr, *avx512 = nullptr, *neon = nullptr;
#if defined(__x86_64__)
    __builtin_cpu_init();
    avx2 = usable(avx2_kernels(), has_avx2());
    avxvnni = usable(avxvnni_kernels(), has_avxvnni());
    avx512 = usable(avx512_kernels(),
                    __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__) && defined(__linux__)
    neon = usable(neon_kernels(), (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0);
#elif defined(__aarch64__) && defined(__APPLE__)
    neon = neon_kernels();  // all of Apple's processors have the dot products
#endif
    const std::string wanted = name;
    if (wanted == "auto")
        for (const Kernels* best : {avx512, avxvnni, avx2, neon, portable_kernels()})
            if (best) return *best;
    if (wanted == "portable") return *portable_kernels();
    if (wanted == "avx2" && avx2) return *avx2;
    if (wanted == "avxvnni" && avxvnni) return *avxvnni;
    if (wanted == "avx512" && avx512) return *avx512;
    if (wanted == "neon" && neon) return *neon;
    throw std::invalid_argument("this processor has no \"" + wanted +
                                "\" kernels; choose auto, portable, avx2, avxvnni, avx512 or neon");
}

}  // namespace outrider
