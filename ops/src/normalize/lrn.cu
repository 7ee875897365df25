// Local response normalisation over neighbouring channels, and its gradient: a thread for each element.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// bias + alpha times the squares of the channels around that of element e.
dev W divisor(const T *x, I e, I channels, I space, I below, I above, W alpha, W bias) {
    I c = e / space % channels, first = c < below ? 0 : c - below, last = channels - 1 - c < above ? channels - 1 : c + above;
    W sum = 0;
    for (I k = first; k <= last; k++) {
        W v = up(x[e + (k - c) * space]);
        sum += v * v;
    }
    return bias + alpha * sum;
}
dev W power(W x, W p) { return m_exp(m_log(x) * p); }

KERNEL(forward, const T *x, T *y, I n, I channels, I space, I below, I above, f64 alpha, f64 beta, f64 bias) {
    for (I e = thread_index(); e < n; e += thread_count())
        y[e] = down<T>(up(x[e]) * power(divisor(x, e, channels, space, below, above, (W)alpha, (W)bias), (W)-beta));
}

// dy x d^(-beta - 1).
KERNEL(terms, const T *x, const T *dy, W *out, I n, I channels, I space, I below, I above, f64 alpha, f64 beta, f64 bias) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        W d = divisor(x, e, channels, space, below, above, (W)alpha, (W)bias);
        out[e] = up(x[e]) * (up(dy[e]) * power(d, (W)-beta)) / d;
    }
}

KERNEL(backward, const T *x, const T *dy, const W *terms, T *dx, I n, I channels, I space, I below, I above, f64 alpha, f64 beta,
       f64 bias) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        // The channels in whose windows this one lies.
        I c = e / space % channels, first = c < above ? 0 : c - above, last = channels - 1 - c < below ? channels - 1 : c + below;
        W sum = 0;
        for (I k = first; k <= last; k++)
            sum += terms[e + (k - c) * space];
        W d = divisor(x, e, channels, space, below, above, (W)alpha, (W)bias);
        dx[e] = down<T>(up(dy[e]) * power(d, (W)-beta) - (W)(2 * alpha * beta) * up(x[e]) * sum);
    }
}
