#include "threads/placement.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace outrider {

int thread_id() { return int(syscall(SYS_gettid)); }

void avoid_current_cpu(const std::vector<int>& ids) {
    cpu_set_t allowed;
    const int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_CLR(here, &allowed);
    if (CPU_COUNT(&allowed) == 0) return;
    for (int id : ids)
        if (id != 0) sched_setaffinity(id, sizeof allowed, &allowed);
}

void copy_affinity(int id) {
    cpu_set_t allowed;
    if (id != 0 && sched_getaffinity(id, sizeof allowed, &allowed) == 0)
        sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace outrider
#else
namespace outrider {
int thread_id() { return 0; }
void avoid_current_cpu(const std::vector<int>&) {}
void copy_affinity(int) {}
}  // namespace outrider
#endif
