#include "model/phases.h"

namespace outrider {

// As many panels, of so many bytes each, as are worth taking from the pool, in multiples of `multiple`, and
// of what kernels multiply at once.
int Phases::chunk_panels(size_t panel_bytes, int multiple) const {
    constexpr size_t least = size_t(64) << 10;
    if (tokens_ >= kPairTokens) multiple = std::max(multiple, kPairPanels);
    return (int(least / panel_bytes) + multiple) / multiple * multiple;
}

int Phases::partition(int panels, size_t panel_bytes, int multiple) {
    const int size = chunk_panels(panel_bytes, multiple);
    bounds_.assign(1, 0);
    for (int at = 0; at < panels; bounds_.push_back(at)) at = std::min(panels, at + size);
    return int(bounds_.size()) - 1;
}

void Phases::prefetch_next(std::initializer_list<const Matrix*> matrices, size_t panel_bytes, int multiple) {
    // No more than a part of the second cache, which a prompt's activations fill by themselves.
    const size_t most = tokens_ > 2 * kernels_.token_tile ? 0 : size_t(256) << 10;
    int panels = 0;
    for (const Matrix* m : matrices) panels += m->panels;
    const int size = chunk_panels(panel_bytes, multiple), chunks = (panels + size - 1) / size;
    for (int thread = 0; thread < pool_->size(); thread++) {
        const auto share_begin = [&](int i) { return std::min(panels, pool_->share(chunks, i) * size); };
        int first = share_begin(thread), end = share_begin(thread + 1);
        for (const Matrix* m : matrices) {
            if (first < m->panels) {
                end = std::min(end, m->panels);
                pool_->prefetch_next(thread, m->q + size_t(first) * m->q_stride,
                                     std::min(most, size_t(end - first) * m->q_stride));
                break;
            }
            first -= m->panels, end -= m->panels;
        }
    }
}

void Phases::prefetch_nothing() {
    for (int thread = 0; thread < pool_->size(); thread++) pool_->prefetch_next(thread, nullptr, 0);
}

void Phases::compute(std::initializer_list<Product> products) {
    int panels = 0;
    for (const Product& product : products) panels += product.matrix->panels;
    pool_->phase(partition(panels, products.begin()->matrix->panel_bytes()), [&](int i, int) {
        int before = 0;  // panels of the products before
        for (const Product& product : products) {
            const int first = std::max(0, bounds_[size_t(i)] - before);
            const int last = std::min(product.matrix->panels, bounds_[size_t(i) + 1] - before);
            if (first < last) kernels_.matmul(*product.matrix, *product.input, first, last, product.out);
            before += product.matrix->panels;
        }
    });
}

}  // namespace outrider
