// Images sampled at the positions of a grid, and the gradients of both. Positions are computed in f64, as on the CPU, so that no sample
// falls to another pixel. The images' gradient is gathered: pixels of a plane are dealt to PARTS threads, each of which walks over all
// samples in order and takes its own.
//
// NEAREST: the nearest pixel, else the four around. PADDING: 0 zeros, 1 border, 2 reflection. ALIGN: -1 and 1 are centres of pixels.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

struct Tap {
    i64 at; // -1 outside
    f64 weight, slope_x, slope_y;
};

struct Size {
    I n, c, h, w, points;
    dev Size(const Dims &d) : n(d.v[0]), c(d.v[1]), h(d.v[2]), w(d.v[3]), points(d.v[4]) {}
};

dev f64 position(f64 g, f64 n, f64 &slope) {
    f64 x = ALIGN ? (g + 1) / 2 * (n - 1) : ((g + 1) * n - 1) / 2;
    slope = ALIGN ? (n - 1) / 2 : n / 2;
    if (PADDING == 2) {
        f64 lo = ALIGN ? 0.0 : -0.5, hi = ALIGN ? n - 1 : n - 0.5, span = hi - lo;
        if (span <= 0 || !is_finite(x)) {
            slope = 0;
            return 0;
        }
        bool below = x < lo;
        f64 away = below ? lo - x : x - lo, sign = below ? -1.0 : 1.0, within = m_fmod(away, span);
        if (m_fmod(m_floor(away / span), 2.0) == 0) {
            x = lo + within;
            slope *= sign;
        } else {
            x = hi - within;
            slope *= -sign;
        }
    }
    if (PADDING != 0 && !(x >= 0 && x <= n - 1)) {
        // A position that is no number stays one, and samples nothing.
        x = x < 0 ? 0 : x > n - 1 ? n - 1 : x;
        slope = 0;
    }
    return x;
}

dev i64 pixel(f64 x, f64 y, const Size &s) {
    return x >= 0 && y >= 0 && x < (f64)s.w && y < (f64)s.h ? (i64)y * s.w + (i64)x : -1;
}

const int TAPS = NEAREST ? 1 : 4;

dev void taps_at(f64 gx, f64 gy, const Size &s, Tap (&taps)[TAPS]) {
    f64 sx, sy, x = position(gx, (f64)s.w, sx), y = position(gy, (f64)s.h, sy);
#if NEAREST
    Tap t = {pixel(m_rint(x), m_rint(y), s), 1, 0, 0};
    taps[0] = t;
#else
    f64 x0 = m_floor(x), y0 = m_floor(y), fx = x - x0, fy = y - y0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        f64 dx = k % 2, dy = k / 2, wx = k % 2 ? fx : 1 - fx, wy = k / 2 ? fy : 1 - fy;
        Tap t = {pixel(x0 + dx, y0 + dy, s), wx * wy, (2 * dx - 1) * sx * wy, (2 * dy - 1) * sy * wx};
        taps[k] = t;
    }
#endif
}

KERNEL(sample, const T *x, const T *grid, T *y, Dims sizes) {
    Size s(sizes);
    for (I p = thread_index(); p < s.n * s.points; p += thread_count()) {
        Tap taps[TAPS];
        taps_at((f64)up(grid[2 * p]), (f64)up(grid[2 * p + 1]), s, taps);
        for (I c = 0; c < s.c; c++) {
            I plane = p / s.points * s.c + c;
            W sum = 0;
            for (int k = 0; k < TAPS; k++)
                if (taps[k].at >= 0)
                    sum += (W)taps[k].weight * up(x[plane * s.h * s.w + (I)taps[k].at]);
            y[plane * s.points + p % s.points] = down<T>(sum);
        }
    }
}

// What `image_gradient` reads: pixel and weight of every tap.
KERNEL(tabulate, const T *grid, i64 *at, W *weights, Dims sizes) {
    Size s(sizes);
    for (I p = thread_index(); p < s.n * s.points; p += thread_count()) {
        Tap taps[TAPS];
        taps_at((f64)up(grid[2 * p]), (f64)up(grid[2 * p + 1]), s, taps);
        for (int k = 0; k < TAPS; k++) {
            at[p * TAPS + k] = taps[k].at;
            weights[p * TAPS + k] = (W)taps[k].weight;
        }
    }
}

KERNEL(image_gradient, const i64 *at, const W *weights, const T *dy, W *sums, T *dx, I parts, Dims sizes) {
    Size s(sizes);
    I each = (s.h * s.w + parts - 1) / parts;
    for (I g = thread_index(); g < s.n * s.c * parts; g += thread_count()) {
        I plane = g / parts, first = g % parts * each, end = first + each < s.h * s.w ? first + each : s.h * s.w;
        W *own = sums + plane * s.h * s.w;
        for (I e = first; e < end; e++)
            own[e] = 0;
        for (I p = 0; p < s.points; p++) {
            W d = up(dy[plane * s.points + p]);
            I taps = (plane / s.c * s.points + p) * TAPS;
            for (int k = 0; k < TAPS; k++) {
                i64 to = at[taps + k];
                if (to >= first && to < end)
                    own[to] += weights[taps + k] * d;
            }
        }
        for (I e = first; e < end; e++)
            dx[plane * s.h * s.w + e] = down<T>(own[e]);
    }
}

KERNEL(grid_gradient, const T *x, const T *grid, const T *dy, T *out, Dims sizes) {
    Size s(sizes);
    for (I p = thread_index(); p < s.n * s.points; p += thread_count()) {
        Tap taps[TAPS];
        taps_at((f64)up(grid[2 * p]), (f64)up(grid[2 * p + 1]), s, taps);
        f64 sx = 0, sy = 0;
        for (I c = 0; c < s.c; c++) {
            I plane = p / s.points * s.c + c;
            f64 d = (f64)up(dy[plane * s.points + p % s.points]);
            for (int k = 0; k < TAPS; k++) {
                f64 v = (taps[k].at < 0 ? 0.0 : (f64)up(x[plane * s.h * s.w + (I)taps[k].at])) * d;
                sx += taps[k].slope_x * v;
                sy += taps[k].slope_y * v;
            }
        }
        out[2 * p] = down<T>(sx);
        out[2 * p + 1] = down<T>(sy);
    }
}
