// Division by the norm of a line, and its gradient: a block for each line. P is 1 or 2.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

KERNEL(forward, const T *x, T *y, T *norms, I lines, I n, I inner) {
    shared Shared<W, 32> scratch;
    for (I l = (I)blockIdx.x; l < lines; l += (I)gridDim.x) {
        I at = l / inner * n * inner + l % inner;
        W sum = 0;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x) {
            W v = up(x[at + i * inner]);
            sum += P == 2 ? v * v : m_abs(v);
        }
        sum = block_reduce<Plus>(sum, scratch);
        W norm = P == 2 ? m_sqrt(sum) : sum, inverse = norm == (W)0 ? (W)0 : (W)1 / norm;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            y[at + i * inner] = down<T>(up(x[at + i * inner]) * inverse);
        if (threadIdx.x == 0)
            norms[l] = down<T>(norm);
    }
}

KERNEL(backward, const T *y, const T *norms, const T *dy, const T *d_norms, T *dx, I lines, I n, I inner) {
    shared Shared<W, 32> scratch;
    for (I l = (I)blockIdx.x; l < lines; l += (I)gridDim.x) {
        I at = l / inner * n * inner + l % inner;
        W norm = up(norms[l]), inverse = norm == (W)0 ? (W)0 : (W)1 / norm, sum = 0;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            sum += up(y[at + i * inner]) * up(dy[at + i * inner]);
        sum = block_reduce<Plus>(sum, scratch) - (d_norms ? up(d_norms[l]) * norm : (W)0);
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x) {
            I e = at + i * inner;
            W v = up(y[e]), slope = P == 2 || v == (W)0 ? v : v < (W)0 ? (W)-1 : v > (W)0 ? (W)1 : v;
            dx[e] = down<T>((up(dy[e]) - sum * slope) * inverse);
        }
    }
}
