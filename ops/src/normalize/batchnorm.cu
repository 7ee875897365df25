// Batch normalisation of [images, channels, points]: a block for each channel. Elements are read and written by one thread, so that the
// output may be the memory of x or dy.
#include "dtrc_device.h"

// Parameters and statistics; float32 beside 16-bit floats.
#ifndef STAT
#define STAT T
#endif

typedef Num<T>::Arith W;

dev I place(I e, I c, I channels, I points) { return (e / points * channels + c) * points + e % points; }

KERNEL(train, const T *x, const STAT *scale, const STAT *bias, T *y, STAT *mean_out, STAT *var_out, STAT *inverse_out, I images, I channels,
       I points, f64 eps) {
    shared Shared<W, 32> scratch;
    I count = images * points;
    for (I c = (I)blockIdx.x; c < channels; c += (I)gridDim.x) {
        W sum = 0;
        for (I e = (I)threadIdx.x; e < count; e += (I)blockDim.x)
            sum += up(x[place(e, c, channels, points)]);
        W mean = block_reduce<Plus>(sum, scratch) / (W)count;
        W squares = 0, rest = 0;
        for (I e = (I)threadIdx.x; e < count; e += (I)blockDim.x) {
            W d = up(x[place(e, c, channels, points)]) - mean;
            squares += d * d;
            rest += d;
        }
        squares = block_reduce<Plus>(squares, scratch);
        rest = block_reduce<Plus>(rest, scratch);
        // What rounding the mean did to the variance is taken back.
        W var = larger((squares - rest * rest / (W)count) / (W)count, (W)0);
        W inverse = (W)1 / m_sqrt(var + (W)eps);
        W a = up(scale[c]) * inverse, b = up(bias[c]);
        for (I e = (I)threadIdx.x; e < count; e += (I)blockDim.x) {
            I at = place(e, c, channels, points);
            y[at] = down<T>((up(x[at]) - mean) * a + b);
        }
        if (threadIdx.x == 0) {
            mean_out[c] = down<STAT>(mean);
            var_out[c] = down<STAT>(var);
            inverse_out[c] = down<STAT>(inverse);
        }
    }
}

KERNEL(train_gradient, const T *x, const STAT *scale, const STAT *mean, const STAT *inverse, const T *dy, const STAT *d_mean,
       const STAT *d_var, const STAT *d_inverse, T *dx, STAT *d_scale, STAT *d_bias, I images, I channels, I points) {
    shared Shared<W, 32> scratch;
    I count = images * points;
    for (I c = (I)blockIdx.x; c < channels; c += (I)gridDim.x) {
        W m = up(mean[c]), i = up(inverse[c]), s = up(scale[c]), sum = 0, product = 0;
        for (I e = (I)threadIdx.x; e < count && dy; e += (I)blockDim.x) {
            I at = place(e, c, channels, points);
            sum += up(dy[at]);
            product += up(dy[at]) * (up(x[at]) - m);
        }
        sum = block_reduce<Plus>(sum, scratch);
        product = block_reduce<Plus>(product, scratch);
        W ds = product * i;
        W first = sum * s - (d_mean ? up(d_mean[c]) / i : (W)0);
        W second = ds * s + (d_inverse ? up(d_inverse[c]) * i : (W)0) - (d_var ? (W)2 * up(d_var[c]) / (i * i) : (W)0);
        W share = i / (W)count, a = s * i, constant = share * first, slope = share * i * second;
        for (I e = (I)threadIdx.x; e < count; e += (I)blockDim.x) {
            I at = place(e, c, channels, points);
            W g = dy ? up(dy[at]) * a : (W)0;
            dx[at] = down<T>(g - constant - (up(x[at]) - m) * slope);
        }
        if (threadIdx.x == 0) {
            d_scale[c] = down<STAT>(ds);
            d_bias[c] = down<STAT>(sum);
        }
    }
}

KERNEL(infer, const T *x, const STAT *scale, const STAT *bias, const STAT *mean, const STAT *var, T *y, I n, I channels, I points,
       f64 eps) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        I c = e / points % channels;
        W a = up(scale[c]) * ((W)1 / m_sqrt(up(var[c]) + (W)eps));
        y[e] = down<T>((up(x[e]) - up(mean[c])) * a + up(bias[c]));
    }
}

KERNEL(infer_gradient_x, const STAT *scale, const STAT *var, const T *dy, T *dx, I n, I channels, I points, f64 eps) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        I c = e / points % channels;
        dx[e] = down<T>(up(dy[e]) * (up(scale[c]) * ((W)1 / m_sqrt(up(var[c]) + (W)eps))));
    }
}

KERNEL(infer_gradient, const T *x, const STAT *scale, const STAT *mean, const STAT *var, const T *dy, T *dx, STAT *d_scale, STAT *d_bias,
       STAT *d_mean, STAT *d_var, I images, I channels, I points, f64 eps) {
    shared Shared<W, 32> scratch;
    I count = images * points;
    for (I c = (I)blockIdx.x; c < channels; c += (I)gridDim.x) {
        W m = up(mean[c]), s = up(scale[c]), i = (W)1 / m_sqrt(up(var[c]) + (W)eps), sum = 0, product = 0;
        for (I e = (I)threadIdx.x; e < count; e += (I)blockDim.x) {
            I at = place(e, c, channels, points);
            W g = up(dy[at]);
            sum += g;
            product += g * (up(x[at]) - m);
            dx[at] = down<T>(g * (s * i));
        }
        sum = block_reduce<Plus>(sum, scratch);
        product = block_reduce<Plus>(product, scratch);
        if (threadIdx.x == 0) {
            d_scale[c] = down<STAT>(product * i);
            d_bias[c] = down<STAT>(sum);
            d_mean[c] = down<STAT>(-sum * (s * i));
            d_var[c] = down<STAT>((W)-0.5 * product * s * i * i * i);
        }
    }
}
