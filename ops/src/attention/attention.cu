// Attention without the score matrix, on plain cores: blocks of 16 rows walk over tiles of 64 columns of scores, which exist in registers
// and as one tile of shared memory.
//
// SIDE: none the forward pass, whose softmax is corrected as larger scores turn up; 0, 1, 2 the gradients to queries, keys and values. A
// gradient has the rows that it is of and walks over those of the other side, making the probabilities again from the log-sum-exp: nothing
// is added by two blocks. A thread keeps EACH columns of the result; more of them are the work of further blocks (`chunks`).
#include "dtrc_device.h"

// Logarithms of sums; float32 beside 16-bit floats.
#ifndef STAT
#define STAT T
#endif
// What is added to scores; with KEPT, where they stay and do not become `fill`.
#ifndef MASK
#define MASK T
#endif
#ifdef KEPT
#define MASKED(score, m) ((m) ? (score) : (W)fill)
#else
#define MASKED(score, m) ((score) + up(m))
#endif

typedef Num<T>::Arith W;

const int LINE = 65;

// The matrices of an operand: rows before heads if it is swapped.
struct Operand {
    I heads, rows, columns, swapped;
    dev Operand(const Dims &d) : heads(d.v[0]), rows(d.v[1]), columns(d.v[2]), swapped(d.v[3]) {}
    dev I stride() const { return swapped ? heads * columns : columns; }
    dev I at(I i) const {
        return swapped ? i / heads * heads * rows * columns + i % heads * columns : i * rows * columns;
    }
    dev Rows<T> matrix(const T *p, I i) const {
        Rows<T> r = {p + at(i), rows, stride(), 1};
        return r;
    }
};

#ifndef SIDE
KERNEL(forward, const T *q, const T *k, const T *v, const MASK *mask, T *y, STAT *shifts, STAT *rest, I matrices, I chunks, Dims of_q, Dims of_k,
       Dims of_v, Dims of_y, i32 rank, Dims lead, Dims mask_lead, I mask_row, I mask_column, f64 scale, f64 fill) {
    shared Shared<W, 16 * LINE> weights;
    int r = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16;
    Operand oq(of_q), ok(of_k), ov(of_v), oy(of_y);
    I down_blocks = (oq.rows + 15) / 16;
    const W none = Limits<W>::lowest();
    for (I b = (I)blockIdx.x; b < matrices * down_blocks * chunks; b += (I)gridDim.x) {
        I chunk = b % chunks, first = b / chunks % down_blocks * 16, i = b / chunks / down_blocks;
        I row = first + r, column = chunk * 16 * EACH + c;
        Rows<T> queries = oq.matrix(q, i), keys = ok.matrix(k, i), values = ov.matrix(v, i);
        const MASK *m = mask ? mask + offset_of(i, rank, lead, mask_lead) : nullptr;
        W most = none, sum = 0, acc[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            acc[e] = 0;
        for (I j0 = 0; j0 < ok.rows; j0 += 64) {
            W s[4], top = most, part = 0;
            dots(queries, first, keys, j0, oq.columns, s);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                I j = j0 + c + 16 * n;
                s[n] *= (W)scale;
                if (m && row < oq.rows && j < ok.rows)
                    s[n] = MASKED(s[n], m[row * mask_row + j * mask_column]);
                if (j < ok.rows)
                    top = larger(top, s[n]);
            }
            for (int x = 8; x > 0; x >>= 1)
                top = larger(top, shuffle_xor(top, x));
            // A row that is masked so far has no maximum to subtract.
            W shift = top == none ? (W)0 : top, keep = m_exp(most - shift);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                W p = j0 + c + 16 * n < ok.rows ? m_exp(s[n] - shift) : (W)0;
                weights[r * LINE + c + 16 * n] = p;
                part += p;
            }
            for (int x = 8; x > 0; x >>= 1)
                part += shuffle_xor(part, x);
            sum = sum * keep + part;
            most = top;
            barrier();
#pragma unroll
            for (int e = 0; e < EACH; e++)
                acc[e] *= keep;
            int n = ok.rows - j0 < 64 ? (int)(ok.rows - j0) : 64;
            for (int j = 0; j < n; j++) {
                W p = weights[r * LINE + j];
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (column + 16 * e < ov.columns)
                        acc[e] += p * up(values.of(j0 + j, column + 16 * e));
            }
        }
        if (row < oq.rows) {
            W scaled = (W)1 / sum;
#ifdef GUARDED
            // Probabilities that are NaN, or of which there are none: a sum of zeros, which is NaN beside values that are no numbers.
            bool nothing = !(sum > (W)0);
            if (nothing) {
                scaled = 1;
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    acc[e] = 0;
                    for (I j = 0; j < ok.rows; j++)
                        if (column + 16 * e < ov.columns)
                            acc[e] += (W)0 * up(values.of(j, column + 16 * e));
                }
            }
#endif
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (column + 16 * e < ov.columns)
                    y[oy.at(i) + row * oy.stride() + column + 16 * e] = down<T>(acc[e] * scaled);
            if (chunk == 0 && c == 0) {
                // Two numbers: where scores are large, one has no digits for the logarithm.
                W whole = m_rint(most), beyond = m_log(sum) + (most - whole);
#ifdef GUARDED
                // What makes probabilities again of scores that are all minus infinity gives 0 then.
                if (nothing && most == none)
                    whole = beyond = 0;
#endif
                shifts[i * oq.rows + row] = down<STAT>(whole);
                rest[i * oq.rows + row] = down<STAT>(beyond);
            }
        }
    }
}
#else
// What is taken from each row of the cotangents of probabilities: the sum of dy y, less the cotangent of the log-sum-exp. A warp a row.
KERNEL(remainders, const T *y, const T *dy, const STAT *d_lse, W *less, I matrices, Dims of_y) {
    Operand oy(of_y);
    I warps = thread_count() / 32, all = matrices * oy.rows;
    int lane = (int)threadIdx.x % 32;
    for (I w = thread_index() / 32; w < all; w += warps) {
        I at = oy.at(w / oy.rows) + w % oy.rows * oy.stride();
        W sum = 0;
        for (I c = lane; c < oy.columns; c += 32)
            sum += up(y[at + c]) * up(dy[at + c]);
        sum = warp_sum(sum);
        if (lane == 0)
            less[w] = sum - (d_lse ? (W)up(d_lse[w]) : (W)0);
    }
}

KERNEL(backward, const T *q, const T *k, const T *v, const MASK *mask, const T *dy, const STAT *shifts, const STAT *rest, const W *less, T *out, I matrices,
       I chunks, Dims of_q, Dims of_k, Dims of_v, Dims of_y, i32 rank, Dims lead, Dims mask_lead, I mask_row, I mask_column, f64 scale, f64 fill) {
    shared Shared<W, 16 * LINE> weights;
    int r = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16;
    Operand oq(of_q), ok(of_k), ov(of_v), oy(of_y), own = SIDE == 0 ? oq : SIDE == 1 ? ok : ov;
    I others = SIDE == 0 ? ok.rows : oq.rows, down_blocks = (own.rows + 15) / 16;
    for (I b = (I)blockIdx.x; b < matrices * down_blocks * chunks; b += (I)gridDim.x) {
        I chunk = b % chunks, first = b / chunks % down_blocks * 16, i = b / chunks / down_blocks;
        I row = first + r, column = chunk * 16 * EACH + c;
        Rows<T> queries = oq.matrix(q, i), keys = ok.matrix(k, i), values = ov.matrix(v, i), cotangents = oy.matrix(dy, i);
        const MASK *m = mask ? mask + offset_of(i, rank, lead, mask_lead) : nullptr;
        W acc[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            acc[e] = 0;
        for (I j0 = 0; j0 < others; j0 += 64) {
            W s[4], d[4];
            dots(SIDE == 0 ? queries : keys, first, SIDE == 0 ? keys : queries, j0, oq.columns, s);
#if SIDE != 2
            dots(SIDE == 0 ? cotangents : values, first, SIDE == 0 ? values : cotangents, j0, ov.columns, d);
#endif
#pragma unroll
            for (int n = 0; n < 4; n++) {
                I j = j0 + c + 16 * n, query = SIDE == 0 ? row : j, key = SIDE == 0 ? j : row;
                W p = 0;
                if (row < own.rows && j < others) {
                    I line = i * oq.rows + query;
                    W score = s[n] * (W)scale;
                    if (m)
                        score = MASKED(score, m[query * mask_row + key * mask_column]);
                    p = m_exp((score - up(shifts[line])) - (rest ? (W)up(rest[line]) : (W)0));
#if SIDE != 2
                    p *= d[n] - less[line];
#ifdef KEPT
                    if (!m[query * mask_row + key * mask_column])
                        p = 0;
#endif
#endif
                }
                weights[r * LINE + c + 16 * n] = p;
            }
            barrier();
            int n = others - j0 < 64 ? (int)(others - j0) : 64;
            const Rows<T> &with = SIDE == 0 ? keys : SIDE == 1 ? queries : cotangents;
            for (int j = 0; j < n; j++) {
                W p = weights[r * LINE + j];
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (column + 16 * e < own.columns)
                        acc[e] += p * up(with.of(j0 + j, column + 16 * e));
            }
        }
        if (row < own.rows)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (column + 16 * e < own.columns)
                    out[own.at(i) + row * own.stride() + column + 16 * e] = down<T>(SIDE == 2 ? acc[e] : acc[e] * (W)scale);
    }
}
#endif
