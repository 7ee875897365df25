// Copies of a box of elements T (by width) between strided layouts, and fills.
#include "dtrc_device.h"

KERNEL(copy, const T *x, T *y, I n, i32 rank, Dims extents, Dims from, Dims to, I from_start, I to_start) {
    for (I i = thread_index(); i < n; i += thread_count())
        y[to_start + offset_of(i, rank, extents, to)] = x[from_start + offset_of(i, rank, extents, from)];
}

// A transposed plane: rows of the source are columns of the destination. Tiles of 32 x 32 through shared memory keep both sides in
// whole accesses; the other axes are counted by blocks.
KERNEL(transpose, const T *x, T *y, I outer, i32 rank, Dims extents, Dims from, Dims to, I from_start, I to_start, I rows, I columns,
       I from_row, I to_column) {
    shared Shared<T, 32 * 33> tile;
    int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32;
    I down_tiles = (rows + 31) / 32, across = (columns + 31) / 32;
    for (I b = (I)blockIdx.x; b < outer * down_tiles * across; b += (I)gridDim.x) {
        I c0 = b % across * 32, r0 = b / across % down_tiles * 32, o = b / across / down_tiles;
        const T *source = x + from_start + offset_of(o, rank, extents, from);
        T *target = y + to_start + offset_of(o, rank, extents, to);
        barrier();
        for (int r = first; r < 32; r += 8)
            if (r0 + r < rows && c0 + lane < columns)
                tile[r * 33 + lane] = source[(r0 + r) * from_row + c0 + lane];
        barrier();
        for (int c = first; c < 32; c += 8)
            if (c0 + c < columns && r0 + lane < rows)
                target[(c0 + c) * to_column + r0 + lane] = tile[lane * 33 + c];
    }
}

// One run on both sides.
KERNEL(run, const T *x, T *y, I n) {
    const int N = 16 / sizeof(T);
    I done = 0;
    if (aligned(x) && aligned(y)) {
        done = n / N * N;
        for (I i = thread_index(); i < n / N; i += thread_count())
            ((Pack<T, N> *)y)[i] = ((const Pack<T, N> *)x)[i];
    }
    for (I i = done + thread_index(); i < n; i += thread_count())
        y[i] = x[i];
}

KERNEL(fill, T *y, I n, u64 bits) {
    const int N = 16 / sizeof(T);
    T value = (T)bits;
    I done = 0;
    if (aligned(y)) {
        Pack<T, N> all;
        for (int k = 0; k < N; k++)
            all.v[k] = value;
        done = n / N * N;
        for (I i = thread_index(); i < n / N; i += thread_count())
            ((Pack<T, N> *)y)[i] = all;
    }
    for (I i = done + thread_index(); i < n; i += thread_count())
        y[i] = value;
}

// `one` on diagonal k of a matrix, 0 elsewhere.
KERNEL(eye, T *y, I n, I columns, i64 k, u64 one) {
    for (I i = thread_index(); i < n; i += thread_count())
        y[i] = (i64)(i % columns) == (i64)(i / columns) + k ? (T)one : (T)0;
}

// What lies on and above (or below) diagonal k.
KERNEL(triangle, const T *x, T *y, I n, I rows, I columns, i64 k, i32 upper) {
    for (I i = thread_index(); i < n; i += thread_count()) {
        i64 d = (i64)(i % columns) - (i64)(i / columns % rows) - k;
        y[i] = (upper ? d >= 0 : d <= 0) ? x[i] : (T)0;
    }
}

KERNEL(extents, i64 *y, I n, Dims values) {
    I i = thread_index();
    if (i < n)
        y[i] = values.v[i];
}
