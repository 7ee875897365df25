// Softmax, its logarithm and their gradients: a block for each line along the axis. Every element is read and written by one thread, so
// that the output may be the input's memory.
#include "dtrc_device.h"

// What is stored: 16-bit floats, where so it is asked for.
#ifndef OUT
#define OUT T
#endif

typedef Num<T>::Arith W;

KERNEL(softmax, const T *x, OUT *y, I lines, I n, I inner, i32 logarithm) {
    shared Shared<W, 32> scratch;
    for (I l = (I)blockIdx.x; l < lines; l += (I)gridDim.x) {
        I at = l / inner * n * inner + l % inner;
        W most = Limits<W>::lowest();
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            most = larger(most, up(x[at + i * inner]));
        most = block_reduce<Most>(most, scratch);
        W sum = 0;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            sum += m_exp(up(x[at + i * inner]) - most);
        sum = block_reduce<Plus>(sum, scratch);
        W scale = (W)1 / sum, log = m_log(sum);
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x) {
            W v = up(x[at + i * inner]) - most;
            y[at + i * inner] = down<OUT>(logarithm ? v - log : m_exp(v) * scale);
        }
    }
}

KERNEL(gradient, const T *y, const T *dy, T *dx, I lines, I n, I inner, i32 logarithm) {
    shared Shared<W, 32> scratch;
    for (I l = (I)blockIdx.x; l < lines; l += (I)gridDim.x) {
        I at = l / inner * n * inner + l % inner;
        W sum = 0;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x) {
            I e = at + i * inner;
            sum += logarithm ? up(dy[e]) : up(y[e]) * up(dy[e]);
        }
        sum = block_reduce<Plus>(sum, scratch);
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x) {
            I e = at + i * inner;
            W v = up(y[e]), d = up(dy[e]);
            dx[e] = down<T>(logarithm ? d - m_exp(v) * sum : v * (d - sum));
        }
    }
}
