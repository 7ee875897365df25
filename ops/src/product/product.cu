// Matrix products and convolutions. A convolution is the product of its weights with windows that are never written out.
//
// TENSOR: none on plain cores, tiles of 64 x 64 results, 16 terms at a time through shared memory, 4 x 4 results a thread; else on tensor
// cores, 1 for 16-bit floats and 2 for float32 rounded to TF32, tiles of 128 x 64, 64 bytes of terms at a time in two stages, of which one
// is filled while the other is multiplied; a warp has 32 x 32 results. KIND says how operands are found. Where results are few and terms
// many, the terms are cut into slices (by shape alone); their sums go through the workspace and `combine` adds them in order.
#ifdef TENSOR
#define BLOCKS 2
#endif
#include "dtrc_device.h"

#ifdef TENSOR
#include "dtrc_tensor.h"
#else
#define TENSOR 0
#endif

typedef Num<T>::Arith W;

// Neighbours that are read by one access where they lie in order.
const int PER = 16 / sizeof(T);
#if TENSOR
const int DEEP = 4 * PER, TALL = 128, WIDE = 64, EACH_ROWS = 4, EACH_COLUMNS = 8;
#else
const int DEEP = 16, TALL = 64, WIDE = 64, PAD = 4, LINE = 64 + PAD, EACH_ROWS = 4, EACH_COLUMNS = 4;
#endif

dev T nothing() { return down<T>((W)0); }

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
    // Whether windows are elements, in order.
    dev bool plain() const {
        bool plain = taps == 1;
        for (int i = 0; i < 3; i++)
            plain = plain && stride[i] == 1 && begin[i] == 0 && large[i] == small[i];
        return plain;
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

// Where result i, j of a thread lies in its tile.
dev int row_in_tile(int i) {
    int t = (int)threadIdx.x;
    return TENSOR ? t / 32 % 4 * 32 + i / 2 * 16 + i % 2 * 8 + t % 32 / 4 : t / 16 * 4 + i;
}
dev int column_in_tile(int j) {
    int t = (int)threadIdx.x;
    return TENSOR ? t / 128 * 32 + j / 2 * 8 + t % 4 * 2 + j % 2 : t % 16 * 4 + j;
}

// A tile is the sums of its results over terms k0..k1. P finds elements, a(row, term) and b(term, column), and says along which of the two
// they are neighbours; a_run and b_run are where PER neighbours from an element on can be read at once, or null.
#if !TENSOR

template <class V, bool FLOAT> struct Fused {
    dev static V add_product(V sum, V a, V b) { return add(sum, mul(a, b)); }
};
template <class V> struct Fused<V, true> {
    dev static V add_product(V sum, V a, V b) { return sum + a * b; }
};

template <class P> dev void tile(const P &p, I rows, I columns, I m0, I n0, I k0, I k1, W (&sum)[EACH_ROWS][EACH_COLUMNS]) {
    shared Shared<W, DEEP * LINE> sa;
    shared Shared<W, DEEP * LINE> sb;
    int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            sum[i][j] = (W)0;
    for (I k = k0; k < k1; k += DEEP) {
        barrier();
        for (int e = (int)threadIdx.x; e < TALL * DEEP; e += 256) {
            // Neighbouring threads read neighbouring elements, whichever way the operand lies.
            int ka = P::A_ALONG_TERMS ? e % DEEP : e / TALL, m = P::A_ALONG_TERMS ? e / DEEP : e % TALL;
            sa[ka * LINE + m] = k + ka < k1 && m0 + m < rows ? (W)up(p.a(m0 + m, k + ka)) : (W)0;
            int kb = P::B_ALONG_TERMS ? e % DEEP : e / WIDE, n = P::B_ALONG_TERMS ? e / DEEP : e % WIDE;
            sb[kb * LINE + n] = k + kb < k1 && n0 + n < columns ? (W)up(p.b(k + kb, n0 + n)) : (W)0;
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

#else

// One side of a product in shared memory, padded so that lanes which read together read from different banks.
template <bool ALONG_TERMS, int SIDE> struct Staged {
    static const int LINE = ALONG_TERMS ? DEEP + PER : SIDE + 8, SIZE = LINE * (ALONG_TERMS ? SIDE : DEEP);
    dev static int at(int m, int k) { return ALONG_TERMS ? m * LINE + k : k * LINE + m; }
    // Which row of the four matrices of a fragment of 16 by 16 this lane names. PAIRED: the second matrix is the first one's neighbour
    // along the terms, else across.
    template <bool PAIRED> dev static int row(int m, int k) {
        int l = (int)threadIdx.x % 32, second = l / 8 % 2 * 8, third = l / 16 * 8, along = PAIRED ? second : third;
        int across = PAIRED ? third : second;
        return ALONG_TERMS ? at(m + across + l % 8, k + along) : at(m + across, k + along + l % 8);
    }
};

template <class P> struct Left {
    const P &p;
    dev T one(I m, I k) const { return p.a(m, k); }
    dev const T *run(I m, I k) const { return p.a_run(m, k); }
};
template <class P> struct Right {
    const P &p;
    dev T one(I n, I k) const { return p.b(k, n); }
    dev const T *run(I n, I k) const { return p.b_run(k, n); }
};

// Begins to bring DEEP terms of SIDE lines to shared memory; what lies outside is zero.
template <bool ALONG_TERMS, int SIDE, class Find, int N>
dev void fetch(const Find &find, Shared<T, N> &to, int start, I m0, I lines, I k0, I k1) {
#pragma unroll
    for (int e = (int)threadIdx.x; e < SIDE * 4; e += 256) {
        int m = ALONG_TERMS ? e / 4 : e % (SIDE / PER) * PER, k = ALONG_TERMS ? e % 4 * PER : e / (SIDE / PER);
        bool inside = m0 + m < lines && k0 + k < k1;
        I left = ALONG_TERMS ? k1 - k0 - k : lines - m0 - m;
        int there = !inside ? 0 : left < PER ? (int)left : PER, at = start + Staged<ALONG_TERMS, SIDE>::at(m, k);
        const T *run = inside ? find.run(m0 + m, k0 + k) : nullptr;
        if (run) {
            copy_async(to, at, run, there);
            continue;
        }
        Pack<T, PER> v;
#pragma unroll
        for (int j = 0; j < PER; j++)
            v.v[j] = j < there ? find.one(m0 + m + (ALONG_TERMS ? 0 : j), k0 + k + (ALONG_TERMS ? j : 0)) : nothing();
        put_chunk(to, at, v);
    }
}

template <class P> dev void tensor_tile(const P &p, I rows, I columns, I m0, I n0, I k0, I k1, W (&sum)[EACH_ROWS][EACH_COLUMNS]) {
    typedef Staged<P::A_ALONG_TERMS, TALL> A;
    typedef Staged<P::B_ALONG_TERMS, WIDE> B;
    shared Shared<T, 2 * A::SIZE> sa;
    shared Shared<T, 2 * B::SIZE> sb;
    int m = row_in_tile(0) - (int)threadIdx.x % 32 / 4, n = column_in_tile(0) - (int)threadIdx.x % 4 * 2;
    Left<P> left = {p};
    Right<P> right = {p};
    f32 c[2][4][4];
#pragma unroll
    for (int i = 0; i < 32; i++)
        c[i / 16][i / 4 % 4][i % 4] = 0;
    fetch<P::A_ALONG_TERMS, TALL>(left, sa, 0, m0, rows, k0, k1);
    fetch<P::B_ALONG_TERMS, WIDE>(right, sb, 0, n0, columns, k0, k1);
    end_copies();
    int now = 0;
    for (I k = k0; k < k1; k += DEEP) {
        if (k + DEEP < k1) {
            fetch<P::A_ALONG_TERMS, TALL>(left, sa, (1 - now) * A::SIZE, m0, rows, k + DEEP, k1);
            fetch<P::B_ALONG_TERMS, WIDE>(right, sb, (1 - now) * B::SIZE, n0, columns, k + DEEP, k1);
        }
        end_copies();
        await_copies<1>();
        barrier();
        int in_a = now * A::SIZE, in_b = now * B::SIZE;
        const int DEPTH = sizeof(T) == 2 ? 16 : 8;
#pragma unroll
        for (int d = 0; d < DEEP; d += DEPTH) {
            u32 b[4][2], a[4];
#if TENSOR == 2
            int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
            for (int j = 0; j < 8; j++)
                b[j / 2][j % 2] = to_tf32(sb[in_b + B::at(n + j / 2 * 8 + g, d + t + j % 2 * 4)]);
#else
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                load_matrices(!P::B_ALONG_TERMS, sb, in_b + B::template row<true>(n + j * 8, d), a);
                b[j][0] = a[0], b[j][1] = a[1], b[j + 1][0] = a[2], b[j + 1][1] = a[3];
            }
#endif
#pragma unroll
            for (int i = 0; i < 2; i++) {
#if TENSOR == 2
#pragma unroll
                for (int x = 0; x < 4; x++)
                    a[x] = to_tf32(sa[in_a + A::at(m + i * 16 + g + x % 2 * 8, d + t + x / 2 * 4)]);
#else
                load_matrices(!P::A_ALONG_TERMS, sa, in_a + A::template row<false>(m + i * 16, d), a);
#endif
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply_add(T, c[i][j], a, b[j]);
            }
        }
        barrier();
        now = 1 - now;
    }
#pragma unroll
    for (int i = 0; i < EACH_ROWS; i++)
#pragma unroll
        for (int j = 0; j < EACH_COLUMNS; j++)
            sum[i][j] = c[i / 2][j / 2][i % 2 * 2 + j % 2];
}

#endif

// Which tile a block has: slice, product of the batch, rows, columns; blocks are counted along one axis, whose limit is 2^31.
struct Work {
    I slice, batch, m0, n0;
    dev Work(I b, I rows, I columns, I slices) {
        I across = (columns + WIDE - 1) / WIDE, along = (rows + TALL - 1) / TALL;
        n0 = b % across * WIDE;
        m0 = b / across % along * TALL;
        slice = b / across / along % slices;
        batch = b / across / along / slices;
    }
};

template <class P>
dev void run(const P &p, const Work &w, W *partial, I rows, I columns, I terms, I slice, I slices, I batches) {
    W sum[EACH_ROWS][EACH_COLUMNS];
    I k0 = w.slice * slice, k1 = terms - k0 < slice ? terms : k0 + slice;
#if TENSOR
    tensor_tile(p, rows, columns, w.m0, w.n0, k0, k1, sum);
#else
    tile(p, rows, columns, w.m0, w.n0, k0, k1, sum);
#endif
#pragma unroll
    for (int i = 0; i < EACH_ROWS; i++)
#pragma unroll
        for (int j = 0; j < EACH_COLUMNS; j++) {
            I m = w.m0 + row_in_tile(i), n = w.n0 + column_in_tile(j);
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
    bool a_runs, b_runs;
    dev const T *at_a(I m, I k) const { return left + (TRANS_A ? k * lda + m : m * lda + k); }
    dev const T *at_b(I k, I n) const { return right + (TRANS_B ? n * ldb + k : k * ldb + n); }
    dev T a(I m, I k) const { return *at_a(m, k); }
    dev T b(I k, I n) const { return *at_b(k, n); }
    dev const T *a_run(I m, I k) const { return a_runs ? at_a(m, k) : nullptr; }
    dev const T *b_run(I k, I n) const { return b_runs ? at_b(k, n) : nullptr; }
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
    p.a_runs = aligned(p.left) && p.lda % PER == 0;
    p.b_runs = aligned(p.right) && p.ldb % PER == 0;
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
    bool a_runs, b_runs;
    dev const T *at_a(I m, I k) const { return weights + (group * per_features + m) * per_channels * s.taps + k; }
    dev const T *plane(I k, I n) const {
        return x + (n / s.small_points * channels + group * per_channels + k / s.taps) * s.large_points;
    }
    dev T a(I m, I k) const { return *at_a(m, k); }
    dev T b(I k, I n) const {
        I at = s.from_small(n % s.small_points, (int)(k % s.taps));
        return at < 0 ? nothing() : plane(k, n)[at];
    }
    dev const T *a_run(I m, I k) const { return a_runs ? at_a(m, k) : nullptr; }
    dev const T *b_run(I k, I n) const { return b_runs ? plane(k, n) + n % s.small_points : nullptr; }
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
    bool a_runs = aligned(weights) && terms % PER == 0, b_runs = aligned(x) && s.plain() && s.small_points % PER == 0;
    Conv p = {s, x, weights, bias, y, channels, features, channels / groups, rows, w.batch, a_runs, b_runs};
    run(p, w, (W *)0, rows, columns, terms, terms, 1, groups);
}

#elif KIND == 2 // transposed convolution: x on the small side, weights [channels, features a group, taps]

struct Transposed {
    static const bool A_ALONG_TERMS = true, B_ALONG_TERMS = false;
    const Slide &s;
    const T *x, *weights, *bias;
    T *y;
    I channels, features, per_channels, per_features, group;
    dev T a(I m, I k) const {
        return weights[((group * per_channels + k / s.taps) * per_features + m) * s.taps + k % s.taps];
    }
    dev T b(I k, I n) const {
        I at = s.from_large(n % s.large_points, (int)(k % s.taps));
        I plane = n / s.large_points * channels + group * per_channels + k / s.taps;
        return at < 0 ? nothing() : x[plane * s.small_points + at];
    }
    dev const T *a_run(I, I) const { return nullptr; }
    dev const T *b_run(I, I) const { return nullptr; }
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
    bool a_runs, b_runs;
    dev const T *at_a(I m, I k) const {
        return dy + (k / s.small_points * features + group * per_features + m) * s.small_points + k % s.small_points;
    }
    dev const T *plane(I k, I n) const {
        return x + (k / s.small_points * channels + group * per_channels + n / s.taps) * s.large_points;
    }
    dev T a(I m, I k) const { return *at_a(m, k); }
    dev T b(I k, I n) const {
        I at = s.from_small(k % s.small_points, (int)(n % s.taps));
        return at < 0 ? nothing() : plane(k, n)[at];
    }
    dev const T *a_run(I m, I k) const { return a_runs ? at_a(m, k) : nullptr; }
    dev const T *b_run(I k, I n) const { return b_runs ? plane(k, n) + k % s.small_points : nullptr; }
    dev void store(I m, I n, W v) const { dw[(group * per_features + m) * per_channels * s.taps + n] = down<T>(v); }
};

KERNEL(gradient, const T *x, const T *dy, T *dw, W *partial, I images, I channels, I features, I groups, I slice, I slices, Dims sizes,
       Dims window, Dims shift) {
    Slide s(sizes, window, shift);
    I rows = features / groups, columns = channels / groups * s.taps, terms = images * s.small_points;
    Work w((I)blockIdx.x, rows, columns, slices);
    bool a_runs = aligned(dy) && s.small_points % PER == 0, b_runs = aligned(x) && s.plain() && s.small_points % PER == 0;
    Gradient p = {s, x, dy, dw, channels, features, channels / groups, rows, w.batch, a_runs, b_runs};
    run(p, w, partial, rows, columns, terms, slice, slices, groups);
}

KERNEL(combine, const W *partial, T *dw, I all, I slices) {
    for (I e = thread_index(); e < all; e += thread_count())
        dw[e] = down<T>(slices_of(partial, e, all, slices));
}

#endif
