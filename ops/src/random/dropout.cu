// Dropout by the generator of the CPU's kernel: the same elements are dropped. A thread makes one counter's four words, which go to
// elements 32 apart, so that a warp reads and writes neighbours.
#include "dtrc_device.h"

dev Four words(I g, const i64 *seed, const i64 *step, u32 id) {
    u64 s = (u64)seed[0], t = (u64)step[0], counter = (u64)g;
    u32 high = (u32)(t >> 32);
    high = high << 16 | high >> 16;
    return philox((u32)s, (u32)(s >> 32), (u32)counter, (u32)(counter >> 32) ^ high, id, (u32)t);
}

#ifdef T
typedef Num<T>::Arith W;

KERNEL(scale_kept, const T *x, const i64 *seed, const i64 *step, T *y, I n, u32 id, u32 threshold, i32 all, f64 scale) {
    I counters = (n + 127) / 128 * 32;
    for (I g = thread_index(); g < counters; g += thread_count()) {
        Four w = words(g, seed, step, id);
        for (int k = 0; k < 4; k++) {
            I i = g / 32 * 128 + g % 32 + k * 32;
            if (i < n)
                y[i] = down<T>(!all && w.v[k] >= threshold ? up(x[i]) * (W)scale : (W)0);
        }
    }
}
#else
KERNEL(mask, const i64 *seed, const i64 *step, u8 *y, I n, u32 id, u32 threshold, i32 all) {
    I counters = (n + 127) / 128 * 32;
    for (I g = thread_index(); g < counters; g += thread_count()) {
        Four w = words(g, seed, step, id);
        for (int k = 0; k < 4; k++) {
            I i = g / 32 * 128 + g % 32 + k * 32;
            if (i < n)
                y[i] = !all && w.v[k] >= threshold;
        }
    }
}
#endif
