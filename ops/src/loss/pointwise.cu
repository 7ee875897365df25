// Means of losses F of single elements, and their gradients: blocks add runs of elements, one block adds the runs in order.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

struct Mse {
    dev static W value(W x, W t) { return (x - t) * (x - t); }
    dev static W slope(W x, W t) { return (x - t) + (x - t); }
};
struct BceWithLogits {
    dev static W value(W x, W t) { return larger(x, (W)0) + m_log1p(m_exp(-m_abs(x))) - x * t; }
    dev static W slope(W x, W t) { return (W)1 / ((W)1 + m_exp(-x)) - t; }
};
struct Bce {
    dev static W value(W x, W t) { return -(t * larger(m_log(x), (W)-100) + ((W)1 - t) * larger(m_log1p(-x), (W)-100)); }
    dev static W slope(W x, W t) { return (x - t) / larger(x * ((W)1 - x), (W)1e-12); }
};

KERNEL(partial, const T *x, const T *t, W *sums, I n, I slice) {
    shared Shared<W, 32> scratch;
    I from = (I)blockIdx.x * slice, end = n - from < slice ? n : from + slice;
    W sum = 0;
    for (I i = from + (I)threadIdx.x; i < end; i += (I)blockDim.x)
        sum += F::value(up(x[i]), up(t[i]));
    sum = block_reduce<Plus>(sum, scratch);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

KERNEL(mean, const W *sums, T *y, I n, I slices) {
    shared Shared<W, 32> scratch;
    W sum = 0;
    for (I i = (I)threadIdx.x; i < slices; i += (I)blockDim.x)
        sum += sums[i];
    sum = block_reduce<Plus>(sum, scratch);
    if (threadIdx.x == 0)
        y[0] = down<T>(sum / (W)n);
}

KERNEL(gradient, const T *x, const T *t, const T *dy, T *dx, I n) {
    W scale = up(dy[0]) / (W)n;
    for (I i = thread_index(); i < n; i += thread_count())
        dx[i] = down<T>(F::slope(up(x[i]), up(t[i])) * scale);
}
