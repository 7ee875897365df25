// Reductions of a tensor T by R: partial results by threads in a fixed pattern, joined by a fixed tree.
//
// `runs` where the innermost axis is reduced, a block for each output and slice; `columns` where it is kept, a block for 32 neighbouring
// outputs and a slice. With several slices their results go through the workspace, and `gather` joins them in order.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

template <class V, bool FLOAT> struct Absolute {
    dev static V of(V x) { return x < (V)0 ? sub((V)0, x) : x; }
};
template <class V> struct Absolute<V, true> {
    dev static V of(V x) { return m_abs(x); }
};

template <class V> dev V root(V x) { return (V)sqrt((f64)x); }
dev f32 root(f32 x) { return m_sqrt(x); }

struct Total {
    dev static W start() { return (W)0; }
    dev static W join(W a, W b) { return add(a, b); }
    dev static W one(W x) { return x; }
    dev static W finish(W w, i64) { return w; }
};
struct Mean : Total {
    dev static W finish(W w, i64 count) { return w / (W)count; }
};
struct L1 : Total {
    dev static W one(W x) { return Absolute<W, IsFloat<W>::value>::of(x); }
};
struct SumSquare : Total {
    dev static W one(W x) { return mul(x, x); }
};
struct L2 : SumSquare {
    dev static W finish(W w, i64) { return root(w); }
};
struct Product : Total {
    dev static W start() { return (W)1; }
    dev static W join(W a, W b) { return mul(a, b); }
};
struct Maximum : Total {
    dev static W start() { return Limits<W>::lowest(); }
    dev static W join(W a, W b) { return larger(a, b); }
};
struct Minimum : Total {
    dev static W start() { return Limits<W>::highest(); }
    dev static W join(W a, W b) { return smaller(a, b); }
};

KERNEL(runs, const T *x, T *y, W *partial, I outputs, I count, I slice, I slices, i32 kept_rank, Dims kept, Dims kept_strides, i32 rank,
       Dims extents, Dims strides) {
    shared Shared<W, 32> scratch;
    for (I b = (I)blockIdx.x; b < outputs * slices; b += (I)gridDim.x) {
        I o = b / slices, from = b % slices * slice;
        I end = count - from < slice ? count : from + slice;
        const T *row = x + offset_of(o, kept_rank, kept, kept_strides);
        W w = R::start();
        for (I i = from + (I)threadIdx.x; i < end; i += (I)blockDim.x)
            w = R::join(w, R::one(up(row[offset_of(i, rank, extents, strides)])));
        w = block_reduce<R>(w, scratch);
        if (threadIdx.x == 0) {
            if (slices == 1)
                y[o] = down<T>(R::finish(w, count));
            else
                partial[b] = w;
        }
    }
}

KERNEL(columns, const T *x, T *y, W *partial, I outputs, I run, I count, I slice, I slices, i32 kept_rank, Dims kept, Dims kept_strides,
       i32 rank, Dims extents, Dims strides) {
    shared Shared<W, 256> scratch;
    int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32;
    I blocks = (run + 31) / 32, groups = outputs / run;
    for (I b = (I)blockIdx.x; b < groups * blocks * slices; b += (I)gridDim.x) {
        I s = b % slices, column = b / slices % blocks * 32 + lane, group = b / slices / blocks;
        I from = s * slice, end = count - from < slice ? count : from + slice;
        W w = R::start();
        if (column < run) {
            const T *at = x + offset_of(group, kept_rank, kept, kept_strides) + column;
            for (I i = from + first; i < end; i += 8)
                w = R::join(w, R::one(up(at[offset_of(i, rank, extents, strides)])));
        }
        barrier();
        scratch[(int)threadIdx.x] = w;
        barrier();
        if (first == 0 && column < run) {
            for (int k = 1; k < 8; k++)
                w = R::join(w, (W)scratch[k * 32 + lane]);
            I o = group * run + column;
            if (slices == 1)
                y[o] = down<T>(R::finish(w, count));
            else
                partial[o * slices + s] = w;
        }
    }
}

KERNEL(gather, const W *partial, T *y, I outputs, I count, I slices) {
    for (I o = thread_index(); o < outputs; o += thread_count()) {
        W w = partial[o * slices];
        for (I s = 1; s < slices; s++)
            w = R::join(w, partial[o * slices + s]);
        y[o] = down<T>(R::finish(w, count));
    }
}
