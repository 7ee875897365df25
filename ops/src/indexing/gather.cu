// Slices picked by index along an axis, and the gradient, which adds slices in the order of the indices: no atomics, no sorting.
//
// K is the type of indices, T an element (by width for a copy). An index outside of the axis sets the status.
#include "dtrc_device.h"

#ifndef GRADIENT
KERNEL(gather, const T *x, const K *indices, T *y, I outer, I n, I inner, I m, Status *status, u32 call) {
    for (I e = thread_index(); e < outer * m * inner; e += thread_count()) {
        I k = e / inner % m;
        i64 row = row_of(indices[k], n);
        if (row < 0) {
            fail(status, call, BAD_INDEX, k, indices[k]);
            y[e] = (T)0;
        } else {
            y[e] = x[(e / inner / m * n + (I)row) * inner + e % inner];
        }
    }
}
#else
typedef Num<T>::Arith W;

// A block for each index that is the first one of its row; the output is zero before. Which indices are of the row is found by all
// threads together, 256 at a time; then each thread adds its columns of those slices.
KERNEL(gather_gradient, const K *indices, const T *dy, T *dx, I outer, I n, I inner, I m, Status *status, u32 call) {
    shared Shared<u32, 32> scratch;
    shared Shared<u32, 8> words;
    const int COLUMNS = 4;
    for (I b = (I)blockIdx.x; b < m; b += (I)gridDim.x) {
        i64 row = row_of(indices[b], n);
        u32 earlier = 0;
        for (I k = (I)threadIdx.x; k < b; k += (I)blockDim.x)
            earlier |= row_of(indices[k], n) == row;
        if (row < 0 && threadIdx.x == 0)
            fail(status, call, BAD_INDEX, b, indices[b]);
        if (block_reduce<Most>(earlier, scratch) || row < 0)
            continue;
        for (I e0 = 0; e0 < outer * inner; e0 += COLUMNS * (I)blockDim.x) {
            W sum[COLUMNS];
            for (int j = 0; j < COLUMNS; j++)
                sum[j] = (W)0;
            for (I k0 = b; k0 < m; k0 += (I)blockDim.x) {
                I own = k0 + (I)threadIdx.x;
                u32 hits = ballot(own < m && row_of(indices[own], n) == row);
                barrier();
                if (threadIdx.x % 32 == 0)
                    words[(int)threadIdx.x / 32] = hits;
                barrier();
                for (int w = 0; w < (int)blockDim.x / 32; w++)
                    for (u32 bits = words[w]; bits; bits &= bits - 1) {
                        I k = k0 + w * 32 + lowest_bit(bits);
                        for (int j = 0; j < COLUMNS; j++) {
                            I e = e0 + j * (I)blockDim.x + (I)threadIdx.x;
                            if (e < outer * inner)
                                sum[j] = add(sum[j], (W)up(dy[(e / inner * m + k) * inner + e % inner]));
                        }
                    }
            }
            for (int j = 0; j < COLUMNS; j++) {
                I e = e0 + j * (I)blockDim.x + (I)threadIdx.x;
                if (e < outer * inner)
                    dx[(e / inner * n + (I)row) * inner + e % inner] = down<T>(sum[j]);
            }
        }
    }
}
#endif
