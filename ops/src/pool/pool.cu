// Pools: a thread for each element of the output. Gradients gather what windows read an element, in the order of windows.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

struct Slide {
    I large[3], small[3];
    int kernel[3], stride[3], dilation[3], begin[3], end[3];
    I large_points, small_points;
    int taps;
    dev Slide(const Dims &sizes, const Dims &window, const Dims &shift, const Dims &ends) {
        large_points = small_points = 1;
        taps = 1;
        for (int i = 0; i < 3; i++) {
            large[i] = sizes.v[i];
            small[i] = sizes.v[3 + i];
            kernel[i] = (int)window.v[i];
            stride[i] = (int)window.v[3 + i];
            dilation[i] = (int)shift.v[i];
            begin[i] = (int)shift.v[3 + i];
            end[i] = (int)ends.v[i];
            large_points *= large[i];
            small_points *= small[i];
            taps *= kernel[i];
        }
    }
    dev int tap(int t, int i) const { return i == 2 ? t % kernel[2] : i == 1 ? t / kernel[2] % kernel[1] : t / kernel[2] / kernel[1]; }
    dev static I at(I p, int i, const I *extents) {
        return i == 2 ? p % extents[2] : i == 1 ? p / extents[2] % extents[1] : p / extents[2] / extents[1];
    }
    dev I from_small(I p, int t) const {
        I e = 0;
        for (int i = 0; i < 3; i++) {
            I x = at(p, i, small) * stride[i] + (I)tap(t, i) * dilation[i] - begin[i];
            if (x < 0 || x >= large[i])
                return -1;
            e = e * large[i] + x;
        }
        return e;
    }
    dev I from_large(I p, int t) const {
        I e = 0;
        for (int i = 0; i < 3; i++) {
            I x = at(p, i, large) + begin[i] - (I)tap(t, i) * dilation[i];
            if (x < 0 || x % stride[i] != 0 || x / stride[i] >= small[i])
                return -1;
            e = e * small[i] + x / stride[i];
        }
        return e;
    }
    // By how many a window's sum is divided: 0 elements, 1 elements and padding, 2 nothing.
    dev W count(I p, i32 divide) const {
        if (divide == 2)
            return (W)1;
        W all = 1;
        for (int i = 0; i < 3; i++) {
            int n = 0;
            for (int k = 0; k < kernel[i]; k++) {
                I x = at(p, i, small) * stride[i] + (I)k * dilation[i];
                n += divide == 0 ? x >= begin[i] && x < begin[i] + large[i] : x < begin[i] + large[i] + end[i];
            }
            all *= (W)(n > 1 ? n : 1);
        }
        return all;
    }
};

#ifdef P
// The largest value of P stands for a window over nothing but padding.
KERNEL(max_pool, const T *x, T *y, P *positions, I planes, Dims sizes, Dims window, Dims shift, Dims ends) {
    Slide s(sizes, window, shift, ends);
    for (I e = thread_index(); e < planes * s.small_points; e += thread_count()) {
        const T *from = x + e / s.small_points * s.large_points;
        W best = Limits<W>::lowest();
        int taken = -1;
        for (int t = 0; t < s.taps; t++) {
            I at = s.from_small(e % s.small_points, t);
            if (at < 0)
                continue;
            W v = up(from[at]);
            if (v > best || is_nan(v) || taken < 0) {
                best = v;
                taken = t;
            }
        }
        y[e] = down<T>(best);
        positions[e] = taken < 0 ? Limits<P>::highest() : (P)taken;
    }
}

KERNEL(max_pool_gradient, const P *positions, const T *dy, T *dx, I planes, Dims sizes, Dims window, Dims shift, Dims ends) {
    Slide s(sizes, window, shift, ends);
    for (I e = thread_index(); e < planes * s.large_points; e += thread_count()) {
        I first = e / s.large_points * s.small_points;
        W sum = 0;
        for (int t = s.taps - 1; t >= 0; t--) {
            I at = s.from_large(e % s.large_points, t);
            if (at >= 0 && positions[first + at] == (P)t)
                sum += up(dy[first + at]);
        }
        dx[e] = down<T>(sum);
    }
}

KERNEL(max_pool_indices, const P *positions, i64 *y, I planes, i32 column_major, Dims sizes, Dims window, Dims shift, Dims ends) {
    Slide s(sizes, window, shift, ends);
    for (I e = thread_index(); e < planes * s.small_points; e += thread_count()) {
        i64 t = (i64)positions[e];
        I at = t < s.taps ? s.from_small(e % s.small_points, (int)t) : 0;
        at = at < 0 ? 0 : at;
        i64 c[3];
        for (int i = 0; i < 3; i++)
            c[i] = Slide::at(at, i, s.large);
        i64 in_plane = column_major ? (c[2] * s.large[1] + c[1]) * s.large[0] + c[0] : at;
        y[e] = (i64)(e / s.small_points) * s.large_points + in_plane;
    }
}
#else
KERNEL(average_pool, const T *x, T *y, I planes, i32 divide, Dims sizes, Dims window, Dims shift, Dims ends) {
    Slide s(sizes, window, shift, ends);
    for (I e = thread_index(); e < planes * s.small_points; e += thread_count()) {
        const T *from = x + e / s.small_points * s.large_points;
        W sum = 0;
        for (int t = 0; t < s.taps; t++) {
            I at = s.from_small(e % s.small_points, t);
            sum += at < 0 ? (W)0 : (W)up(from[at]);
        }
        y[e] = down<T>(sum / s.count(e % s.small_points, divide));
    }
}

KERNEL(average_pool_gradient, const T *dy, T *dx, I planes, i32 divide, Dims sizes, Dims window, Dims shift, Dims ends) {
    Slide s(sizes, window, shift, ends);
    for (I e = thread_index(); e < planes * s.large_points; e += thread_count()) {
        I first = e / s.large_points * s.small_points;
        W sum = 0;
        for (int t = s.taps - 1; t >= 0; t--) {
            I at = s.from_large(e % s.large_points, t);
            if (at >= 0)
                sum += up(dy[first + at]) / s.count(at, divide);
        }
        dx[e] = down<T>(sum);
    }
}
#endif
