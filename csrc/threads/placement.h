// On which processor threads wake. Does nothing except on Linux, or where setting the affinity is not
// permitted.
#pragma once
#include <vector>

namespace outrider {

// The system's id of the calling thread; 0 where there is none.
int thread_id();

// Takes the calling thread's current processor out of the affinity of these threads, unless it is the only
// one.
void avoid_current_cpu(const std::vector<int>& ids);

// Gives the calling thread the affinity of thread `id`.
void copy_affinity(int id);

}  // namespace outrider
