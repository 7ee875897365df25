// Regions of images, resampled to one size: a thread for each element of the output. The gradient is gathered: pixels of a plane are dealt
// to PARTS threads, each of which walks over all samples of the regions of its image in order and takes its own. MAX: the largest term of
// a part, else the mean.
#include "dtrc_device.h"

typedef Num<T>::Arith W;

struct Plan {
    I images, channels, h, w, regions, rows, columns;
    int samples;
    bool half_pixel;
    f64 scale;
    dev Plan(const Dims &d, i32 count, i32 half, f64 s)
        : images(d.v[0]), channels(d.v[1]), h(d.v[2]), w(d.v[3]), regions(d.v[4]), rows(d.v[5]), columns(d.v[6]), samples(count),
          half_pixel(half != 0), scale(s) {}
};

struct Sample {
    I at[4];
    W weight[4];
};

// The parts of a region, and how many samples each has along both axes.
struct Region {
    f64 left, top, part_w, part_h;
    int down_count, across;
    dev Region(const Plan &p, const T *r) {
        f64 offset = p.half_pixel ? 0.5 : 0.0, scale = p.scale;
        left = (f64)up(r[0]) * scale - offset;
        top = (f64)up(r[1]) * scale - offset;
        f64 width = (f64)up(r[2]) * scale - offset - left, height = (f64)up(r[3]) * scale - offset - top;
        if (!p.half_pixel) {
            width = width > 1 ? width : 1;
            height = height > 1 ? height : 1;
        }
        part_w = width / (f64)p.columns;
        part_h = height / (f64)p.rows;
        down_count = count(p, part_h);
        across = count(p, part_w);
    }
    dev static int count(const Plan &p, f64 part) {
        if (p.samples > 0)
            return p.samples;
        // At most as many as would be reasonable for any image that fits into memory.
        f64 n = m_ceil(part);
        return n >= 4096 ? 4096 : n > 0 ? (int)n : 0;
    }
    dev static void along(f64 v, I n, I &low, I &high, f64 &share) {
        v = v < 0 ? 0 : v > (f64)(n - 1) ? (f64)(n - 1) : v;
        low = (I)v;
        high = low + 1 < n ? low + 1 : n - 1;
        share = v - (f64)low;
    }
    // Sample (i, j) of a part; false outside of the image.
    dev bool sample(const Plan &p, I part, int i, int j, Sample &s) const {
        f64 y = top + (f64)(part / p.columns) * part_h + ((f64)i + 0.5) * part_h / (f64)down_count;
        f64 x = left + (f64)(part % p.columns) * part_w + ((f64)j + 0.5) * part_w / (f64)across;
        if (!(y >= -1 && y <= (f64)p.h && x >= -1 && x <= (f64)p.w))
            return false;
        I y0, y1, x0, x1;
        f64 b, a;
        along(y, p.h, y0, y1, b);
        along(x, p.w, x0, x1, a);
        s.at[0] = y0 * p.w + x0;
        s.at[1] = y0 * p.w + x1;
        s.at[2] = y1 * p.w + x0;
        s.at[3] = y1 * p.w + x1;
        s.weight[0] = (W)((1 - b) * (1 - a));
        s.weight[1] = (W)((1 - b) * a);
        s.weight[2] = (W)(b * (1 - a));
        s.weight[3] = (W)(b * a);
        return true;
    }
};

// The largest weighted pixel of a sample.
dev W largest(const T *x, const Sample &s, I &at, W &weight) {
    at = s.at[0];
    weight = s.weight[0];
    W best = up(x[at]) * weight;
    for (int k = 0; k < 4; k++) {
        W v = up(x[s.at[k]]) * s.weight[k];
        if (v > best) {
            best = v;
            at = s.at[k];
            weight = s.weight[k];
        }
    }
    return best;
}

// The image of region r, or -1.
dev I image_of(const Plan &p, const i64 *numbers, I r, Status *status, u32 call) {
    i64 n = numbers[r];
    if (n >= 0 && n < p.images)
        return (I)n;
    fail(status, call, BAD_IMAGE, r, n);
    return -1;
}

KERNEL(align, const T *x, const T *regions, const i64 *numbers, T *y, Dims sizes, i32 samples, i32 half_pixel, f64 scale, Status *status,
       u32 call) {
    Plan p(sizes, samples, half_pixel, scale);
    I parts = p.rows * p.columns;
    for (I e = thread_index(); e < p.regions * p.channels * parts; e += thread_count()) {
        I part = e % parts, c = e / parts % p.channels, r = e / parts / p.channels, image = image_of(p, numbers, r, status, call);
        W out = MAX ? Limits<W>::lowest() : (W)0;
        Region region(p, regions + 4 * r);
        const T *plane = x + (image * p.channels + c) * p.h * p.w;
        for (int i = 0; image >= 0 && i < region.down_count; i++)
            for (int j = 0; j < region.across; j++) {
                Sample s;
                if (!region.sample(p, part, i, j, s))
                    continue;
#if MAX
                I at;
                W weight, v = largest(plane, s, at, weight);
                out = v > out ? v : out;
#else
                W v = 0;
                for (int k = 0; k < 4; k++)
                    v += s.weight[k] * up(plane[s.at[k]]);
                out += v / (W)(region.down_count * region.across);
#endif
            }
        // A part without a sample.
        y[e] = down<T>(MAX && out == Limits<W>::lowest() ? (W)0 : out);
    }
}

KERNEL(gradient, const T *x, const T *regions, const i64 *numbers, const T *dy, W *sums, T *dx, I parts, Dims sizes, i32 samples,
       i32 half_pixel, f64 scale, Status *status, u32 call) {
    Plan p(sizes, samples, half_pixel, scale);
    I pixels = p.h * p.w, each = (pixels + parts - 1) / parts;
    for (I g = thread_index(); g < p.images * p.channels * parts; g += thread_count()) {
        I plane = g / parts, first = g % parts * each, end = first + each < pixels ? first + each : pixels;
        W *own = sums + plane * pixels;
        for (I e = first; e < end; e++)
            own[e] = 0;
        for (I r = 0; r < p.regions; r++) {
            if (image_of(p, numbers, r, status, call) != plane / p.channels)
                continue;
            Region region(p, regions + 4 * r);
            for (I part = 0; part < p.rows * p.columns; part++) {
                W d = up(dy[(r * p.channels + plane % p.channels) * p.rows * p.columns + part]);
#if MAX
                I best_at = -1;
                W best = 0, best_weight = 0;
#else
                d /= (W)(region.down_count * region.across);
#endif
                for (int i = 0; i < region.down_count; i++)
                    for (int j = 0; j < region.across; j++) {
                        Sample s;
                        if (!region.sample(p, part, i, j, s))
                            continue;
#if MAX
                        I at;
                        W weight, v = largest(x + plane * pixels, s, at, weight);
                        if (best_at < 0 || v > best) {
                            best = v;
                            best_at = at;
                            best_weight = weight;
                        }
#else
                        for (int k = 0; k < 4; k++)
                            if (s.at[k] >= first && s.at[k] < end)
                                own[s.at[k]] += d * s.weight[k];
#endif
                    }
#if MAX
                if (best_at >= first && best_at < end)
                    own[best_at] += d * best_weight;
#endif
            }
        }
        for (I e = first; e < end; e++)
            dx[plane * pixels + e] = down<T>(own[e]);
    }
}
