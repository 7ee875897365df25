// The logarithm of the sum of exponentials, a block for each output: the largest element, then the sum of what lies below it.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

KERNEL(log_sum_exp, const T *x, T *y, I outputs, I count, i32 kept_rank, Dims kept, Dims kept_strides, i32 rank, Dims extents,
       Dims strides) {
    shared Shared<W, 32> scratch;
    for (I o = (I)blockIdx.x; o < outputs; o += (I)gridDim.x) {
        const T *row = x + offset_of(o, kept_rank, kept, kept_strides);
        W most = Limits<W>::lowest();
        for (I i = (I)threadIdx.x; i < count; i += (I)blockDim.x)
            most = larger(most, up(row[offset_of(i, rank, extents, strides)]));
        most = block_reduce<Most>(most, scratch);
        // An infinite largest element is its own logarithm.
        W shift = is_finite(most) ? most : (W)0, sum = 0;
        for (I i = (I)threadIdx.x; i < count; i += (I)blockDim.x)
            sum += m_exp(up(row[offset_of(i, rank, extents, strides)]) - shift);
        sum = block_reduce<Plus>(sum, scratch);
        if (threadIdx.x == 0)
            y[o] = down<T>(shift + m_log(sum));
    }
}
