// Gradients of recurrent layers that are sums over all steps and sequences: of the weight, a tile of 16 x 16 for each block, and of
// peepholes, a thread for each.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// out[j][i] = sum over steps and sequences of d[t][b][j] times the state that the step started from, or with `aligned` times y[t][b][i].
KERNEL(weights, const T *d, const T *y, const T *initial, const i32 *lengths, T *out, I steps, I batch, I hidden, i32 reverse, I row,
       I column, I columns, i32 aligned) {
    shared Shared<W, 16 * 17> sd;
    shared Shared<W, 16 * 17> sy;
    int r = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16;
    I across = (hidden + 15) / 16, down_blocks = (columns + 15) / 16;
    for (I b = (I)blockIdx.x; b < across * down_blocks; b += (I)gridDim.x) {
        I i0 = b % across * 16, j0 = b / across * 16;
        W sum = 0;
        for (I n0 = 0; n0 < steps * batch; n0 += 16) {
            I n = n0 + r, t = n / batch, s = n % batch, from = aligned ? t : reverse ? t + 1 : t - 1;
            bool is = n < steps * batch && (!lengths || t < lengths[s]);
            W state = 0;
            if (is && i0 + c < hidden) {
                // Beyond its end a sequence's states are 0.
                if (from >= 0 && from < steps)
                    state = up(y[(from * batch + s) * hidden + i0 + c]);
                I first = !reverse ? 0 : lengths && lengths[s] < steps ? (I)lengths[s] - 1 : steps - 1;
                if (!aligned && initial && t == first)
                    state += up(initial[s * hidden + i0 + c]);
            }
            barrier();
            sd[r * 17 + c] = is && j0 + c < columns ? (W)up(d[n * row + column + j0 + c]) : (W)0;
            sy[r * 17 + c] = state;
            barrier();
            for (int k = 0; k < 16; k++)
                sum += (W)sd[k * 17 + r] * (W)sy[k * 17 + c];
        }
        if (j0 + r < columns && i0 + c < hidden)
            out[(j0 + r) * hidden + i0 + c] = down<T>(sum);
    }
}

// Gradients of peepholes (input, output, forget): gates' cotangents times the cells they saw. The output gate sees the new cell.
KERNEL(peepholes, const T *d, const T *cells, const T *initial, T *out, I steps, I batch, I hidden, i32 reverse) {
    for (I e = thread_index(); e < 3 * hidden; e += thread_count()) {
        I gate = e / hidden, i = e % hidden;
        W sum = 0;
        for (I t = 0; t < steps; t++) {
            I seen = gate == 1 ? t : !reverse ? t - 1 : t + 1 < steps ? t + 1 : -1;
            for (I b = 0; b < batch; b++) {
                W cell = seen >= 0 ? (W)up(cells[(seen * batch + b) * hidden + i]) : initial ? (W)up(initial[b * hidden + i]) : (W)0;
                sum += up(d[(t * batch + b) * 4 * hidden + e]) * cell;
            }
        }
        out[e] = down<T>(sum);
    }
}
