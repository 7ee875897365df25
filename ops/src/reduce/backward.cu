// Gradients of reductions to an extreme and to a product. Every element belongs to one output.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// A block for each output: dy is shared evenly among the elements that equal it.
KERNEL(extreme, const T *x, const T *y, const T *dy, T *dx, I outputs, I count, i32 kept_rank, Dims kept, Dims kept_strides, i32 rank,
       Dims extents, Dims strides) {
    shared Shared<W, 32> scratch;
    for (I o = (I)blockIdx.x; o < outputs; o += (I)gridDim.x) {
        I at = offset_of(o, kept_rank, kept, kept_strides);
        W most = up(y[o]), ties = 0;
        for (I i = (I)threadIdx.x; i < count; i += (I)blockDim.x)
            ties += up(x[at + offset_of(i, rank, extents, strides)]) == most ? (W)1 : (W)0;
        W share = up(dy[o]) / block_reduce<Plus>(ties, scratch);
        for (I i = (I)threadIdx.x; i < count; i += (I)blockDim.x) {
            I e = at + offset_of(i, rank, extents, strides);
            dx[e] = down<T>(up(x[e]) == most ? share : (W)0);
        }
    }
}

// A thread for each output: the products of the elements before each one, then times those after it; right for zeros too. `products` holds
// the former, and may be dx.
KERNEL(product, const T *x, const T *dy, T *dx, W *products, I outputs, I count, i32 kept_rank, Dims kept, Dims kept_strides, i32 rank,
       Dims extents, Dims strides) {
    for (I o = thread_index(); o < outputs; o += thread_count()) {
        I at = offset_of(o, kept_rank, kept, kept_strides);
        f64 before = 1, after = (f64)up(dy[o]);
        for (I i = 0; i < count; i++) {
            I e = at + offset_of(i, rank, extents, strides);
            products[e] = (W)before;
            before *= (f64)up(x[e]);
        }
        for (I i = count; i-- > 0;) {
            I e = at + offset_of(i, rank, extents, strides);
            dx[e] = down<T>((f64)products[e] * after);
            after *= (f64)up(x[e]);
        }
    }
}
