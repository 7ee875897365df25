// Where the largest (or smallest) element along an axis lies: a thread for each line. NaN wins.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

KERNEL(arg, const T *x, i64 *y, I lines, I n, I inner, i32 largest, i32 last) {
    for (I l = thread_index(); l < lines; l += thread_count()) {
        I at = l / inner * n * inner + l % inner;
        W best = up(x[at]);
        i64 place = 0;
        for (I i = 1; i < n; i++) {
            W v = up(x[at + i * inner]);
            bool better = largest ? v > best : v < best;
            bool wins = is_nan(best) ? is_nan(v) && last : is_nan(v) || better || (v == best && last);
            if (wins) {
                best = v;
                place = i;
            }
        }
        y[l] = place;
    }
}
