// Elements put at indices. Results do not depend on the order in which threads run, and floats are never added by atomics.
//
// Where elements are replaced, `claim` finds the last update of each place by an integer maximum, and `place` writes that one alone.
// Where they are combined, the places of a line are dealt to PARTS threads, each of which walks over all updates of the line in order
// and applies its own.
//
// KIND says how updates are addressed: 0 an index along one axis for each element, 1 tuples of indices for slices, 2 flat places. K is the
// type of indices, T an element: by width where COMBINE is 0; 1 add, 2 multiply, 3 the larger, 4 the smaller.
#include "dtrc_device.h"

struct Target {
    // KIND 0: extents of the indices without the axis, their strides there and in the output; steps along the axis, its extent.
    // KIND 1: extents that a tuple addresses.
    int rank;
    Dims extents, from, to;
    I from_step, to_step, rows, len, updates;

    // Update k of line l: where it is read, and where it goes; false if its index is outside.
    dev bool find(const K *indices, I l, I k, I &read, I &write, Status *status, u32 call) const {
#if KIND == 0
        read = offset_of(l, rank, extents, from) + k * from_step;
        i64 row = row_of(indices[read], rows);
        write = offset_of(l, rank, extents, to) + (I)row * to_step;
#elif KIND == 1
        I t = l / len * updates + k;
        i64 row = 0;
        for (int a = 0; a < rank; a++) {
            i64 r = row_of(indices[t * rank + a], extents.v[a]);
            if (r < 0) {
                fail(status, call, BAD_INDEX, t * rank + a, indices[t * rank + a]);
                return false;
            }
            row = row * extents.v[a] + r;
        }
        read = t * len + l % len;
        write = (l / len * rows + (I)row) * len + l % len;
#else
        read = k;
        i64 row = indices[k] < 0 || indices[k] >= rows ? -1 : (i64)indices[k];
        write = (I)row;
#endif
        if (row < 0)
            fail(status, call, BAD_INDEX, read, indices[read]);
        return row >= 0;
    }
    // Which of a line's places `write` is.
    dev I place(I write) const {
#if KIND == 0
        return write / to_step % rows;
#elif KIND == 1
        return write / len % rows;
#else
        return write;
#endif
    }
};

#define TARGET                                                                                                                             \
    i32 rank, Dims extents, Dims from, Dims to, I from_step, I to_step, I rows, I len, I updates, I lines, Status *status, u32 call
#define MAKE {rank, extents, from, to, from_step, to_step, rows, len, updates}

#if COMBINE == 0
KERNEL(claim, const K *indices, I *owners, TARGET) {
    Target t = MAKE;
    for (I e = thread_index(); e < lines * updates; e += thread_count()) {
        I read, write, k = e / lines;
        if (t.find(indices, e % lines, k, read, write, status, call))
            atomicMax(&owners[write], k);
    }
}

KERNEL(place, const K *indices, const T *values, const I *owners, T *y, TARGET) {
    Target t = MAKE;
    for (I e = thread_index(); e < lines * updates; e += thread_count()) {
        I read, write, k = e / lines;
        if (t.find(indices, e % lines, k, read, write, status, call) && owners[write] == k)
            y[write] = values[read];
    }
}
#else
typedef Num<T>::Arith W;

dev W combine(W a, W b) {
#if COMBINE == 1
    return add(a, b);
#elif COMBINE == 2
    return mul(a, b);
#elif COMBINE == 3
    return larger(a, b);
#else
    return smaller(a, b);
#endif
}

// y has the type that arithmetic is done in.
KERNEL(combine_all, const K *indices, const T *values, W *y, I parts, TARGET) {
    Target t = MAKE;
    I each = (rows + parts - 1) / parts;
    for (I g = thread_index(); g < lines * parts; g += thread_count()) {
        I l = g % lines, first = g / lines * each;
        for (I k = 0; k < updates; k++) {
            I read, write;
            if (!t.find(indices, l, k, read, write, status, call))
                continue;
            I p = t.place(write);
            if (p >= first && p < first + each)
                y[write] = combine(y[write], up(values[read]));
        }
    }
}
#endif
