// What this machine's memory can deliver.
#pragma once
#include "model/weights.h"

namespace outrider {

// 1e9 bytes a second: the best of a few reads of the packed weights by all threads.
double read_gb_per_s(const Weights& weights, Pool& pool);

}  // namespace outrider
