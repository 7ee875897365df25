// Recurrent layers, a block for each sequence: it runs all steps one after the other, so that nothing waits for another block. In a step a
// warp makes a gate's product with the last state, then a thread each hidden element.
//
// CELL: 1 plain, 3 GRU, 4 LSTM: the gates of a cell. GRADIENT: the backward steps.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// ONNX's functions, numbered as the CPU's; the argument is cut to [-clip, clip] first. Slopes follow from the result.
struct Function {
    i32 kind;
    W alpha, beta, clip, low, high;

    dev Function(i32 k, const f64 (&p)[3]) : kind(k), alpha((W)p[0]), beta((W)p[1]), clip((W)p[2]) {
        // What nothing equals, where nothing is cut.
        low = high = clip - clip;
        if (is_finite(clip)) {
            low = value(-clip);
            high = value(clip);
        }
    }
    dev W value(W x) const {
        switch (kind) {
        case 0:
            return larger(x, (W)0);
        case 1:
            return m_tanh(x);
        case 2:
            return (W)1 / ((W)1 + m_exp(-x));
        case 3:
            return alpha * x + beta;
        case 4:
            return x >= (W)0 ? x : alpha * x;
        case 5:
            return x >= alpha ? x : (W)0;
        case 6:
            return alpha * m_tanh(beta * x);
        case 7:
            return smaller(larger(alpha * x + beta, (W)0), (W)1);
        case 8:
            return x >= (W)0 ? x : alpha * m_expm1(x);
        case 9:
            return x / ((W)1 + m_abs(x));
        default:
            return larger(x, (W)0) + m_log1p(m_exp(-m_abs(x)));
        }
    }
    dev W apply(W x) const {
        x = x > clip ? clip : x;
        return value(x < -clip ? -clip : x);
    }
    dev W slope(W y) const {
        switch (kind) {
        case 0:
            return y > (W)0 ? (W)1 : (W)0;
        case 1:
            return (W)1 - y * y;
        case 2:
            return y * ((W)1 - y);
        case 3:
            return alpha;
        case 4:
            return y >= (W)0 ? (W)1 : alpha;
        case 5:
            return y >= alpha && y != (W)0 ? (W)1 : (W)0;
        case 6: {
            W t = alpha == (W)0 ? (W)1 : y / alpha;
            return alpha * beta * ((W)1 - t * t);
        }
        case 7:
            return y > (W)0 && y < (W)1 ? alpha : (W)0;
        case 8:
            return y >= (W)0 ? (W)1 : y + alpha;
        case 9: {
            W d = (W)1 - m_abs(y);
            return d * d;
        }
        default:
            return -m_expm1(-y);
        }
    }
    // A cotangent of the result pulled back to the argument.
    dev W pull(W y, W d) const { return y == low || y == high ? (W)0 : d * slope(y); }
};

struct Triple {
    f64 v[3];
};

// Steps, batch, hidden size and order of steps of a layer, and the lengths of its sequences (null: all steps).
struct Frame {
    I steps, batch, hidden;
    bool reverse;
    const i32 *lengths;

    dev I time(I k) const { return reverse ? steps - 1 - k : k; }
    dev bool has(I t, I b) const { return !lengths || t < lengths[b]; }
    // The time whose state the step at time t starts from, or -1 for the initial state.
    dev I before(I t, I b) const {
        I end = lengths && lengths[b] < steps ? (I)lengths[b] : steps;
        return !reverse ? t - 1 : t + 1 < end ? t + 1 : -1;
    }
    dev void check(I b, Status *status, u32 call) const {
        if (lengths && threadIdx.x == 0 && (lengths[b] < 0 || lengths[b] > steps))
            fail(status, call, BAD_LENGTH, b, lengths[b]);
    }
};

// Products of rows of the weight with a state; the result for row j goes to `put(j, product)` in one thread.
template <class Put> dev void rows_times(const T *weight, I first, I count, const T *state, I hidden, const Put &put) {
    int lane = (int)threadIdx.x % 32;
    for (I j = (I)threadIdx.x / 32; j < count; j += (I)blockDim.x / 32) {
        W sum = 0;
        for (I i = lane; i < hidden; i += 32)
            sum += up(weight[(first + j) * hidden + i]) * up(state[i]);
        sum = warp_sum(sum);
        if (lane == 0)
            put(j, sum);
    }
}

// Element i of the rows' product with cotangents: the sum of d[j] times weight[first + j][i].
dev W columns_times(const T *weight, I first, I count, const T *d, I hidden, I i) {
    W sum = 0;
    for (I j = 0; j < count; j++)
        sum += up(d[j]) * up(weight[(first + j) * hidden + i]);
    return sum;
}

// to = from + the product, or from alone where there is no product to come.
struct Add {
    const T *from;
    T *to;
    dev void operator()(I j, W sum) const { to[j] = down<T>((from ? (W)up(from[j]) : (W)0) + sum); }
};

#define EACH for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
#define LAYER const i32 *lengths, I steps, I batch, I hidden, i32 reverse, Status *status, u32 call
#define SEQUENCES                                                                                                                          \
    Frame f = {steps, batch, hidden, reverse != 0, lengths};                                                                               \
    const I n = hidden;                                                                                                                    \
    for (I b = (I)blockIdx.x; b < batch; b += (I)gridDim.x)

#if CELL == 1 && !defined(GRADIENT)
KERNEL(forward, const T *x, const T *weight, const T *initial, T *y, T *last, LAYER, i32 k0, Triple p0) {
    Function g(k0, p0.v);
    SEQUENCES {
        T *state = last + b * n;
        f.check(b, status, call);
        EACH state[i] = initial ? initial[b * n + i] : down<T>((W)0);
        for (I k = 0; k < steps; k++) {
            I t = f.time(k), at = (t * batch + b) * n;
            bool has = f.has(t, b);
            barrier();
            if (has) {
                Add put = {x + at, y + at};
                rows_times(weight, 0, n, state, n, put);
            }
            barrier();
            EACH {
                T v = has ? down<T>(g.apply(up(y[at + i]))) : down<T>((W)0);
                y[at + i] = v;
                if (has)
                    state[i] = v;
            }
        }
        barrier();
    }
}
#elif CELL == 1
KERNEL(backward, const T *y, const T *weight, const T *dy, const T *d_last, T *out, T *d_initial, LAYER, i32 k0, Triple p0) {
    Function g(k0, p0.v);
    SEQUENCES {
        T *d_state = d_initial + b * n;
        f.check(b, status, call);
        EACH d_state[i] = d_last ? d_last[b * n + i] : down<T>((W)0);
        for (I k = steps; k-- > 0;) {
            I t = f.time(k), at = (t * batch + b) * n;
            bool has = f.has(t, b);
            barrier();
            EACH {
                W d = (W)up(d_state[i]) + (dy ? (W)up(dy[at + i]) : (W)0);
                out[at + i] = down<T>(has ? g.pull(up(y[at + i]), d) : (W)0);
            }
            barrier();
            if (has)
                EACH d_state[i] = down<T>(columns_times(weight, 0, n, out + at, n, i));
        }
        barrier();
    }
}
#elif CELL == 4 && !defined(GRADIENT)
KERNEL(forward, const T *x, const T *weight, const T *initial, const T *initial_cell, const T *peepholes, T *y, T *last, T *last_cell,
       T *gates, T *cells, LAYER, i32 coupled, i32 k0, i32 k1, i32 k2, Triple p0, Triple p1, Triple p2) {
    Function gf(k0, p0.v), gg(k1, p1.v), gh(k2, p2.v);
    SEQUENCES {
        T *state = last + b * n;
        const T *before = initial_cell ? initial_cell + b * n : nullptr;
        f.check(b, status, call);
        EACH state[i] = initial ? initial[b * n + i] : down<T>((W)0);
        for (I k = 0; k < steps; k++) {
            I t = f.time(k), at = (t * batch + b) * n;
            bool has = f.has(t, b);
            T *g = gates + 4 * at;
            barrier();
            if (has) {
                Add put = {x + 4 * at, g};
                rows_times(weight, 0, 4 * n, state, n, put);
            }
            barrier();
            EACH {
                W c = before ? (W)up(before[i]) : (W)0, vi = 0, vo = 0, vf = 0, vg = 0, out = 0;
                if (has) {
                    vi = up(g[i]), vo = up(g[n + i]), vf = up(g[2 * n + i]);
                    if (peepholes) {
                        vi += up(peepholes[i]) * c;
                        vf += up(peepholes[2 * n + i]) * c;
                    }
                    vi = gf.apply(vi);
                    vf = coupled ? (W)1 - vi : gf.apply(vf);
                    vg = gg.apply(up(g[3 * n + i]));
                    c = vf * c + vi * vg;
                    if (peepholes)
                        vo += up(peepholes[n + i]) * c;
                    vo = gf.apply(vo);
                    out = vo * gh.apply(c);
                    state[i] = down<T>(out);
                }
                g[i] = down<T>(vi);
                g[n + i] = down<T>(vo);
                g[2 * n + i] = down<T>(vf);
                g[3 * n + i] = down<T>(vg);
                cells[at + i] = down<T>(c);
                y[at + i] = down<T>(out);
            }
            before = cells + at;
        }
        EACH last_cell[b * n + i] = before ? before[i] : down<T>((W)0);
        barrier();
    }
}
#elif CELL == 4
KERNEL(backward, const T *gates, const T *cells, const T *weight, const T *initial_cell, const T *peepholes, const T *dy, const T *d_last,
       const T *d_last_cell, const T *d_gates, const T *d_cells, T *out, T *d_initial, T *d_initial_cell, LAYER, i32 coupled, i32 k0,
       i32 k1, i32 k2, Triple p0, Triple p1, Triple p2) {
    Function gf(k0, p0.v), gg(k1, p1.v), gh(k2, p2.v);
    SEQUENCES {
        T *d_state = d_initial + b * n, *d_cell = d_initial_cell + b * n;
        f.check(b, status, call);
        EACH {
            d_state[i] = d_last ? d_last[b * n + i] : down<T>((W)0);
            d_cell[i] = d_last_cell ? d_last_cell[b * n + i] : down<T>((W)0);
        }
        for (I k = steps; k-- > 0;) {
            I t = f.time(k), at = (t * batch + b) * n;
            bool has = f.has(t, b);
            const T *g = gates + 4 * at;
            const T *before = k > 0 ? cells + (f.time(k - 1) * batch + b) * n : initial_cell ? initial_cell + b * n : nullptr;
            T *d = out + 4 * at;
            barrier();
            EACH {
                W dc = (W)up(d_cell[i]) + (d_cells ? (W)up(d_cells[at + i]) : (W)0), di = 0, dout = 0, df = 0, dg = 0;
                if (has) {
                    W vi = up(g[i]), vo = up(g[n + i]), vf = up(g[2 * n + i]), vg = up(g[3 * n + i]);
                    W ds = (W)up(d_state[i]) + (dy ? (W)up(dy[at + i]) : (W)0), h = gh.apply(up(cells[at + i]));
                    const T *given = d_gates ? d_gates + 4 * at : nullptr;
                    dout = gf.pull(vo, ds * h + (given ? (W)up(given[n + i]) : (W)0));
                    dc += gh.pull(h, ds * vo);
                    if (peepholes)
                        dc += dout * up(peepholes[n + i]);
                    di = dc * vg;
                    dg = dc * vi;
                    df = dc * (before ? (W)up(before[i]) : (W)0) + (given ? (W)up(given[2 * n + i]) : (W)0);
                    if (coupled) {
                        di -= df;
                        df = 0;
                    } else {
                        df = gf.pull(vf, df);
                    }
                    di = gf.pull(vi, di + (given ? (W)up(given[i]) : (W)0));
                    dg = gg.pull(vg, dg + (given ? (W)up(given[3 * n + i]) : (W)0));
                    dc *= vf;
                    if (peepholes)
                        dc += di * up(peepholes[i]) + df * up(peepholes[2 * n + i]);
                }
                d_cell[i] = down<T>(dc);
                d[i] = down<T>(di);
                d[n + i] = down<T>(dout);
                d[2 * n + i] = down<T>(df);
                d[3 * n + i] = down<T>(dg);
            }
            barrier();
            if (has)
                EACH d_state[i] = down<T>(columns_times(weight, 0, 4 * n, d, n, i));
        }
        barrier();
    }
}
#elif !defined(GRADIENT)
// `linear`: the reset multiplies the product with the state, not the state.
KERNEL(forward, const T *x, const T *weight, const T *initial, const T *bias, T *y, T *last, T *gates, T *inner, LAYER, i32 linear, i32 k0,
       i32 k1, Triple p0, Triple p1) {
    Function gf(k0, p0.v), gg(k1, p1.v);
    SEQUENCES {
        T *state = last + b * n;
        f.check(b, status, call);
        EACH state[i] = initial ? initial[b * n + i] : down<T>((W)0);
        for (I k = 0; k < steps; k++) {
            I t = f.time(k), at = (t * batch + b) * n;
            bool has = f.has(t, b);
            T *g = gates + 3 * at, *in = inner + at;
            const T *from = x + 3 * at;
            barrier();
            if (has) {
                Add put = {from, g}, put_inner = {bias, in};
                rows_times(weight, 0, 2 * n, state, n, put);
                if (linear)
                    rows_times(weight, 2 * n, n, state, n, put_inner);
            }
            barrier();
            if (has)
                EACH {
                    W z = gf.apply(up(g[i])), r = gf.apply(up(g[n + i]));
                    g[i] = down<T>(z);
                    g[n + i] = down<T>(r);
                    if (linear)
                        g[2 * n + i] = down<T>(up(from[2 * n + i]) + r * up(in[i]));
                    else
                        in[i] = down<T>(r * up(state[i]));
                }
            barrier();
            if (has && !linear) {
                Add put = {from + 2 * n, g + 2 * n};
                rows_times(weight, 2 * n, n, in, n, put);
            }
            barrier();
            EACH {
                if (!has) {
                    g[i] = g[n + i] = g[2 * n + i] = in[i] = y[at + i] = down<T>((W)0);
                    continue;
                }
                W h = gg.apply(up(g[2 * n + i])), v = up(g[i]) * (up(state[i]) - h) + h;
                g[2 * n + i] = down<T>(h);
                state[i] = y[at + i] = down<T>(v);
            }
        }
        barrier();
    }
}
#else
KERNEL(backward, const T *gates, const T *inner, const T *y, const T *weight, const T *initial, const T *dy, const T *d_last,
       const T *d_gates, const T *d_inner, T *out, T *d_initial, T *resets, LAYER, i32 linear, i32 k0, i32 k1, Triple p0, Triple p1) {
    Function gf(k0, p0.v), gg(k1, p1.v);
    SEQUENCES {
        T *d_state = d_initial + b * n;
        f.check(b, status, call);
        EACH d_state[i] = d_last ? d_last[b * n + i] : down<T>((W)0);
        for (I k = steps; k-- > 0;) {
            I t = f.time(k), at = (t * batch + b) * n, then = f.before(t, b);
            bool has = f.has(t, b);
            const T *g = gates + 3 * at, *given = d_gates ? d_gates + 3 * at : nullptr;
            const T *before = then >= 0 ? y + (then * batch + b) * n : initial ? initial + b * n : nullptr;
            T *d = out + 3 * at;
            barrier();
            EACH {
                W dz = 0, dr = 0, dh = 0, reset = 0;
                if (has) {
                    W z = up(g[i]), r = up(g[n + i]), h = up(g[2 * n + i]), s = before ? (W)up(before[i]) : (W)0;
                    W ds = (W)up(d_state[i]) + (dy ? (W)up(dy[at + i]) : (W)0);
                    dz = gf.pull(z, ds * (s - h) + (given ? (W)up(given[i]) : (W)0));
                    dh = gg.pull(h, ds * ((W)1 - z) + (given ? (W)up(given[2 * n + i]) : (W)0));
                    d_state[i] = down<T>(ds * z);
                    if (linear) {
                        dr = gf.pull(r, dh * up(inner[at + i]) + (given ? (W)up(given[n + i]) : (W)0));
                        reset = dh * r + (d_inner ? (W)up(d_inner[at + i]) : (W)0);
                    } else {
                        // The gate itself, until its cotangent is known.
                        dr = r;
                    }
                }
                d[i] = down<T>(dz);
                d[n + i] = down<T>(dr);
                d[2 * n + i] = down<T>(dh);
                if (linear)
                    resets[at + i] = down<T>(reset);
            }
            barrier();
            if (has)
                EACH {
                    W ds = up(d_state[i]);
                    if (linear) {
                        ds += columns_times(weight, 2 * n, n, resets + at, n, i);
                    } else {
                        W r = up(d[n + i]), s = before ? (W)up(before[i]) : (W)0;
                        W reset = columns_times(weight, 2 * n, n, d + 2 * n, n, i) + (d_inner ? (W)up(d_inner[at + i]) : (W)0);
                        ds += reset * r;
                        d[n + i] = down<T>(gf.pull(r, reset * s + (given ? (W)up(given[n + i]) : (W)0)));
                    }
                    d_state[i] = down<T>(ds);
                }
            barrier();
            if (has)
                EACH d_state[i] = down<T>(up(d_state[i]) + columns_times(weight, 0, 2 * n, d, n, i));
        }
        barrier();
    }
}
#endif
