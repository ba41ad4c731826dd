// Which processor a thread wakes on. Linux only; elsewhere, and where it may not, this does nothing.
#pragma once
#include <vector>

namespace outrider {

// The calling thread's number for the system; 0 where there is none.
int thread_id();

// When these threads wake, they will not be on the processor that the calling thread is on now, if they may
// be on any other.
void keep_off(const std::vector<int>& ids);

// The calling thread may be wherever thread `id` may be.
void follow(int id);

}  // namespace outrider
