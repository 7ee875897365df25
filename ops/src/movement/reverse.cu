// The first steps of each sequence in reverse order, the others as they are: a thread for each element T (by width).
#include "dtrc_device.h"

KERNEL(reverse, const T *x, const i64 *lengths, T *y, I count, I first, I second, I len, i32 time_first, Status *status, u32 call) {
    I steps = time_first ? first : second;
    for (I e = thread_index(); e < count; e += thread_count()) {
        I row = e / len, i = row / second, j = row % second, t = time_first ? i : j, b = time_first ? j : i;
        i64 n = lengths[b];
        if (n < 0 || n > steps)
            fail(status, call, BAD_LENGTH, b, n);
        I from = t < n && n <= steps ? (I)n - 1 - t : t;
        y[e] = x[(time_first ? from * second + b : b * second + from) * len + e % len];
    }
}
