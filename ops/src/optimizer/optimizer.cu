// State updates in place. Each keeps the old version where `ok` is 0 or a kernel of the step has failed.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

dev bool counts(const f32 *ok, const Status *status) { return (!ok || ok[0] != 0.0f) && status->code == 0; }

dev f64 power(f64 base, u64 n) {
    f64 result = 1.0;
    for (; n > 0; n >>= 1) {
        if (n & 1)
            result *= base;
        base *= base;
    }
    return result;
}

KERNEL(adam, const T *p, const T *g, const f32 *lr, const T *m, const T *v, const i64 *step, const f32 *scale, const f32 *ok, T *p_out,
       T *m_out, T *v_out, I n, f64 beta1, f64 beta2, f64 eps, f64 decay, i32 decoupled, const Status *status) {
    if (!counts(ok, status)) {
        for (I i = thread_index(); i < n; i += thread_count()) {
            p_out[i] = p[i];
            m_out[i] = m[i];
            v_out[i] = v[i];
        }
        return;
    }
    f64 rate = lr[0];
    u64 count = step[0] > 1 ? (u64)step[0] : 1;
    // What is the same for all elements is computed in double precision and rounded once.
    W minus = (W)(-rate / (1.0 - power(beta1, count))), root = (W)sqrt(1.0 - power(beta2, count));
    W keep = decoupled ? (W)(1.0 - rate * decay) : (W)1, into = decoupled ? (W)0 : (W)decay;
    W new1 = (W)(1.0 - beta1), b1 = (W)beta1, b2 = (W)beta2, new2 = (W)(1.0 - beta2), e = (W)eps;
    W s = scale ? (W)scale[0] : (W)1;
    for (I i = thread_index(); i < n; i += thread_count()) {
        W param = up(p[i]), grad = up(g[i]) * s + into * param, first = up(m[i]), second = up(v[i]);
        param *= keep;
        // Interpolates from the nearer end.
        first = beta1 > 0.5 ? first + new1 * (grad - first) : grad - (grad - first) * b1;
        second = second * b2 + new2 * grad * grad;
        p_out[i] = down<T>(param + minus * first / (m_sqrt(second) / root + e));
        m_out[i] = down<T>(first);
        v_out[i] = down<T>(second);
    }
}

KERNEL(sgd, const T *p, const T *g, const f32 *lr, const T *buffer, const f32 *scale, const f32 *ok, T *p_out, T *buffer_out, I n,
       f64 momentum, f64 undamped, f64 decay, i32 nesterov, const Status *status) {
    if (!counts(ok, status)) {
        for (I i = thread_index(); i < n; i += thread_count()) {
            p_out[i] = p[i];
            if (buffer)
                buffer_out[i] = buffer[i];
        }
        return;
    }
    W rate = (W)lr[0], s = scale ? (W)scale[0] : (W)1;
    for (I i = thread_index(); i < n; i += thread_count()) {
        W param = up(p[i]), grad = up(g[i]) * s + (W)decay * param;
        if (buffer) {
            W b = (W)momentum * up(buffer[i]) + (W)undamped * grad;
            grad = nesterov ? grad + (W)momentum * b : b;
            buffer_out[i] = down<T>(b);
        }
        p_out[i] = down<T>(param - rate * grad);
    }
}

// old * running + (momentum * pending + share * batch).
KERNEL(running, const T *r, const T *batch, const f32 *ok, const T *pending, T *out, I n, f64 old, f64 momentum, f64 share,
       const Status *status) {
    bool update = counts(ok, status);
    for (I i = thread_index(); i < n; i += thread_count()) {
        W next = (W)share * up(batch[i]);
        if (pending)
            next = (W)momentum * up(pending[i]) + next;
        out[i] = update ? down<T>((W)old * up(r[i]) + next) : r[i];
    }
}

KERNEL(accumulate, const T *a, const T *g, const f32 *ok, T *out, I n, const Status *status) {
    bool update = counts(ok, status);
    for (I i = thread_index(); i < n; i += thread_count())
        out[i] = update ? down<T>(up(a[i]) + up(g[i])) : a[i];
}

// Sums in order of a block, for the norm of gradients.
KERNEL(squares, const T *x, f64 *sums, I n, I slice) {
    shared Shared<f64, 32> scratch;
    I from = (I)blockIdx.x * slice, end = n - from < slice ? n : from + slice;
    f64 sum = 0;
    for (I i = from + (I)threadIdx.x; i < end; i += (I)blockDim.x)
        sum += (f64)up(x[i]) * (f64)up(x[i]);
    sum = block_reduce<Plus>(sum, scratch);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

KERNEL(squares_total, const f64 *sums, f32 *y, I slices) {
    shared Shared<f64, 32> scratch;
    f64 sum = 0;
    for (I i = (I)threadIdx.x; i < slices; i += (I)blockDim.x)
        sum += sums[i];
    sum = block_reduce<Plus>(sum, scratch);
    if (threadIdx.x == 0)
        y[0] = (f32)sum;
}

// Zeros the answer if any element is not finite; all who write write the same.
KERNEL(finite, const T *x, f32 *y, I n) {
    bool bad = false;
    for (I i = thread_index(); i < n; i += thread_count())
        bad |= !is_finite(up(x[i]));
    if (bad)
        y[0] = 0.0f;
}

// One more sum of squares; `last` makes the factor of it.
KERNEL(clip, const f32 *x, f64 *sum, f32 *y, i32 first, i32 last, f64 max_norm, f64 pre_scale) {
    if (thread_index() != 0)
        return;
    f64 total = (first ? 0.0 : sum[0]) + (x ? (f64)x[0] : 0.0);
    sum[0] = total;
    if (last) {
        f64 ratio = max_norm / (pre_scale * sqrt(total) + 1e-6);
        y[0] = (f32)(pre_scale * (ratio > 1.0 ? 1.0 : ratio));
    }
}
