// start + i * delta; numbers come as 64 bits of their own kind.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

KERNEL(range, T *y, I n, f64 start, f64 delta, i64 int_start, i64 int_delta) {
    bool real = IsFloat<W>::value;
    W a = real ? (W)start : (W)int_start, d = real ? (W)delta : (W)int_delta;
    for (I i = thread_index(); i < n; i += thread_count())
        y[i] = down<T>(add(a, mul((W)i, d)));
}
