// AMX's tile instructions, done by a handler of SIGILL.
#include "tests/emulated.h"

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace outrider {

bool g_emulated_tiles_drop_a_column = false;

namespace {

struct Configuration {  // as ldtilecfg reads it
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
struct Tile {
    uint8_t bytes[16][64];
};

// Of the one thread that runs kernels here.
Configuration g_configuration;
Tile g_tiles[8];

// An instruction with a three-byte VEX prefix (Intel's manual, volume 2, sections 2.3 and 2.1.5).
class Instruction {
  public:
    Instruction(const uint8_t* code, const greg_t* registers) : code_(code), registers_(registers) {}

    bool has_prefix() const {  // of 128 bits, in the map of 0F 38
        return code_[0] == 0xc4 && (code_[1] & 31) == 2 && (code_[2] & 0x84) == 0;
    }
    int opcode() const { return code_[3]; }
    int prefix() const { return code_[2] & 3; }  // 0: none, 1: 66, 2: F3, 3: F2
    bool in_registers() const { return code_[4] >> 6 == 3; }
    int reg() const { return code_[4] >> 3 & 7; }
    int rm() const { return code_[4] & 7; }
    int vvvv() const { return ~code_[2] >> 3 & 15; }

    // The operand in memory, without its index, and the index (0: none), of the forms that have a base.
    uint8_t* base() const {
        const int mod = code_[4] >> 6, number = (rm() == 4 ? code_[5] & 7 : rm()) | (code_[1] & 0x20 ? 0 : 8);
        const uint8_t* const displacement = code_ + 5 + (rm() == 4);
        int32_t apart = mod == 1 ? int8_t(*displacement) : 0;
        if (mod == 2) std::memcpy(&apart, displacement, 4);
        return reinterpret_cast<uint8_t*>(general(number)) + apart;
    }
    size_t stride() const {
        const int number = (code_[5] >> 3 & 7) | (code_[1] & 0x40 ? 0 : 8);
        return number == 4 ? 0 : size_t(general(number)) << (code_[5] >> 6);
    }
    int length() const {
        static constexpr int displacement[] = {0, 1, 4, 0};
        return 5 + (!in_registers() && rm() == 4) + displacement[code_[4] >> 6];
    }

  private:
    greg_t general(int number) const {
        static constexpr int at[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return registers_[at[number]];
    }

    const uint8_t* code_;
    const greg_t* registers_;
};

void multiply(int sums, int a, int b) {  // tdpbssd
    const int slices = g_configuration.rows[b];
    for (int m = 0; m < g_configuration.rows[sums]; m++)
        for (int n = 0; n < g_configuration.row_bytes[sums] / 4; n++) {
            int32_t sum;
            std::memcpy(&sum, &g_tiles[sums].bytes[m][4 * n], 4);
            for (int k = 0; k < 4 * slices; k++)
                if (k > 0 || !g_emulated_tiles_drop_a_column)
                    sum += int8_t(g_tiles[a].bytes[m][k]) * int8_t(g_tiles[b].bytes[k / 4][4 * n + k % 4]);
            std::memcpy(&g_tiles[sums].bytes[m][4 * n], &sum, 4);
        }
}

// False for an instruction that is none of these, or that AMX would refuse with this configuration.
bool execute(const Instruction& it) {
    if (!it.has_prefix()) return false;
    const int tile = it.reg(), rows = g_configuration.rows[tile], bytes = g_configuration.row_bytes[tile];
    if (it.opcode() == 0x49 && it.prefix() == 0) {  // ldtilecfg, tilerelease
        std::memset(&g_configuration, 0, sizeof g_configuration);
        if (it.in_registers()) return it.reg() == 0;
        std::memcpy(&g_configuration, it.base(), sizeof g_configuration);
        for (int i = 0; i < 8; i++)
            if (g_configuration.rows[i] > 16 || g_configuration.row_bytes[i] > 64) return false;
        return it.reg() == 0 && g_configuration.palette == 1 && g_configuration.start_row == 0;
    }
    if (g_configuration.palette != 1 || rows == 0 || bytes == 0) return false;
    if (it.opcode() == 0x49 && it.prefix() == 3 && it.in_registers()) {  // tilezero
        std::memset(&g_tiles[tile], 0, sizeof(Tile));
    } else if (it.opcode() == 0x4b && it.prefix() == 3 && it.rm() == 4) {  // tileloadd
        std::memset(&g_tiles[tile], 0, sizeof(Tile));
        for (int i = 0; i < rows; i++)
            std::memcpy(g_tiles[tile].bytes[i], it.base() + size_t(i) * it.stride(), size_t(bytes));
    } else if (it.opcode() == 0x4b && it.prefix() == 2 && it.rm() == 4) {  // tilestored
        for (int i = 0; i < rows; i++)
            std::memcpy(it.base() + size_t(i) * it.stride(), g_tiles[tile].bytes[i], size_t(bytes));
    } else if (it.opcode() == 0x5e && it.prefix() == 3 && it.in_registers()) {  // tdpbssd
        const int a = it.rm(), b = it.vvvv();
        if (tile == a || tile == b || a == b || g_configuration.rows[a] != rows ||
            g_configuration.row_bytes[a] != 4 * g_configuration.rows[b] ||
            g_configuration.row_bytes[b] != bytes)
            return false;
        multiply(tile, a, b);
    } else {
        return false;
    }
    return true;
}

void on_illegal_instruction(int signal, siginfo_t*, void* context) {
    greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const Instruction it(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
    if (execute(it))
        registers[REG_RIP] += it.length();
    else
        ::signal(signal, SIG_DFL);  // it is raised again
}

}  // namespace

bool emulate_tiles() {
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGILL, &action, nullptr) == 0;
}

}  // namespace outrider
#else
namespace outrider {
bool g_emulated_tiles_drop_a_column = false;
bool emulate_tiles() { return false; }
}  // namespace outrider
#endif
