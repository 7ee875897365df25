// Elements and slices picked by an index for each, and vectors that are hot at an index: a thread for each element of the output.
//
// KIND: 0 an index along one axis for each element, 1 tuples of indices for slices, 2 one-hot vectors. K is the type of indices, T an
// element by width. An index outside of its axis sets the status.
#include "dtrc_device.h"

#if KIND == 0
// Strides of the input are those of the axes of the indices, 0 along the axis that is picked from.
KERNEL(gather_elements, const T *x, const K *indices, T *y, I count, i32 rank, Dims extents, Dims strides, I axis_stride, I n,
       Status *status, u32 call) {
    for (I e = thread_index(); e < count; e += thread_count()) {
        i64 row = row_of(indices[e], n);
        if (row < 0)
            fail(status, call, BAD_INDEX, e, indices[e]);
        y[e] = row < 0 ? (T)0 : x[offset_of(e, rank, extents, strides) + (I)row * axis_stride];
    }
}
#elif KIND == 1
KERNEL(gather_nd, const T *x, const K *indices, T *y, I count, I tuples, I rows, I len, i32 rank, Dims extents, Status *status,
       u32 call) {
    for (I e = thread_index(); e < count; e += thread_count()) {
        I t = e / len;
        i64 at = 0;
        bool bad = false;
        for (int a = 0; a < rank; a++) {
            i64 row = row_of(indices[t * rank + a], extents.v[a]);
            if (row < 0) {
                fail(status, call, BAD_INDEX, t * rank + a, indices[t * rank + a]);
                bad = true;
            }
            at = at * extents.v[a] + row;
        }
        y[e] = bad ? (T)0 : x[(t / tuples * rows + (I)at) * len + e % len];
    }
}
#else
// An index outside on either side matches nothing.
KERNEL(one_hot, const K *indices, const T *values, T *y, I count, I depth, I inner) {
    for (I e = thread_index(); e < count; e += thread_count()) {
        i64 k = indices[e / (depth * inner) * inner + e % inner];
        y[e] = values[(k < 0 ? k + depth : k) == e / inner % depth];
    }
}
#endif
