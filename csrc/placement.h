// Which processor a thread wakes on. Linux only; elsewhere, and where it may not, this does nothing.
#pragma once

namespace outrider {

// The calling thread's number for the system; 0 where there is none.
int thread_id();

// When thread `id` wakes, it will not be on the processor that the calling thread is on now, if it may be on any other.
void keep_off(int id);

// The calling thread may be wherever thread `id` may be.
void follow(int id);

}  // namespace outrider
