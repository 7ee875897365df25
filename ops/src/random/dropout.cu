// Dropout by the generator of the CPU's kernel: the same elements are dropped. A thread makes one counter's four words.
#include "dtrc_device.h"

#ifdef T
typedef Num<T>::Arith W;

KERNEL(scale_kept, const T *x, const i64 *seed, const i64 *step, T *y, I n, u32 id, u32 threshold, i32 all, f64 scale) {
    for (I g = thread_index(); g < random_counters(n); g += thread_count()) {
        Four w = random_words(g, seed, step, id);
        for (int k = 0; k < 4; k++) {
            I i = random_element(g, k);
            if (i < n)
                y[i] = down<T>(!all && w.v[k] >= threshold ? up(x[i]) * (W)scale : (W)0);
        }
    }
}
#else
KERNEL(mask, const i64 *seed, const i64 *step, u8 *y, I n, u32 id, u32 threshold, i32 all) {
    for (I g = thread_index(); g < random_counters(n); g += thread_count()) {
        Four w = random_words(g, seed, step, id);
        for (int k = 0; k < 4; k++) {
            I i = random_element(g, k);
            if (i < n)
                y[i] = !all && w.v[k] >= threshold;
        }
    }
}
#endif
