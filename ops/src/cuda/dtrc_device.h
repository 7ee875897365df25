// What every kernel includes: element types, indices, packs of 16 bytes, reductions, the counter-based generator, the tile of a product.
//
// NVRTC has neither CUDA's headers nor the standard library's, so everything is here. With DTRC_HOST defined the same kernels are C++ for
// the CPU: dtrc_host.h then defines threads, barriers, shared memory and shuffles, and watches them.
#ifndef DTRC_DEVICE_H
#define DTRC_DEVICE_H

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#ifdef DTRC_HOST
#include "dtrc_host.h"
#else
#define dev __device__ __forceinline__
// A kernel: blocks of at most 256 threads along x, of which a processor is to hold so many at least, so that registers need not be spared
// for more.
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(256, BLOCKS) name(__VA_ARGS__)
// Shared memory, aligned for accesses of 16 bytes; on the CPU every access is watched.
template <class Elem, int N> struct alignas(16) Shared {
    Elem data[N];
    dev Elem &operator[](int i) { return data[i]; }
};
#define shared __shared__
dev void barrier() { __syncthreads(); }
template <class Elem> dev Elem shuffle_xor(Elem v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
dev u32 ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
dev int lowest_bit(u32 x) { return __ffs((int)x) - 1; }
#endif

// Extents and offsets: 64 bits wide only where a tensor needs it.
#ifndef INDEX
#define INDEX int
#endif
typedef INDEX I;

const int RANK = 8;
struct Dims {
    I v[RANK];
};

dev I thread_index() { return (I)blockIdx.x * (I)blockDim.x + (I)threadIdx.x; }
dev I thread_count() { return (I)gridDim.x * (I)blockDim.x; }

// ---- 16-bit floats: stored as bits, computed with as f32 ----

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

dev u32 bits_of(f32 x) {
    union {
        f32 f;
        u32 u;
    } v;
    v.f = x;
    return v.u;
}
dev f32 of_bits(u32 x) {
    union {
        u32 u;
        f32 f;
    } v;
    v.u = x;
    return v.f;
}
dev u64 bits_of(f64 x) {
    union {
        f64 f;
        u64 u;
    } v;
    v.f = x;
    return v.u;
}

// Rounds to the nearest float of EXP exponent and MAN mantissa bits, ties to even, in integers only.
template <int EXP, int MAN> dev u16 round_bits(f64 x) {
    u64 b = bits_of(x);
    u16 sign = (u16)(b >> 63 << 15);
    int e = (int)(b >> 52 & 0x7ff);
    u64 m = b & 0xfffffffffffffull;
    const int top = (1 << EXP) - 1;
    if (e == 0x7ff)
        return sign | (u16)(top << MAN) | (u16)(m ? 1 << (MAN - 1) : 0);
    int exponent = e - 1023 + (top >> 1);
    if (exponent >= top)
        return sign | (u16)(top << MAN);
    int drop = 52 - MAN;
    if (e)
        m |= 1ull << 52;
    if (exponent <= 0) {
        drop += 1 - exponent;
        exponent = 0;
        if (drop > 60)
            return sign;
    } else {
        m &= ~(1ull << 52);
    }
    u64 kept = m >> drop, rest = m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return sign | (u16)(((u64)exponent << MAN) + kept);
}

dev f32 up(bf16 x) { return of_bits((u32)x.bits << 16); }
dev f32 up(f16 x) {
#ifdef DTRC_HOST
    u32 sign = (u32)(x.bits & 0x8000) << 16, e = x.bits >> 10 & 31, m = x.bits & 0x3ff;
    if (e == 31)
        return of_bits(sign | 0x7f800000u | m << 13);
    if (e == 0)
        return of_bits(sign | bits_of((f32)m * 5.9604644775390625e-8f));
    return of_bits(sign | (e + 112) << 23 | m << 13);
#else
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}
dev f16 to_f16(f64 x) {
    f16 y;
#ifdef DTRC_HOST
    y.bits = round_bits<5, 10>(x);
#else
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
#endif
    return y;
}
dev f16 to_f16(f32 x) {
    f16 y;
#ifdef DTRC_HOST
    y.bits = round_bits<5, 10>(x);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}
dev bf16 to_bf16(f64 x) {
    bf16 y;
    y.bits = round_bits<8, 7>(x);
    return y;
}
dev bf16 to_bf16(f32 x) {
    bf16 y;
#if !defined(DTRC_HOST) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    u32 b = bits_of(x);
    if ((b & 0x7fffffffu) > 0x7f800000u)
        y.bits = (u16)(b >> 16 | 0x40);
    else
        y.bits = (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
#endif
    return y;
}

// The type that arithmetic on an element is done in.
template <class Elem> struct Num {
    typedef Elem Arith;
};
template <> struct Num<f16> {
    typedef f32 Arith;
};
template <> struct Num<bf16> {
    typedef f32 Arith;
};
template <class Elem> dev Elem up(Elem x) { return x; }
template <class Elem> struct Down {
    template <class Arith> dev static Elem of(Arith x) { return (Elem)x; }
};
template <> struct Down<f16> {
    template <class Arith> dev static f16 of(Arith x) { return to_f16((f32)x); }
    dev static f16 of(f64 x) { return to_f16(x); }
};
template <> struct Down<bf16> {
    template <class Arith> dev static bf16 of(Arith x) { return to_bf16((f32)x); }
    dev static bf16 of(f64 x) { return to_bf16(x); }
};
template <class Elem, class Arith> dev Elem down(Arith x) { return Down<Elem>::of(x); }

// ---- numbers ----

template <class Elem> struct Limits {
    dev static Elem lowest() { return (Elem)((Elem)-1 > (Elem)0 ? 0 : (Elem)1 << (sizeof(Elem) * 8 - 1)); }
    dev static Elem highest() { return (Elem)~lowest(); }
};
template <> struct Limits<f32> {
    dev static f32 lowest() { return of_bits(0xff800000u); }
    dev static f32 highest() { return of_bits(0x7f800000u); }
};
template <> struct Limits<f64> {
    dev static f64 lowest() { return -(f64)of_bits(0x7f800000u); }
    dev static f64 highest() { return (f64)of_bits(0x7f800000u); }
};

template <class Elem> struct IsFloat {
    static const bool value = false;
};
template <> struct IsFloat<f32> {
    static const bool value = true;
};
template <> struct IsFloat<f64> {
    static const bool value = true;
};

template <class Arith> dev bool is_nan(Arith x) { return x != x; }
template <class Arith> dev bool is_finite(Arith x) { return x - x == (Arith)0; }
// NaN wins over every number.
template <class Arith> dev Arith larger(Arith a, Arith b) { return a > b || is_nan(a) ? a : b; }
template <class Arith> dev Arith smaller(Arith a, Arith b) { return a < b || is_nan(a) ? a : b; }

// Integers wrap.
template <class Arith> dev Arith add(Arith a, Arith b) { return (Arith)((u64)a + (u64)b); }
template <class Arith> dev Arith sub(Arith a, Arith b) { return (Arith)((u64)a - (u64)b); }
template <class Arith> dev Arith mul(Arith a, Arith b) { return (Arith)((u64)a * (u64)b); }
dev f32 add(f32 a, f32 b) { return a + b; }
dev f32 sub(f32 a, f32 b) { return a - b; }
dev f32 mul(f32 a, f32 b) { return a * b; }
dev f64 add(f64 a, f64 b) { return a + b; }
dev f64 sub(f64 a, f64 b) { return a - b; }
dev f64 mul(f64 a, f64 b) { return a * b; }

#define FUNCTION(name, single, twice)                                                                                                      \
    dev f32 name(f32 x) { return single(x); }                                                                                              \
    dev f64 name(f64 x) { return twice(x); }
FUNCTION(m_exp, expf, exp)
FUNCTION(m_expm1, expm1f, expm1)
FUNCTION(m_log, logf, log)
FUNCTION(m_log1p, log1pf, log1p)
FUNCTION(m_sqrt, sqrtf, sqrt)
FUNCTION(m_tanh, tanhf, tanh)
FUNCTION(m_erf, erff, erf)
FUNCTION(m_sin, sinf, sin)
FUNCTION(m_cos, cosf, cos)
FUNCTION(m_tan, tanf, tan)
FUNCTION(m_asin, asinf, asin)
FUNCTION(m_acos, acosf, acos)
FUNCTION(m_atan, atanf, atan)
FUNCTION(m_sinh, sinhf, sinh)
FUNCTION(m_cosh, coshf, cosh)
FUNCTION(m_asinh, asinhf, asinh)
FUNCTION(m_acosh, acoshf, acosh)
FUNCTION(m_atanh, atanhf, atanh)
FUNCTION(m_floor, floorf, floor)
FUNCTION(m_ceil, ceilf, ceil)
FUNCTION(m_rint, rintf, rint)
FUNCTION(m_abs, fabsf, fabs)
dev f32 m_pow(f32 a, f32 b) { return powf(a, b); }
dev f64 m_pow(f64 a, f64 b) { return pow(a, b); }
dev f32 m_fmod(f32 a, f32 b) { return fmodf(a, b); }
dev f64 m_fmod(f64 a, f64 b) { return fmod(a, b); }

// ---- memory ----

// As many neighbours as fill an access of 16 bytes.
template <class Elem, int N> struct alignas(sizeof(Elem) * N) Pack {
    Elem v[N];
};
template <class Elem> dev bool aligned(const Elem *p) { return ((u64)p & 15) == 0; }

// ---- what a kernel says of bad data ----

// The first failure of a step. Commits read it: a step that failed changes nothing.
struct Status {
    u32 code;
    u32 call;
    i64 row;
    i64 value;
};
const u32 BAD_LABEL = 1, BAD_INDEX = 2, BAD_LENGTH = 3, BAD_WEIGHTS = 4, BAD_IMAGE = 5;
dev void fail(Status *s, u32 call, u32 code, i64 row, i64 value) {
    if (atomicCAS(&s->code, 0u, code) == 0u) {
        s->call = call;
        s->row = row;
        s->value = value;
    }
}

// ---- reductions: a fixed tree, so that bits depend on sizes alone ----

struct Plus {
    template <class Arith> dev static Arith join(Arith a, Arith b) { return add(a, b); }
};
struct Most {
    template <class Arith> dev static Arith join(Arith a, Arith b) { return larger(a, b); }
};

// The sum (or another join) over a block of whole warps, in every thread. `scratch` holds 32 elements.
template <class Join, class Arith> dev Arith block_reduce(Arith v, Shared<Arith, 32> &scratch) {
    for (int m = 16; m > 0; m >>= 1)
        v = Join::join(v, shuffle_xor(v, m));
    int warps = (int)blockDim.x / 32;
    if (warps == 1)
        return v;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    barrier();
    if (lane == 0)
        scratch[warp] = v;
    barrier();
    Arith sum = scratch[0];
    for (int i = 1; i < warps; i++)
        sum = Join::join(sum, (Arith)scratch[i]);
    return sum;
}

// The sum over a warp, in every lane.
template <class Arith> dev Arith warp_sum(Arith v) {
    for (int m = 16; m > 0; m >>= 1)
        v = add(v, shuffle_xor(v, m));
    return v;
}

// ---- scores: products of 16 rows with 64 others by 256 threads, each of which has one row and every sixteenth other ----

// Rows of a matrix: element (r, k) lies r * row + k * column elements on.
template <class Elem> struct Rows {
    const Elem *at;
    I count, row, column;
    dev Elem of(I r, I k) const { return at[r * row + k * column]; }
};

// All threads have met when it returns, so that callers may write what they shared before.
//
// sum[i] = a's row a0 + thread / 16 times b's row b0 + thread % 16 + 16 i; 0 where there is no such row.
template <class Elem, class Arith> dev void dots(const Rows<Elem> &a, I a0, const Rows<Elem> &b, I b0, I depth, Arith (&sum)[4]) {
    shared Shared<Arith, 16 * 17> sa;
    shared Shared<Arith, 64 * 17> sb;
    int r = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16;
    for (int i = 0; i < 4; i++)
        sum[i] = (Arith)0;
    for (I k = 0; k == 0 || k < depth; k += 16) {
        // Neighbouring threads read neighbouring elements, whichever way the rows lie.
        int ra = a.row == 1 ? c : r, ka = a.row == 1 ? r : c, rb = b.row == 1 ? c : r, kb = b.row == 1 ? r : c;
        barrier();
        sa[ra * 17 + ka] = a0 + ra < a.count && k + ka < depth ? (Arith)up(a.of(a0 + ra, k + ka)) : (Arith)0;
        for (int i = 0; i < 4; i++) {
            int n = rb + 16 * i;
            sb[n * 17 + kb] = b0 + n < b.count && k + kb < depth ? (Arith)up(b.of(b0 + n, k + kb)) : (Arith)0;
        }
        barrier();
#pragma unroll
        for (int d = 0; d < 16; d++) {
            Arith x = sa[r * 17 + d];
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i] += x * (Arith)sb[(c + 16 * i) * 17 + d];
        }
    }
}

// ---- indices ----

// The index from the front, or -1.
dev i64 row_of(i64 k, i64 n) { return k < -n || k >= n ? -1 : k < 0 ? k + n : k; }

// Where element `i` (row-major over `extents`) lies by `strides`.
dev I offset_of(I i, int rank, const Dims &extents, const Dims &strides) {
    I at = 0;
    for (int a = rank - 1; a > 0; a--) {
        I n = extents.v[a];
        at += i % n * strides.v[a];
        i /= n;
    }
    return at + i * strides.v[0];
}

// ---- Philox4x32-10 (Salmon et al., SC11) ----

struct Four {
    u32 v[4];
};
dev Four philox(u32 k0, u32 k1, u32 c0, u32 c1, u32 c2, u32 c3) {
    for (int i = 0; i < 10; i++) {
        u64 p = (u64)c0 * 0xD2511F53u, q = (u64)c2 * 0xCD9E8D57u;
        u32 n0 = (u32)(q >> 32) ^ c1 ^ k0, n2 = (u32)(p >> 32) ^ c3 ^ k1;
        c1 = (u32)q;
        c3 = (u32)p;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Four out = {{c0, c1, c2, c3}};
    return out;
}


// The random words of a node in a step: counter g's four go to elements 32 apart, so that a warp reads and writes neighbours.
dev Four random_words(I g, const i64 *seed, const i64 *step, u32 id) {
    u64 s = (u64)seed[0], t = (u64)step[0], counter = (u64)g;
    u32 high = (u32)(t >> 32);
    high = high << 16 | high >> 16;
    return philox((u32)s, (u32)(s >> 32), (u32)counter, (u32)(counter >> 32) ^ high, id, (u32)t);
}
// The element of word k of counter g, and the counters of n elements.
dev I random_element(I g, int k) { return g / 32 * 128 + g % 32 + k * 32; }
dev I random_counters(I n) { return (n + 127) / 128 * 32; }
// The word of one element.
dev u32 random_word(I e, const i64 *seed, const i64 *step, u32 id) {
    Four w = random_words(e / 128 * 32 + e % 32, seed, step, id);
    int k = (int)(e % 128 / 32);
    return k == 0 ? w.v[0] : k == 1 ? w.v[1] : k == 2 ? w.v[2] : w.v[3];
}

#endif
