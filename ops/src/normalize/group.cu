// Normalisation of groups of channels. A group's elements are contiguous: a block for each sample and group (forward, and the statistics
// that its gradient needs), for each sample and channel (`parts`), and a thread for each channel (`combine`).
#include "dtrc_device.h"

// Parameters and statistics; float32 beside 16-bit floats.
#ifndef STAT
#define STAT T
#endif

typedef Num<T>::Arith W;

KERNEL(forward, const T *x, const STAT *scale, const STAT *bias, T *y, STAT *mean_out, STAT *inverse_out, I all, I groups, I per_group,
       I space, f64 eps) {
    shared Shared<W, 32> scratch;
    I len = per_group * space;
    for (I g = (I)blockIdx.x; g < all; g += (I)gridDim.x) {
        const T *from = x + g * len;
        W sum = 0, squares = 0, rest = 0;
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x)
            sum += up(from[i]);
        W mean = block_reduce<Plus>(sum, scratch) / (W)len;
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            W d = up(from[i]) - mean;
            squares += d * d;
            rest += d;
        }
        squares = block_reduce<Plus>(squares, scratch);
        rest = block_reduce<Plus>(rest, scratch);
        W inverse = (W)1 / m_sqrt(larger((squares - rest * rest / (W)len) / (W)len, (W)0) + (W)eps);
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            I c = g % groups * per_group + i / space;
            y[g * len + i] = down<T>((up(from[i]) - mean) * inverse * up(scale[c]) + up(bias[c]));
        }
        if (threadIdx.x == 0) {
            mean_out[g] = down<STAT>(mean);
            inverse_out[g] = down<STAT>(inverse);
        }
    }
}

// For each sample and channel the sums of dy (x - mean) / deviation, then those of dy.
KERNEL(parts, const T *x, const STAT *mean, const STAT *inverse, const T *dy, W *sums, I all, I per_group, I space) {
    shared Shared<W, 32> scratch;
    for (I c = (I)blockIdx.x; c < all; c += (I)gridDim.x) {
        W m = up(mean[c / per_group]), products = 0, plain = 0;
        for (I i = (I)threadIdx.x; i < space; i += (I)blockDim.x) {
            W d = up(dy[c * space + i]);
            products += d * (up(x[c * space + i]) - m);
            plain += d;
        }
        products = block_reduce<Plus>(products, scratch);
        plain = block_reduce<Plus>(plain, scratch);
        if (threadIdx.x == 0) {
            sums[c] = products * up(inverse[c / per_group]);
            sums[all + c] = plain;
        }
    }
}

KERNEL(combine, const W *sums, STAT *d_scale, STAT *d_bias, I samples, I channels) {
    for (I c = thread_index(); c < channels; c += thread_count()) {
        W scale = 0, bias = 0;
        for (I n = 0; n < samples; n++) {
            scale += sums[n * channels + c];
            bias += sums[(samples + n) * channels + c];
        }
        d_scale[c] = down<STAT>(scale);
        d_bias[c] = down<STAT>(bias);
    }
}

KERNEL(backward, const T *x, const STAT *scale, const STAT *mean, const STAT *inverse, const T *dy, const STAT *d_mean,
       const STAT *d_inverse, const W *sums, T *dx, I all, I groups, I per_group, I space) {
    shared Shared<W, 32> scratch;
    I len = per_group * space;
    for (I g = (I)blockIdx.x; g < all; g += (I)gridDim.x) {
        W m = up(mean[g]), inv = up(inverse[g]), first = 0, second = 0;
        for (I k = (I)threadIdx.x; k < per_group; k += (I)blockDim.x) {
            W s = up(scale[g % groups * per_group + k]);
            first += s * sums[all * per_group + g * per_group + k];
            second += s * sums[g * per_group + k];
        }
        first = block_reduce<Plus>(first, scratch);
        second = block_reduce<Plus>(second, scratch);
        W share = inv / (W)len;
        W constant = share * (first - (d_mean ? up(d_mean[g]) / inv : (W)0));
        W slope = share * inv * (second + (d_inverse ? up(d_inverse[g]) * inv : (W)0));
        for (I i = (I)threadIdx.x; i < len; i += (I)blockDim.x) {
            I e = g * len + i;
            W s = up(scale[g % groups * per_group + i / space]);
            dx[e] = down<T>(up(dy[e]) * s * inv - constant - (up(x[e]) - m) * slope);
        }
    }
}
