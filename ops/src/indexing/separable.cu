// Maps that act on each axis by itself (resizing, padding by repetition, and their transposes): a thread for each element of the output,
// which sums over the product of its taps along the axes.
//
// The taps are made on the host, once for all devices, and come as arguments of `store`. For each axis that is no identity the table has
// the first tap of every output coordinate, then three words a tap: input coordinate and weight. With PICK an axis has one input
// coordinate for every output coordinate and no weights; T is then an element by width.
#include "dtrc_device.h"

struct Words {
    u32 v[896];
};

KERNEL(store, u32 *table, I at, i32 n, Words words) {
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        table[at + i] = words.v[i];
}

#if PICK
KERNEL(pick, const T *x, T *y, const u32 *table, I n, i32 rank, Dims extents, Dims strides, Dims starts) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        I rest = e, at = 0;
        for (int a = rank - 1; a >= 0; a--) {
            I o = rest % extents.v[a];
            rest /= extents.v[a];
            at += (starts.v[a] < 0 ? o : (I)table[starts.v[a] + o]) * strides.v[a];
        }
        y[e] = x[at];
    }
}
#else
typedef Num<T>::Arith W;

dev W weight_of(const u32 *words) {
    union {
        u64 bits;
        f64 value;
    } w;
    w.bits = (u64)words[1] << 32 | words[0];
    return (W)w.value;
}

// Where `outside` is set, an element that has no taps along some axis is `value`.
KERNEL(sum, const T *x, T *y, const u32 *table, I n, i32 rank, Dims extents, Dims strides, Dims starts, Dims taps, i32 outside,
       f64 value) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        I first[RANK], count[RANK], rest = e, all = 1;
        for (int a = rank - 1; a >= 0; a--) {
            I o = rest % extents.v[a];
            rest /= extents.v[a];
            first[a] = starts.v[a] < 0 ? o : (I)table[starts.v[a] + o];
            count[a] = starts.v[a] < 0 ? 1 : (I)table[starts.v[a] + o + 1] - first[a];
            all *= count[a];
        }
        W total = 0;
        for (I t = 0; t < all; t++) {
            I k = t, at = 0;
            W weight = 1;
            for (int a = rank - 1; a >= 0; a--) {
                if (starts.v[a] < 0) {
                    at += first[a] * strides.v[a];
                    continue;
                }
                const u32 *tap = table + taps.v[a] + 3 * (first[a] + k % count[a]);
                k /= count[a];
                at += (I)tap[0] * strides.v[a];
                weight *= weight_of(tap + 1);
            }
            total += weight * up(x[at]);
        }
        y[e] = down<T>(outside && all == 0 ? (W)value : total);
    }
}
#endif
