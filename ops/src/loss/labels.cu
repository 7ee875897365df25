// Losses over class labels: a block for each row of scores, then one block that adds the rows in a fixed order.
//
// L is the type of labels. `rows` in the workspace holds each row's loss and weight. A label that is no class sets the status, upon which
// no commit of the step changes anything.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

// The class of a label, or -1 if it counts nothing.
dev i64 class_of(i64 label, i64 classes, i32 has_ignore, i64 ignore) {
    return (has_ignore && label == ignore) || label < 0 || label >= classes ? -1 : label;
}

// Cross entropy: also the log-sum-exp of each row.
KERNEL(cross_entropy, const T *x, const L *labels, const T *weights, T *loss, T *lse, W *rows, I lines, I n, I inner, i32 each,
       i32 has_ignore, i64 ignore, Status *status, u32 call) {
    shared Shared<W, 32> scratch;
    for (I l = (I)blockIdx.x; l < lines; l += (I)gridDim.x) {
        I at = l / inner * n * inner + l % inner;
        W most = Limits<W>::lowest();
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            most = larger(most, up(x[at + i * inner]));
        most = block_reduce<Most>(most, scratch);
        W sum = 0;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            sum += m_exp(up(x[at + i * inner]) - most);
        sum = block_reduce<Plus>(sum, scratch);
        if (threadIdx.x == 0) {
            i64 label = labels[l], c = class_of(label, n, has_ignore, ignore);
            if (c < 0 && !(has_ignore && label == ignore))
                fail(status, call, BAD_LABEL, l, label);
            W log = m_log(sum), weight = c < 0 ? (W)0 : weights ? (W)up(weights[c]) : (W)1;
            W row = c < 0 ? (W)0 : weight * (log + (most - up(x[at + (I)c * inner])));
            lse[l] = down<T>(most + log);
            if (each) {
                loss[l] = down<T>(row);
            } else {
                rows[2 * l] = row;
                rows[2 * l + 1] = weight;
            }
        }
    }
}

// Negative log likelihood of scores that are logarithms of probabilities.
KERNEL(likelihood, const T *x, const L *labels, const T *weights, T *loss, W *rows, I lines, I n, I inner, i32 each, i32 has_ignore,
       i64 ignore, Status *status, u32 call) {
    for (I l = thread_index(); l < lines; l += thread_count()) {
        I at = l / inner * n * inner + l % inner;
        i64 label = labels[l], c = class_of(label, n, has_ignore, ignore);
        if (c < 0 && !(has_ignore && label == ignore))
            fail(status, call, BAD_LABEL, l, label);
        W weight = c < 0 ? (W)0 : weights ? (W)up(weights[c]) : (W)1;
        W row = c < 0 ? (W)0 : -(weight * up(x[at + (I)c * inner]));
        if (each) {
            loss[l] = down<T>(row);
        } else {
            rows[2 * l] = row;
            rows[2 * l + 1] = weight;
        }
    }
}

// One block: the sum of all rows, over the sum of their weights for a mean.
KERNEL(total, const W *rows, T *loss, I lines, i32 mean) {
    shared Shared<W, 32> scratch;
    W sum = 0, weight = 0;
    for (I l = (I)threadIdx.x; l < lines; l += (I)blockDim.x) {
        sum += rows[2 * l];
        weight += rows[2 * l + 1];
    }
    sum = block_reduce<Plus>(sum, scratch);
    weight = block_reduce<Plus>(weight, scratch);
    if (threadIdx.x == 0)
        loss[0] = down<T>(mean ? sum / weight : sum);
}

// One block: the sum of the weights of the labels that count.
KERNEL(weights_total, const L *labels, const T *weights, W *total, I lines, I n, i32 has_ignore, i64 ignore) {
    shared Shared<W, 32> scratch;
    W weight = 0;
    for (I l = (I)threadIdx.x; l < lines; l += (I)blockDim.x) {
        i64 c = class_of(labels[l], n, has_ignore, ignore);
        weight += c < 0 ? (W)0 : weights ? (W)up(weights[c]) : (W)1;
    }
    weight = block_reduce<Plus>(weight, scratch);
    if (threadIdx.x == 0)
        total[0] = weight;
}

// What the loss of a row has of the cotangent. Kinds of reduction: 0 each row, 1 mean, 2 sum.
dev W share(const T *dy, const W *total, I l, i32 kind) {
    if (!dy)
        return (W)0;
    return kind == 0 ? (W)up(dy[l]) : kind == 1 ? up(dy[0]) / total[0] : (W)up(dy[0]);
}

// A block a line: probabilities are divided by their own sum, for which a log-sum-exp rounded to one number is no more than a shift.
KERNEL(cross_entropy_gradient, const T *x, const L *labels, const T *lse, const T *dy, const T *weights, const T *d_lse, const W *total,
       T *dx, I lines, I n, I inner, i32 kind, i32 has_ignore, i64 ignore) {
    shared Shared<W, 32> scratch;
    for (I l = (I)blockIdx.x; l < lines; l += (I)gridDim.x) {
        I at = l / inner * n * inner + l % inner;
        i64 c = class_of(labels[l], n, has_ignore, ignore);
        W own = c < 0 ? (W)0 : (weights ? (W)up(weights[c]) : (W)1) * share(dy, total, l, kind);
        W shift = up(lse[l]), sum = 0;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x)
            sum += m_exp(up(x[at + i * inner]) - shift);
        sum = block_reduce<Plus>(sum, scratch);
        W factor = (own + (d_lse ? (W)up(d_lse[l]) : (W)0)) / sum;
        for (I i = (I)threadIdx.x; i < n; i += (I)blockDim.x) {
            I e = at + i * inner;
            W v = m_exp(up(x[e]) - shift) * factor;
            dx[e] = down<T>(c == i ? v - own : v);
        }
    }
}

KERNEL(likelihood_gradient, const L *labels, const T *dy, const T *weights, const W *total, T *dx, I lines, I n, I inner, i32 kind,
       i32 has_ignore, i64 ignore) {
    for (I e = thread_index(); e < lines * n; e += thread_count()) {
        I i = e / inner % n, l = e / inner / n * inner + e % inner;
        i64 c = class_of(labels[l], n, has_ignore, ignore);
        W own = (weights && c >= 0 ? (W)up(weights[c]) : (W)1) * share(dy, total, l, kind);
        dx[e] = down<T>(c == i ? -own : (W)0);
    }
}
