// Running sums: a thread for each line, in the order of the axis.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

KERNEL(cumsum, const T *x, T *y, I lines, I n, I inner, i32 exclusive, i32 reverse) {
    for (I l = thread_index(); l < lines; l += thread_count()) {
        I at = l / inner * n * inner + l % inner;
        W sum = 0;
        for (I i = 0; i < n; i++) {
            I e = at + (reverse ? n - 1 - i : i) * inner;
            W v = up(x[e]), with = add(sum, v);
            y[e] = down<T>(exclusive ? sum : with);
            sum = with;
        }
    }
}
