// Matrix products and convolutions on plain cores: tiles of 64 x 64 results, 16 terms at a time through shared memory, 4 x 4 results a
// thread. A convolution is the product of its weights with windows that are never written out.
//
// KIND says how operands are found. Where results are few and terms many, the terms are cut into slices (by shape alone); their sums go
// through the workspace and `combine` adds them in order.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

const int SIDE = 64, DEEP = 16, PAD = 4, LINE = SIDE + PAD;

// Geometry of a convolution: up to three axes; the large side slides under the window, the small side has a point a window.
struct Slide {
    I large[3], small[3];
    int kernel[3], stride[3], dilation[3], begin[3];
    I large_points, small_points;
    int taps;
    dev Slide(const Dims &sizes, const Dims &window, const Dims &shift) {
        large_points = small_points = 1;
        taps = 1;
        for (int i = 0; i < 3; i++) {
            large[i] = sizes.v[i];
            small[i] = sizes.v[3 + i];
            kernel[i] = (int)window.v[i];
            stride[i] = (int)window.v[3 + i];
            dilation[i] = (int)shift.v[i];
            begin[i] = (int)shift.v[3 + i];
            large_points *= large[i];
            small_points *= small[i];
            taps *= kernel[i];
        }
    }
    dev void position(int t, int *k) const {
        k[2] = t % kernel[2];
        k[1] = t / kernel[2] % kernel[1];
        k[0] = t / kernel[2] / kernel[1];
    }
    // Where tap t of window p reads, or -1 in the padding.
    dev I from_small(I p, int t) const {
        int k[3];
        position(t, k);
        I o[3] = {p / small[2] / small[1], p / small[2] % small[1], p % small[2]}, at = 0;
        for (int i = 0; i < 3; i++) {
            I x = o[i] * stride[i] + (I)k[i] * dilation[i] - begin[i];
            if (x < 0 || x >= large[i])
                return -1;
            at = at * large[i] + x;
        }
        return at;
    }
    // The window that reads element p by tap t, or -1.
    dev I from_large(I p, int t) const {
        int k[3];
        position(t, k);
        I o[3] = {p / large[2] / large[1], p / large[2] % large[1], p % large[2]}, at = 0;
        for (int i = 0; i < 3; i++) {
            I x = o[i] + begin[i] - (I)k[i] * dilation[i];
            if (x < 0 || x % stride[i] != 0 || x / stride[i] >= small[i])
                return -1;
            at = at * small[i] + x / stride[i];
        }
        return at;
    }
};

template <class V, bool FLOAT> struct Fused {
    dev static V add_product(V sum, V a, V b) { return add(sum, mul(a, b)); }
};
template <class V> struct Fused<V, true> {
    dev static V add_product(V sum, V a, V b) { return sum + a * b; }
};

// The sums of one tile over terms k0..k1. P finds elements: a(row, term), b(term, column).
template <class P> dev void tile(const P &p, I rows, I columns, I m0, I n0, I k0, I k1, W (&sum)[4][4]) {
    shared Shared<W, DEEP * LINE> sa;
    shared Shared<W, DEEP * LINE> sb;
    int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            sum[i][j] = (W)0;
    for (I k = k0; k < k1; k += DEEP) {
        barrier();
        for (int e = (int)threadIdx.x; e < SIDE * DEEP; e += 256) {
            // Neighbouring threads read neighbouring elements, whichever way the operand lies.
            int ka = P::A_ALONG_TERMS ? e % DEEP : e / SIDE, m = P::A_ALONG_TERMS ? e / DEEP : e % SIDE;
            sa[ka * LINE + m] = k + ka < k1 && m0 + m < rows ? p.a(m0 + m, k + ka) : (W)0;
            int kb = P::B_ALONG_TERMS ? e % DEEP : e / SIDE, n = P::B_ALONG_TERMS ? e / DEEP : e % SIDE;
            sb[kb * LINE + n] = k + kb < k1 && n0 + n < columns ? p.b(k + kb, n0 + n) : (W)0;
        }
        barrier();
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            W a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i] = sa[d * LINE + ty * 4 + i];
                b[i] = sb[d * LINE + tx * 4 + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = Fused<W, IsFloat<W>::value>::add_product(sum[i][j], a[i], b[j]);
        }
    }
}

// Which tile a block has: slice, product of the batch, rows, columns; blocks are counted along one axis, whose limit is 2^31.
struct Work {
    I slice, batch, m0, n0;
    dev Work(I b, I rows, I columns, I slices) {
        I across = (columns + SIDE - 1) / SIDE, along = (rows + SIDE - 1) / SIDE;
        n0 = b % across * SIDE;
        m0 = b / across % along * SIDE;
        slice = b / across / along % slices;
        batch = b / across / along / slices;
    }
};

template <class P>
dev void run(const P &p, const Work &w, W *partial, I rows, I columns, I terms, I slice, I slices, I batches) {
    W sum[4][4];
    I k0 = w.slice * slice, k1 = terms - k0 < slice ? terms : k0 + slice;
    tile(p, rows, columns, w.m0, w.n0, k0, k1, sum);
    int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            I m = w.m0 + ty * 4 + i, n = w.n0 + tx * 4 + j;
            if (m >= rows || n >= columns)
                continue;
            if (slices == 1)
                p.store(m, n, sum[i][j]);
            else
                partial[((w.slice * batches + w.batch) * rows + m) * columns + n] = sum[i][j];
        }
}

// Adds the slices of element e of all products, in order.
dev W slices_of(const W *partial, I e, I all, I slices) {
    W sum = partial[e];
    for (I s = 1; s < slices; s++)
        sum = add(sum, partial[s * all + e]);
    return sum;
}

#if KIND == 0 // y = alpha a b + beta c, a batch of them

struct MatMul {
    static const bool A_ALONG_TERMS = !TRANS_A, B_ALONG_TERMS = TRANS_B;
    const T *left, *right, *bias;
    T *y;
    I lda, ldb, columns, bias_row, bias_column;
    W alpha, beta;
    dev W a(I m, I k) const { return up(left[TRANS_A ? k * lda + m : m * lda + k]); }
    dev W b(I k, I n) const { return up(right[TRANS_B ? n * ldb + k : k * ldb + n]); }
    dev void store(I m, I n, W v) const {
        W r = mul(alpha, v);
        if (bias)
            r = add(r, mul(beta, up(bias[m * bias_row + n * bias_column])));
        y[m * columns + n] = down<T>(r);
    }
};

KERNEL(multiply, const T *a, const T *b, const T *c, T *y, W *partial, I rows, I columns, I terms, I slice, I slices, I batches, i32 rank,
       Dims extents, Dims sa, Dims sb, I bias_row, I bias_column, f64 alpha, f64 beta) {
    Work w((I)blockIdx.x, rows, columns, slices);
    MatMul p;
    p.left = a + offset_of(w.batch, rank, extents, sa);
    p.right = b + offset_of(w.batch, rank, extents, sb);
    p.bias = c;
    p.y = y + w.batch * rows * columns;
    p.lda = TRANS_A ? rows : terms;
    p.ldb = TRANS_B ? terms : columns;
    p.columns = columns;
    p.bias_row = bias_row;
    p.bias_column = bias_column;
    p.alpha = (W)alpha;
    p.beta = (W)beta;
    run(p, w, partial, rows, columns, terms, slice, slices, batches);
}

KERNEL(combine, const W *partial, const T *c, T *y, I rows, I columns, I slices, I batches, I bias_row, I bias_column, f64 alpha,
       f64 beta) {
    I all = batches * rows * columns;
    for (I e = thread_index(); e < all; e += thread_count()) {
        W r = mul((W)alpha, slices_of(partial, e, all, slices));
        if (c)
            r = add(r, mul((W)beta, up(c[e / columns % rows * bias_row + e % columns * bias_column])));
        y[e] = down<T>(r);
    }
}

#elif KIND == 1 // convolution: x, weights [features, channels a group, taps]

struct Conv {
    static const bool A_ALONG_TERMS = true, B_ALONG_TERMS = false;
    const Slide &s;
    const T *x, *weights, *bias;
    T *y;
    I channels, features, per_channels, per_features, group;
    dev W a(I m, I k) const { return up(weights[(group * per_features + m) * per_channels * s.taps + k]); }
    dev W b(I k, I n) const {
        I at = s.from_small(n % s.small_points, (int)(k % s.taps));
        I plane = n / s.small_points * channels + group * per_channels + k / s.taps;
        return at < 0 ? (W)0 : (W)up(x[plane * s.large_points + at]);
    }
    dev void store(I m, I n, W v) const {
        I f = group * per_features + m;
        y[(n / s.small_points * features + f) * s.small_points + n % s.small_points] = down<T>(bias ? v + up(bias[f]) : v);
    }
};

KERNEL(conv, const T *x, const T *weights, const T *bias, T *y, I images, I channels, I features, I groups, Dims sizes, Dims window,
       Dims shift) {
    Slide s(sizes, window, shift);
    I rows = features / groups, columns = images * s.small_points, terms = channels / groups * s.taps;
    Work w((I)blockIdx.x, rows, columns, 1);
    Conv p = {s, x, weights, bias, y, channels, features, channels / groups, rows, w.batch};
    run(p, w, (W *)0, rows, columns, terms, terms, 1, groups);
}

#elif KIND == 2 // transposed convolution: x on the small side, weights [channels, features a group, taps]

struct Transposed {
    static const bool A_ALONG_TERMS = true, B_ALONG_TERMS = false;
    const Slide &s;
    const T *x, *weights, *bias;
    T *y;
    I channels, features, per_channels, per_features, group;
    dev W a(I m, I k) const {
        return up(weights[((group * per_channels + k / s.taps) * per_features + m) * s.taps + k % s.taps]);
    }
    dev W b(I k, I n) const {
        I at = s.from_large(n % s.large_points, (int)(k % s.taps));
        I plane = n / s.large_points * channels + group * per_channels + k / s.taps;
        return at < 0 ? (W)0 : (W)up(x[plane * s.small_points + at]);
    }
    dev void store(I m, I n, W v) const {
        I f = group * per_features + m;
        y[(n / s.large_points * features + f) * s.large_points + n % s.large_points] = down<T>(bias ? v + up(bias[f]) : v);
    }
};

KERNEL(transposed, const T *x, const T *weights, const T *bias, T *y, I images, I channels, I features, I groups, Dims sizes, Dims window,
       Dims shift) {
    Slide s(sizes, window, shift);
    I rows = features / groups, columns = images * s.large_points, terms = channels / groups * s.taps;
    Work w((I)blockIdx.x, rows, columns, 1);
    Transposed p = {s, x, weights, bias, y, channels, features, channels / groups, rows, w.batch};
    run(p, w, (W *)0, rows, columns, terms, terms, 1, groups);
}

#else // gradient of a convolution's weights: x on the large side, dy on the small one

struct Gradient {
    static const bool A_ALONG_TERMS = true, B_ALONG_TERMS = true;
    const Slide &s;
    const T *x, *dy;
    T *dw;
    I channels, features, per_channels, per_features, group;
    dev W a(I m, I k) const {
        return up(dy[(k / s.small_points * features + group * per_features + m) * s.small_points + k % s.small_points]);
    }
    dev W b(I k, I n) const {
        I at = s.from_small(k % s.small_points, (int)(n % s.taps));
        I plane = k / s.small_points * channels + group * per_channels + n / s.taps;
        return at < 0 ? (W)0 : (W)up(x[plane * s.large_points + at]);
    }
    dev void store(I m, I n, W v) const { dw[(group * per_features + m) * per_channels * s.taps + n] = down<T>(v); }
};

KERNEL(gradient, const T *x, const T *dy, T *dw, W *partial, I images, I channels, I features, I groups, I slice, I slices, Dims sizes,
       Dims window, Dims shift) {
    Slide s(sizes, window, shift);
    I rows = features / groups, columns = channels / groups * s.taps, terms = images * s.small_points;
    Work w((I)blockIdx.x, rows, columns, slices);
    Gradient p = {s, x, dy, dw, channels, features, channels / groups, rows, w.batch};
    run(p, w, partial, rows, columns, terms, slice, slices, groups);
}

KERNEL(combine, const W *partial, T *dw, I all, I slices) {
    for (I e = thread_index(); e < all; e += thread_count())
        dw[e] = down<T>(slices_of(partial, e, all, slices));
}

#endif
