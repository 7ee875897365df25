// Tensors of random numbers, by the CPU's generator. A thread makes one counter's four words.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// In [0, 1): a multiple of 2^-24, or of 2^-32 in f64.
template <int BYTES> dev f64 unit_of(u32 word) {
    return BYTES == 4 ? (f64)(word >> 8) * (1.0 / 16777216.0) : (f64)word * (1.0 / 4294967296.0);
}
dev W unit(u32 word) { return (W)unit_of<sizeof(W)>(word); }

KERNEL(uniform, const i64 *seed, const i64 *step, T *y, I n, u32 id, f64 low, f64 high) {
    W width = (W)(high - low);
    for (I g = thread_index(); g < random_counters(n); g += thread_count()) {
        Four w = random_words(g, seed, step, id);
        for (int k = 0; k < 4; k++)
            if (random_element(g, k) < n)
                y[random_element(g, k)] = down<T>((W)low + unit(w.v[k]) * width);
    }
}

// Box and Muller: two uniform numbers make two normal ones.
KERNEL(normal, const i64 *seed, const i64 *step, T *y, I n, u32 id, f64 mean, f64 scale) {
    for (I g = thread_index(); g < random_counters(n); g += thread_count()) {
        Four w = random_words(g, seed, step, id);
        for (int k = 0; k < 2; k++) {
            W u = ((W)w.v[k] + (W)1) * (W)(1.0 / 4294967296.0), angle = unit(w.v[k + 2]) * (W)6.283185307179586476925;
            W radius = m_sqrt(m_log(u) * (W)-2);
            if (random_element(g, k) < n)
                y[random_element(g, k)] = down<T>((W)mean + radius * m_cos(angle) * (W)scale);
            if (random_element(g, k + 2) < n)
                y[random_element(g, k + 2)] = down<T>((W)mean + radius * m_sin(angle) * (W)scale);
        }
    }
}
