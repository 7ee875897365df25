// Layer and root-mean-square normalisation of contiguous rows: a block for each row; gradients to scale and bias column by column, in
// chunks of rows whose sums `combine` adds in order. They come first: dx may take the place of x or dy.
#include "dtrc_device.h"

// Parameters and statistics; float32 beside 16-bit floats.
#ifndef STAT
#define STAT T
#endif

typedef Num<T>::Arith W;

KERNEL(forward, const T *x, const STAT *scale, const STAT *bias, T *y, STAT *mean_out, STAT *inverse_out, I rows, I len, f64 eps) {
    shared Shared<W, 32> scratch;
    for (I r = (I)blockIdx.x; r < rows; r += (I)gridDim.x) {
        const T *from = x + r * len;
        W mean = 0;
#if CENTRED
        W sum = 0;
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x)
            sum += up(from[i]);
        mean = block_reduce<Plus>(sum, scratch) / (W)len;
#endif
        W squares = 0, rest = 0;
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            W d = up(from[i]) - mean;
            squares += d * d;
            rest += d;
        }
        squares = block_reduce<Plus>(squares, scratch);
#if CENTRED
        rest = block_reduce<Plus>(rest, scratch);
#else
        rest = 0;
#endif
        W inverse = (W)1 / m_sqrt(larger((squares - rest * rest / (W)len) / (W)len, (W)0) + (W)eps);
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            W v = (up(from[i]) - mean) * inverse * up(scale[i]);
            y[r * len + i] = down<T>(bias ? v + up(bias[i]) : v);
        }
        if (threadIdx.x == 0) {
#if CENTRED
            mean_out[r] = down<STAT>(mean);
#endif
            inverse_out[r] = down<STAT>(inverse);
        }
    }
}

KERNEL(columns, const T *x, const STAT *mean, const STAT *inverse, const T *dy, W *partial, I rows, I len, I chunk, I chunks) {
    for (I e = thread_index(); e < chunks * len; e += thread_count()) {
        I c = e / len, i = e % len, end = (c + 1) * chunk < rows ? (c + 1) * chunk : rows;
        W scale = 0, bias = 0;
        for (I r = c * chunk; r < end; r++) {
            W g = up(dy[r * len + i]), m = CENTRED ? (W)up(mean[r]) : (W)0;
            scale += g * ((up(x[r * len + i]) - m) * up(inverse[r]));
            bias += g;
        }
        partial[e] = scale;
#if CENTRED
        partial[chunks * len + e] = bias;
#endif
    }
}

KERNEL(combine, const W *partial, STAT *d_scale, STAT *d_bias, I len, I chunks) {
    for (I i = thread_index(); i < len; i += thread_count()) {
        W scale = 0, bias = 0;
        for (I c = 0; c < chunks; c++) {
            scale += partial[c * len + i];
#if CENTRED
            bias += partial[(chunks + c) * len + i];
#endif
        }
        d_scale[i] = down<STAT>(scale);
#if CENTRED
        d_bias[i] = down<STAT>(bias);
#endif
    }
}

KERNEL(backward, const T *x, const STAT *scale, const STAT *mean, const STAT *inverse, const T *dy, const STAT *d_mean,
       const STAT *d_inverse, T *dx, I rows, I len) {
    shared Shared<W, 32> scratch;
    for (I r = (I)blockIdx.x; r < rows; r += (I)gridDim.x) {
        W m = CENTRED ? (W)up(mean[r]) : (W)0, inv = up(inverse[r]), first = 0, second = 0;
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            W g = up(dy[r * len + i]) * up(scale[i]);
            first += g;
            second += g * (up(x[r * len + i]) - m);
        }
        first = block_reduce<Plus>(first, scratch);
        second = block_reduce<Plus>(second, scratch);
        W share = inv / (W)len;
        W constant = CENTRED ? share * (first - (d_mean ? up(d_mean[r]) / inv : (W)0)) : (W)0;
        W slope = share * inv * (second * inv + (d_inverse ? up(d_inverse[r]) * inv : (W)0));
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            I at = r * len + i;
            dx[at] = down<T>(up(dy[at]) * up(scale[i]) * inv - constant - (up(x[at]) - m) * slope);
        }
    }
}
