// The discrete Fourier transform of lines, by one factor of the length a launch (Stockham's order: no permutation): a thread for each
// complex number, which is a sum of as many terms as the factor. The first launch reads the input, the last one writes the output.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// e^(sign 2 pi i j / n), computed in f64.
KERNEL(roots, W *out, I n, i32 positive) {
    for (I j = thread_index(); j < n; j += thread_count()) {
        f64 angle = 6.283185307179586476925 * (f64)j / (f64)n, sine = m_sin(angle);
        out[2 * j] = (W)m_cos(angle);
        out[2 * j + 1] = (W)(positive ? sine : -sine);
    }
}

// Lines lie along an axis of `extent` (in) and `bins` (out) elements, `inner` apart, of one number or two. `done` is the product of the
// factors before.
KERNEL(pass, const T *x, const W *from, W *to, T *y, const W *roots, I lines, I n, I factor, I done, I extent, I bins, I inner, I parts,
       I out_parts, f64 scale) {
    for (I e = thread_index(); e < lines * n; e += thread_count()) {
        I l = e / n, o = e % n;
        if (y && o >= bins)
            continue;
        I q = o / done % factor, m = o % done, j = o / (done * factor) * done + m;
        i64 turn = (i64)(m + q * done) * (n / (done * factor)) % n, at = 0;
        W re = 0, im = 0;
        for (I r = 0; r < factor; r++) {
            I k = j + r * (n / factor);
            W a = 0, b = 0;
            if (from) {
                a = from[2 * (l * n + k)];
                b = from[2 * (l * n + k) + 1];
            } else if (k < extent) {
                const T *p = x + ((l / inner * extent + k) * inner + l % inner) * parts;
                a = up(p[0]);
                b = parts == 2 ? (W)up(p[1]) : (W)0;
            }
            W c = roots[2 * at], s = roots[2 * at + 1];
            re += a * c - b * s;
            im += a * s + b * c;
            at += turn;
            if (at >= n)
                at -= n;
        }
        if (!y) {
            to[2 * e] = re;
            to[2 * e + 1] = im;
            continue;
        }
        T *out = y + ((l / inner * bins + o) * inner + l % inner) * out_parts;
        out[0] = down<T>(re * (W)scale);
        if (out_parts == 2)
            out[1] = down<T>(im * (W)scale);
    }
}
