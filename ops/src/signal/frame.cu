// Overlapping frames of a signal [batch, total, parts], and their gradient, which sums over the frames that hold an element, first frame
// first: a thread for each element. GRADIENT: T is an element, else its width.
#include "dtrc_device.h"

#ifndef GRADIENT
KERNEL(frame, const T *x, T *y, I n, I frames, I length, I parts, I step, I total) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        I within = e % (length * parts), row = e / (length * parts);
        y[e] = x[(row / frames * total + row % frames * step) * parts + within];
    }
}
#else
KERNEL(add_frames, const T *dy, T *dx, I n, I frames, I length, I parts, I step, I total) {
    for (I e = thread_index(); e < n; e += thread_count()) {
        I p = e % parts, t = e / parts % total, b = e / parts / total;
        I first = t + 1 > length ? (t + 1 - length + step - 1) / step : 0, last = t / step + 1 < frames ? t / step + 1 : frames;
        Num<T>::Arith sum = 0;
        for (I f = first; f < last; f++)
            sum += up(dy[((b * frames + f) * length + t - f * step) * parts + p]);
        dx[e] = down<T>(sum);
    }
}
#endif
