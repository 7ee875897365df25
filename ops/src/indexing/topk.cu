// The k largest or smallest elements of each line, best first: a thread for each line, whose outputs are a heap with the worst at its
// root. Of equals the first comes first; NaN counts as larger than any number.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

struct Heap {
    T *values;
    i64 *positions;
    I step;
    bool largest;

    dev bool better(W a, W b) const { return largest ? a > b || (is_nan(a) && !is_nan(b)) : a < b || (!is_nan(a) && is_nan(b)); }
    dev bool worse(T a, i64 pa, T b, i64 pb) const {
        W x = up(a), y = up(b);
        return better(y, x) || (!better(x, y) && pa > pb);
    }
    // Puts an element at slot i of `len` slots whose subtrees below i are heaps.
    dev void sift(I i, I len, T v, i64 p) const {
        for (;;) {
            I child = 2 * i + 1;
            if (child >= len)
                break;
            if (child + 1 < len && worse(values[(child + 1) * step], positions[(child + 1) * step], values[child * step],
                                         positions[child * step]))
                child++;
            if (!worse(values[child * step], positions[child * step], v, p))
                break;
            values[i * step] = values[child * step];
            positions[i * step] = positions[child * step];
            i = child;
        }
        values[i * step] = v;
        positions[i * step] = p;
    }
};

KERNEL(top, const T *x, T *values, i64 *positions, I lines, I n, I inner, I k, i32 largest) {
    for (I l = thread_index(); l < lines; l += thread_count()) {
        I at = l / inner * k * inner + l % inner, from = l / inner * n * inner + l % inner;
        Heap heap = {values + at, positions + at, inner, largest != 0};
        for (I j = 0; j < k; j++) {
            heap.values[j * inner] = x[from + j * inner];
            heap.positions[j * inner] = j;
        }
        for (I j = k / 2; j-- > 0;)
            heap.sift(j, k, heap.values[j * inner], heap.positions[j * inner]);
        for (I j = k; j < n; j++) {
            T v = x[from + j * inner];
            if (heap.worse(heap.values[0], heap.positions[0], v, j))
                heap.sift(0, k, v, j);
        }
        // The worst goes to the end, again and again: the best ends up first.
        for (I len = k; len-- > 1;) {
            T root = heap.values[0];
            i64 place = heap.positions[0];
            heap.sift(0, len, heap.values[len * inner], heap.positions[len * inner]);
            heap.values[len * inner] = root;
            heap.positions[len * inner] = place;
        }
    }
}
