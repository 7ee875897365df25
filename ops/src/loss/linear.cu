// Cross entropy of a linear layer without its scores: blocks of 16 rows walk over tiles of 64 classes (or blocks of classes over tiles of
// rows), whose scores exist in registers and as one tile of shared memory.
//
// SIDE: none the loss; 0 the gradient to x, 1 those to the weight and the bias, for which the scores are made again. L is the type of
// labels; a label that is no class sets the status. A thread keeps EACH columns of a gradient; more are the work of further blocks.
#include "dtrc_device.h"

// Logarithms of sums, the loss and its cotangent; float32 beside 16-bit floats.
#ifndef STAT
#define STAT T
#endif

typedef Num<T>::Arith W;

const int LINE = 65;

dev i64 class_of(i64 label, i64 classes, i32 has_ignore, i64 ignore) {
    return (has_ignore && label == ignore) || label < 0 || label >= classes ? -1 : label;
}

#ifndef SIDE
// `rows` gets each row's loss and weight.
KERNEL(forward, const T *x, const T *w, const L *labels, const T *bias, STAT *shifts, STAT *rest, W *rows, I count, I depth, I classes, I w_row,
       I w_column, i32 has_ignore, i64 ignore, Status *status, u32 call) {
    int r = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16;
    const W none = Limits<W>::lowest();
    Rows<T> lines = {x, count, depth, 1}, weights = {w, classes, w_row, w_column};
    for (I first = (I)blockIdx.x * 16; first < count; first += (I)gridDim.x * 16) {
        I row = first + r;
        i64 label = row < count ? (i64)labels[row] : 0, own_class = class_of(label, classes, has_ignore, ignore);
        W most = none, sum = 0, own = 0;
        for (I j0 = 0; j0 < classes; j0 += 64) {
            W s[4], top = most, part = 0;
            dots(lines, first, weights, j0, depth, s);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                I j = j0 + c + 16 * n;
                if (j >= classes)
                    continue;
                if (bias)
                    s[n] += up(bias[j]);
                top = larger(top, s[n]);
                if (j == own_class)
                    own = s[n];
            }
            for (int k = 8; k > 0; k >>= 1)
                top = larger(top, shuffle_xor(top, k));
            W shift = top == none ? (W)0 : top, keep = m_exp(most - shift);
#pragma unroll
            for (int n = 0; n < 4; n++)
                part += j0 + c + 16 * n < classes ? m_exp(s[n] - shift) : (W)0;
            for (int k = 8; k > 0; k >>= 1)
                part += shuffle_xor(part, k);
            sum = sum * keep + part;
            most = top;
        }
        // One thread of the row has the score of its class, the others have 0.
        for (int k = 8; k > 0; k >>= 1)
            own += shuffle_xor(own, k);
        if (row < count && c == 0) {
            if (own_class < 0 && !(has_ignore && label == ignore))
                fail(status, call, BAD_LABEL, row, label);
            W log = m_log(sum);
            // Two numbers: where scores are large, one has no digits for the logarithm.
            W whole = m_rint(most);
            shifts[row] = down<STAT>(whole);
            rest[row] = down<STAT>(log + (most - whole));
            rows[2 * row] = own_class < 0 ? (W)0 : log + (most - own);
            rows[2 * row + 1] = own_class < 0 ? (W)0 : (W)1;
        }
    }
}
#else
KERNEL(backward, const T *x, const T *w, const L *labels, const T *bias, const STAT *shifts, const STAT *dy, const STAT *d_lse,
       const STAT *rest, const W *total, T *out, T *d_bias, I count, I depth, I classes, I w_row, I w_column, I chunks, i32 has_ignore,
       i64 ignore) {
    shared Shared<W, 16 * LINE> tile;
    int r = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16;
    Rows<T> lines = {x, count, depth, 1}, weights = {w, classes, w_row, w_column};
    const Rows<T> &own = SIDE == 0 ? lines : weights, &others = SIDE == 0 ? weights : lines;
    W share = dy ? (total ? up(dy[0]) / total[0] : (W)up(dy[0])) : (W)0;
    I down_blocks = (own.count + 15) / 16;
    for (I b = (I)blockIdx.x; b < down_blocks * chunks; b += (I)gridDim.x) {
        I chunk = b % chunks, first = b / chunks * 16, row = first + r, column = chunk * 16 * EACH + c;
        W acc[EACH], sum = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            acc[e] = 0;
        for (I j0 = 0; j0 < others.count; j0 += 64) {
            W s[4];
            dots(own, first, others, j0, depth, s);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                I j = j0 + c + 16 * n, line = SIDE == 0 ? row : j, cl = SIDE == 0 ? j : row;
                W d = 0;
                if (row < own.count && j < others.count) {
                    i64 label = class_of(labels[line], classes, has_ignore, ignore);
                    W mine = label < 0 ? (W)0 : share, factor = mine + (d_lse ? (W)up(d_lse[line]) : (W)0);
                    W score = bias ? s[n] + up(bias[cl]) : s[n];
                    d = m_exp((score - up(shifts[line])) - (rest ? (W)up(rest[line]) : (W)0)) * factor - (label == cl ? mine : (W)0);
                }
                tile[r * LINE + c + 16 * n] = d;
            }
            barrier();
            int n = others.count - j0 < 64 ? (int)(others.count - j0) : 64;
            for (int j = 0; j < n; j++) {
                W d = tile[r * LINE + j];
                sum += d;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (column + 16 * e < depth)
                        acc[e] += d * up(others.of(j0 + j, column + 16 * e));
            }
        }
        if (row >= own.count)
            continue;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (column + 16 * e < depth)
                out[row * own.row + (column + 16 * e) * own.column] = down<T>(acc[e]);
        if (SIDE == 1 && chunk == 0 && c == 0)
            d_bias[row] = down<T>(sum);
    }
}
#endif
