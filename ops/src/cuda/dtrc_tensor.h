// Tensor cores: products of fragments that the lanes of a warp hold together, and copies to shared memory that run on their own.
//
// Each function is one instruction of the GPU, and beside it what that instruction does, for the CPU: there the warp's lanes exchange their
// registers and every lane computes its own results, by the tables of lanes and elements of the PTX manual. So a kernel whose indices are
// right on the CPU has them right on the GPU. A copy arrives on the CPU when it is waited for and not before; until then its elements are
// nobody's.
#ifndef DTRC_TENSOR_H
#define DTRC_TENSOR_H
#include "dtrc_device.h"

#ifdef DTRC_HOST
// The architecture whose instructions are acted.
#ifndef DTRC_HOST_ARCH
#define DTRC_HOST_ARCH 80
#endif
#define ARCH DTRC_HOST_ARCH
#else
#define ARCH (__CUDA_ARCH__ / 10)
#endif

// As many neighbours as an access of 16 bytes has.
template <class Elem> struct Chunk {
    static const int LEN = 16 / sizeof(Elem);
    typedef Pack<Elem, 16 / sizeof(Elem)> Type;
};

// Puts 16 bytes to an aligned place of shared memory.
template <class Elem, int N> dev void put_chunk(Shared<Elem, N> &to, int i, const typename Chunk<Elem>::Type &v) {
#ifdef DTRC_HOST
    if (i % Chunk<Elem>::LEN != 0)
        dtrc::refuse("16 bytes at shared element %d, which is not aligned", i);
    for (int j = 0; j < Chunk<Elem>::LEN; j++)
        to[i + j] = v.v[j];
#else
    *(typename Chunk<Elem>::Type *)&to[i] = v;
#endif
}

// ---- copies: a thread's go in groups, which arrive in order ----

#ifdef DTRC_HOST
namespace dtrc {

struct Arriving {
    void (*arrive)(const Arriving &);
    void *to;
    int at, group;
    unsigned char bytes[16];
};

// Copies of each thread of a block that have not arrived.
struct Arrivals {
    Arriving all[64];
    int count, group;
    u64 block;
};
static Arrivals arrivals[THREADS];

inline Arrivals &own_arrivals() {
    Arrivals &a = arrivals[current];
    if (a.block != block_start) {
        a.count = a.group = 0;
        a.block = block_start;
    }
    return a;
}

template <class Elem, int N> void arrive(const Arriving &a) {
    Elem v[Chunk<Elem>::LEN];
    memcpy(v, a.bytes, 16);
    for (int j = 0; j < Chunk<Elem>::LEN; j++)
        ((Shared<Elem, N> *)a.to)->arrive(a.at + j, v[j]);
}

} // namespace dtrc
#endif

// Begins to copy 16 bytes, aligned on both sides; the last elements are zeros where fewer than all are there. Before architecture 80 it is
// done when it returns.
template <class Elem, int N> dev void copy_async(Shared<Elem, N> &to, int i, const Elem *from, int there) {
#if defined(DTRC_HOST) || ARCH < 80
    typename Chunk<Elem>::Type v;
    for (int j = 0; j < Chunk<Elem>::LEN; j++)
        v.v[j] = Elem();
    if (there == Chunk<Elem>::LEN)
        v = *(const typename Chunk<Elem>::Type *)from;
    else
        for (int j = 0; j < there; j++)
            v.v[j] = from[j];
#endif
#if ARCH < 80
    put_chunk(to, i, v);
#elif defined(DTRC_HOST)
    dtrc::Arrivals &a = dtrc::own_arrivals();
    if (i % Chunk<Elem>::LEN != 0 || !aligned(from))
        dtrc::refuse("a copy of 16 bytes to shared element %d is not aligned", i);
    if (a.count == 64)
        dtrc::refuse("more than 64 copies are under way");
    for (int j = 0; j < Chunk<Elem>::LEN; j++)
        to.expect(i + j);
    dtrc::Arriving &one = a.all[a.count++];
    one.arrive = dtrc::arrive<Elem, N>;
    one.to = &to;
    one.at = i;
    one.group = a.group;
    memcpy(one.bytes, &v, 16);
#else
    u32 at;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(&to[i]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there * (int)sizeof(Elem)) : "memory");
#endif
}

// Ends a group of copies, which may be empty.
dev void end_copies() {
#if ARCH < 80
#elif defined(DTRC_HOST)
    dtrc::own_arrivals().group++;
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// The thread's own copies have arrived, those of the last LATE groups excepted. Others see them after a barrier.
template <int LATE> dev void await_copies() {
#if ARCH < 80
#elif defined(DTRC_HOST)
    dtrc::Arrivals &a = dtrc::own_arrivals();
    int kept = 0;
    for (int i = 0; i < a.count; i++)
        if (a.all[i].group < a.group - LATE)
            a.all[i].arrive(a.all[i]);
        else
            a.all[kept++] = a.all[i];
    a.count = kept;
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(LATE) : "memory");
#endif
}

// ---- fragments ----

// Four matrices of 8 x 8 16-bit elements: lane l names the row l % 8 of matrix l / 8. It gets of each matrix elements 2 (l % 4) and the
// next of row l / 4, or of column l / 4 where they are turned.
#ifdef DTRC_HOST
template <bool TURNED, class Elem, int N> static inline void dtrc_load_matrices(Shared<Elem, N> &from, int row, u32 (&out)[4], int line) {
    static_assert(sizeof(Elem) == 2, "matrices of 16-bit elements");
    if (row % 8 != 0)
        dtrc::refuse("a row of a matrix at shared element %d, which is not aligned", row);
    u64 rows[32];
    dtrc_gather((u64)row, rows, line);
    int l = dtrc::current % 32;
    for (int m = 0; m < 4; m++) {
        u32 both = 0;
        for (int e = 0; e < 2; e++) {
            int r = TURNED ? l % 4 * 2 + e : l / 4, c = TURNED ? l / 4 : l % 4 * 2 + e;
            Elem v = from[(int)rows[m * 8 + r] + c];
            both |= (u32)v.bits << 16 * e;
        }
        out[m] = both;
    }
}
#define load_matrices(TURNED, from, row, out) dtrc_load_matrices<TURNED>(from, row, out, __LINE__)
#else
template <bool TURNED, class Elem, int N> dev void device_load_matrices(Shared<Elem, N> &from, int row, u32 (&out)[4]) {
    u32 at;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(at) : "l"(&from[row]));
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
}
#define load_matrices(TURNED, from, row, out) device_load_matrices<TURNED>(from, row, out)
#endif

// A float32 rounded to TF32's 10 bits of mantissa, ties away from zero.
dev u32 to_tf32(f32 x) {
#if defined(DTRC_HOST) || ARCH < 80
    u32 b = bits_of(x);
    return (b & 0x7f800000u) == 0x7f800000u ? (b & 0x7fffffu ? 0x7fffffffu : b) : (b + 0x1000u) & ~0x1fffu;
#else
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
#endif
}

// c += a b for 16 x DEPTH and DEPTH x 8 elements of type Elem, in float32. DEPTH is 16 for 16-bit elements and 8 for TF32 (Elem f32). With
// g = lane / 4 and t = lane % 4, c has rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1. Of 16-bit elements a word holds two that
// are neighbours along the depth: a rows g, g + 8, g, g + 8 at 2t, 2t, 2t + 8, 2t + 8, b column g at 2t, 2t + 8. Of TF32 a has rows g, g +
// 8, g, g + 8 at t, t, t + 4, t + 4, b column g at t, t + 4.
#ifdef DTRC_HOST
template <class Elem> struct Halves {
    static const int DEPTH = 16;
    // Which word of which lane holds element k of a row's (or column's) eight lines g, and the element in it.
    static int word(int k) { return k / 8; }
    static int lane(int k) { return k % 8 / 2; }
    static f32 value(u32 word, int k) {
        Elem v;
        v.bits = (u16)(word >> 16 * (k % 2));
        return up(v);
    }
};
template <class Elem> struct Fragment : Halves<Elem> {};
template <> struct Fragment<f32> {
    static const int DEPTH = 8;
    static int word(int k) { return k / 4; }
    static int lane(int k) { return k % 4; }
    static f32 value(u32 word, int) {
        if (word & 0x1fff && (word & 0x7fffffffu) != 0x7fffffffu)
            dtrc::refuse("an operand of a product in TF32 is not rounded");
        return of_bits(word);
    }
};
template <class Elem> static inline void dtrc_multiply_add(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], int line) {
    u64 a_low[32], a_high[32], bs[32];
    dtrc_gather(a[0] | (u64)a[1] << 32, a_low, line);
    dtrc_gather(a[2] | (u64)a[3] << 32, a_high, line);
    dtrc_gather(b[0] | (u64)b[1] << 32, bs, line);
    typedef Fragment<Elem> F;
    int g = dtrc::current % 32 / 4, t = dtrc::current % 4;
    for (int i = 0; i < 4; i++) {
        int lower = i / 2, column = 2 * t + i % 2;
        for (int k = 0; k < F::DEPTH; k++) {
            u64 of_a = (F::word(k) ? a_high : a_low)[g * 4 + F::lane(k)], of_b = bs[column * 4 + F::lane(k)];
            c[i] += F::value((u32)(of_a >> 32 * lower), k) * F::value((u32)(of_b >> 32 * F::word(k)), k);
        }
    }
}
#define multiply_add(Elem, c, a, b) dtrc_multiply_add<Elem>(c, a, b, __LINE__)
#else
#define SUMS "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define WHOLE "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])
template <class Elem> struct Fragment;
template <> struct Fragment<f16> {
    dev static void multiply_add_(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if ARCH >= 80
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " WHOLE : SUMS : OPERANDS);
#else
        // Half of the depth at a time: its words are those of the whole.
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : SUMS
                     : "r"(a[0]), "r"(a[1]), "r"(b[0]));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : SUMS
                     : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
    }
};
#if ARCH >= 80
template <> struct Fragment<bf16> {
    dev static void multiply_add_(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " WHOLE : SUMS : OPERANDS);
    }
};
template <> struct Fragment<f32> {
    dev static void multiply_add_(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " WHOLE : SUMS : OPERANDS);
    }
};
#endif
#undef SUMS
#undef WHOLE
#undef OPERANDS
#define multiply_add(Elem, c, a, b) Fragment<Elem>::multiply_add_(c, a, b)
#endif

#endif
