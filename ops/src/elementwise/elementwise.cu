// Elementwise operators of one to three inputs: a table of functions, and two loops.
//
// F is the function, TA, TB and TC the types in memory of its inputs, TY that of its output. `flat` runs where every operand lies like the
// output or is one element: packs of 16 bytes where addresses allow it (a view may start at any element). `broadcast` runs otherwise.
// The output may be the memory of an input of its size: each element, or pack, is read before it is written by the same thread.
#include "dtrc_device.h"

struct Params {
    f64 v[3];
};

template <class V> dev V sigmoid(V x) { return (V)1 / ((V)1 + m_exp(-x)); }
template <class V> dev V softplus(V x) { return larger(x, (V)0) + m_log1p(m_exp(-m_abs(x))); }
template <class V> dev V sign(V x) { return x > (V)0 ? (V)1 : x < (V)0 ? sub((V)0, (V)1) : x; }

// 1 / a^|b| is not 0 for 1 and -1 only.
template <class V> dev V int_pow(V a, V b) {
    if (b < (V)0)
        return a == (V)1 ? a : add(a, (V)1) == (V)0 ? (b % (V)2 != (V)0 ? a : (V)1) : (V)0;
    V result = 1, square = a;
    while (b > (V)0) {
        if (b % (V)2 != (V)0)
            result = mul(result, square);
        square = mul(square, square);
        b = b / (V)2;
    }
    return result;
}
template <class V, bool FLOAT> struct Arithmetic {
    // An integer divided by 0 is 0, and the least one by -1 is itself.
    dev static V div(V a, V b) { return b == (V)0 ? (V)0 : add(b, (V)1) == (V)0 && (V)-1 < (V)0 ? sub((V)0, a) : (V)(a / b); }
    dev static V fmod(V a, V b) { return b == (V)0 || (add(b, (V)1) == (V)0 && (V)-1 < (V)0) ? (V)0 : (V)(a % b); }
    dev static V modulo(V a, V b) {
        V r = fmod(a, b);
        return r != (V)0 && (r < (V)0) != (b < (V)0) ? add(r, b) : r;
    }
    dev static V pow(V a, V b) { return int_pow(a, b); }
    dev static V abs(V a) { return a < (V)0 ? sub((V)0, a) : a; }
};
template <class V> struct Arithmetic<V, true> {
    dev static V div(V a, V b) { return a / b; }
    dev static V fmod(V a, V b) { return m_fmod(a, b); }
    dev static V modulo(V a, V b) {
        V r = m_fmod(a, b);
        if (r == (V)0)
            return b < (V)0 || (V)1 / b < (V)0 ? -m_abs(r) : m_abs(r);
        return (r < (V)0) != (b < (V)0) ? r + b : r;
    }
    // Common exponents without a power.
    dev static V pow(V a, V b) {
        return b == (V)2 ? a * a : b == (V)3 ? a * a * a : b == (V)0.5 ? m_sqrt(a) : b == (V)-1 ? (V)1 / a : m_pow(a, b);
    }
    dev static V abs(V a) { return m_abs(a); }
};
template <class V> using Of = Arithmetic<V, IsFloat<V>::value>;

#define ONE(name, ...)                                                                                                                     \
    struct name {                                                                                                                          \
        template <class V> dev static V at(V x, const Params &p) {                                                                         \
            V p0 = (V)p.v[0], p1 = (V)p.v[1];                                                                                              \
            (void)p0, (void)p1;                                                                                                            \
            return __VA_ARGS__;                                                                                                            \
        }                                                                                                                                  \
    };
// A gradient: v is the input or the output of the function.
#define TWO(name, ...)                                                                                                                     \
    struct name {                                                                                                                          \
        template <class V> dev static V at(V v, V dy, const Params &p) {                                                                   \
            V p0 = (V)p.v[0], p1 = (V)p.v[1];                                                                                              \
            (void)p0, (void)p1;                                                                                                            \
            return __VA_ARGS__;                                                                                                            \
        }                                                                                                                                  \
    };
#define THREE(name, ...)                                                                                                                   \
    struct name {                                                                                                                          \
        template <class V> dev static V at(V a, V b, V c, const Params &) { return __VA_ARGS__; }                                         \
    };
#define TEST(name, ...)                                                                                                                    \
    struct name {                                                                                                                          \
        template <class V> dev static bool at(V a, V b, const Params &) { return __VA_ARGS__; }                                           \
    };

// arithmetic
TWO(Add, add(v, dy))
TWO(Sub, sub(v, dy))
TWO(Mul, mul(v, dy))
TWO(Div, Of<V>::div(v, dy))
TWO(Mod, p.v[0] != 0 ? Of<V>::fmod(v, dy) : Of<V>::modulo(v, dy))
TWO(Pow, Of<V>::pow(v, dy))
TWO(Max, larger(v, dy))
TWO(Min, smaller(v, dy))
THREE(MaxGrad, a > b ? c : a == b ? c * (V)0.5 : (V)0)
THREE(MinGrad, a < b ? c : a == b ? c * (V)0.5 : (V)0)
THREE(PowGrad, b == (V)0 ? (V)0 : b == (V)2 ? c * (a + a) : b == (V)3 ? c * ((V)3 * (a * a)) : b == (V)0.5 ? c * ((V)0.5 / m_sqrt(a))
               : b == (V)-1 ? -(c / (a * a)) : c * (b * m_pow(a, b - (V)1)))
THREE(PowExponentGrad, a == (V)0 ? (V)0 : c * (b * m_log(a)))
ONE(Neg, sub((V)0, x))
ONE(Abs, Of<V>::abs(x))
ONE(Sign, sign(x))
TWO(AbsGrad, dy * sign(v))
ONE(Floor, m_floor(x))
ONE(Ceil, m_ceil(x))
ONE(Round, m_rint(x))

// activations
ONE(Relu, larger(x, (V)0))
TWO(ReluGrad, v > (V)0 ? dy : (V)0)
ONE(LeakyRelu, x > (V)0 ? x : x * p0)
TWO(LeakyReluGrad, v > (V)0 ? dy : dy * p0)
ONE(ThresholdedRelu, x > p0 ? x : (V)0)
TWO(ThresholdedReluGrad, v > p0 ? dy : (V)0)
ONE(Elu, x > (V)0 ? x : p0 * m_expm1(x))
TWO(EluGrad, v > (V)0 ? dy : dy * (v + p0))
ONE(Selu, p1 * (x > (V)0 ? x : p0 * m_expm1(x)))
TWO(SeluGrad, dy * (v > (V)0 ? p1 : v + p1 * p0))
ONE(Celu, x > (V)0 ? x : p0 * m_expm1(x / p0))
TWO(CeluGrad, v > (V)0 ? dy : dy * (v / p0 + (V)1))
ONE(Sigmoid, sigmoid(x))
TWO(SigmoidGrad, dy * (v * ((V)1 - v)))
ONE(Tanh, m_tanh(x))
TWO(TanhGrad, dy * ((V)1 - v * v))
ONE(Swish, x * sigmoid(p0 * x))
struct SwishGrad {
    template <class V> dev static V at(V x, V dy, const Params &p) {
        // Beyond 1000 the sigmoid is 0 or 1 exactly; infinity times 0 would be no number.
        V at = (V)p.v[0] * x, most = (V)1000;
        at = at > most ? most : at < -most ? -most : at;
        V s = sigmoid(at);
        return dy * (s + at * s * ((V)1 - s));
    }
};
ONE(Mish, x * m_tanh(softplus(x)))
struct MishGrad {
    template <class V> dev static V at(V x, V dy, const Params &) {
        V t = m_tanh(softplus(x));
        return dy * (t + x * sigmoid(x) * ((V)1 - t * t));
    }
};
ONE(Gelu, (V)0.5 * x * ((V)1 + m_erf(x * (V)0.70710678118654752)))
struct GeluGrad {
    template <class V> dev static V at(V x, V dy, const Params &) {
        V below = (V)0.5 * ((V)1 + m_erf(x * (V)0.70710678118654752));
        return dy * (x * (V)0.39894228040143268 * m_exp((V)-0.5 * x * x) + below);
    }
};
ONE(GeluTanh, (V)0.5 * x * ((V)1 + m_tanh((V)0.79788456080286536 * x * ((V)0.044715 * x * x + (V)1))))
struct GeluTanhGrad {
    template <class V> dev static V at(V x, V dy, const Params &) {
        V xx = x * x, t = m_tanh((V)0.79788456080286536 * x * ((V)0.044715 * xx + (V)1));
        V du = (V)0.79788456080286536 * ((V)0.134145 * xx + (V)1);
        return dy * (V)0.5 * ((V)1 + t + x * ((V)1 - t * t) * du);
    }
};
ONE(Softplus, softplus(x))
TWO(SoftplusGrad, -(dy * m_expm1(-v)))
ONE(Softsign, x / ((V)1 + m_abs(x)))
TWO(SoftsignGrad, dy / (((V)1 + m_abs(v)) * ((V)1 + m_abs(v))))
ONE(HardSigmoid, smaller(larger(p0 * x + p1, (V)0), (V)1))
TWO(HardSigmoidGrad, v > (V)0 && v < (V)1 ? dy * p0 : (V)0)
ONE(HardSwish, x * smaller(larger(x * (V)(1.0 / 6.0) + (V)0.5, (V)0), (V)1))
TWO(HardSwishGrad, v >= (V)3 ? dy : v > (V)-3 ? dy * (v * (V)(1.0 / 3.0) + (V)0.5) : (V)0)
ONE(Shrink, x < -p0 ? x + p1 : x > p0 ? x - p1 : (V)0)
TWO(ShrinkGrad, v < -p0 || v > p0 ? dy : (V)0)
ONE(Erf, m_erf(x))
TWO(ErfGrad, dy * ((V)1.1283791670955126 * m_exp(-(v * v))))
TWO(PRelu, v > (V)0 ? v : v * dy)
THREE(PReluGrad, a > (V)0 ? c : c * b)
TWO(PReluSlopeGrad, v > (V)0 ? (V)0 : v * dy)

// trigonometry and powers of e
ONE(Exp, m_exp(x))
TWO(ExpGrad, dy * v)
ONE(Log, m_log(x))
TWO(LogGrad, dy / v)
ONE(Sqrt, m_sqrt(x))
TWO(SqrtGrad, dy / (v + v))
ONE(Reciprocal, (V)1 / x)
TWO(ReciprocalGrad, -(dy * v * v))
ONE(Sin, m_sin(x))
TWO(SinGrad, dy * m_cos(v))
ONE(Cos, m_cos(x))
TWO(CosGrad, -(dy * m_sin(v)))
ONE(Tan, m_tan(x))
TWO(TanGrad, dy * ((V)1 + v * v))
ONE(Asin, m_asin(x))
TWO(AsinGrad, dy / m_sqrt(((V)1 - v) * ((V)1 + v)))
ONE(Acos, m_acos(x))
TWO(AcosGrad, -(dy / m_sqrt(((V)1 - v) * ((V)1 + v))))
ONE(Atan, m_atan(x))
TWO(AtanGrad, dy / (v * v + (V)1))
ONE(Sinh, m_sinh(x))
TWO(SinhGrad, dy * m_cosh(v))
ONE(Cosh, m_cosh(x))
TWO(CoshGrad, dy * m_sinh(v))
ONE(Asinh, m_asinh(x))
TWO(AsinhGrad, dy / m_sqrt(v * v + (V)1))
ONE(Acosh, m_acosh(x))
TWO(AcoshGrad, dy / m_sqrt((v - (V)1) * (v + (V)1)))
ONE(Atanh, m_atanh(x))
TWO(AtanhGrad, dy / (((V)1 - v) * ((V)1 + v)))

// comparisons, logic, bits
TEST(Equal, a == b)
TEST(Less, a < b)
TEST(LessOrEqual, a <= b)
TEST(Greater, a > b)
TEST(GreaterOrEqual, a >= b)
TEST(And, a && b)
TEST(Or, a || b)
TEST(Xor, !a != !b)
struct Not {
    template <class V> dev static bool at(V x, const Params &) { return !x; }
};
struct IsNaN {
    template <class V> dev static bool at(V x, const Params &) { return is_nan(x); }
};
struct IsInf {
    template <class V> dev static bool at(V x, const Params &p) {
        return (x == Limits<V>::lowest() && p.v[0] != 0) || (x == Limits<V>::highest() && p.v[1] != 0);
    }
};
TWO(BitwiseAnd, (V)(v & dy))
TWO(BitwiseOr, (V)(v | dy))
TWO(BitwiseXor, (V)(v ^ dy))
ONE(BitwiseNot, (V)~x)

// A count that is negative or no less than the width shifts every bit out.
struct BitShift {
    template <class V> dev static V at(V a, V b, const Params &p) {
        bool all = b < (V)0 || (u64)b >= sizeof(V) * 8;
        if (p.v[0] != 0)
            return all ? (V)0 : (V)((u64)a << (u64)b);
        return all ? (a < (V)0 ? (V)~(V)0 : (V)0) : (V)(a >> b);
    }
};

// selection
struct Where {
    template <class V> dev static V at(u8 c, V a, V b, const Params &) { return c ? a : b; }
};
// The upper bound wins where bounds are crossed; NaN stays.
struct Clip {
    template <class V> dev static V at(V x, const Params &p) {
        if (p.v[2] == 0 || p.v[2] == 2)
            x = x < (V)p.v[0] ? (V)p.v[0] : x;
        if (p.v[2] == 0 || p.v[2] == 1)
            x = x > (V)p.v[1] ? (V)p.v[1] : x;
        return x;
    }
};
struct ClipGrad {
    template <class V> dev static V at(V x, V dy, const Params &p) {
        V lo = (V)p.v[0], hi = (V)p.v[1];
        bool low = (p.v[2] == 0 || p.v[2] == 2) && !(x > lo) && !(x == lo && lo == Limits<V>::lowest());
        bool high = (p.v[2] == 0 || p.v[2] == 1) && !(x < hi) && !(x == hi && hi == Limits<V>::highest());
        return low || high ? (V)0 : dy;
    }
};

// Floats become integers by truncation, saturating, NaN becoming 0.
template <class U, class V, bool FLOAT> struct ToInt {
    dev static U of(V x) { return (U)x; }
};
template <class U, class V> struct ToInt<U, V, true> {
    dev static U of(V x) {
        if (is_nan(x))
            return (U)0;
        if (x <= (V)Limits<U>::lowest())
            return Limits<U>::lowest();
        if (x >= (V)Limits<U>::highest())
            return Limits<U>::highest();
        return (U)x;
    }
};
template <class U> struct To {
    template <class V> dev static U of(V x) { return ToInt<U, V, IsFloat<V>::value>::of(x); }
};
template <> struct To<f32> {
    template <class V> dev static f32 of(V x) { return (f32)x; }
};
template <> struct To<f64> {
    template <class V> dev static f64 of(V x) { return (f64)x; }
};
template <> struct To<f16> {
    template <class V> dev static f16 of(V x) { return to_f16((f64)x); }
    dev static f16 of(f32 x) { return to_f16(x); }
};
template <> struct To<bf16> {
    template <class V> dev static bf16 of(V x) { return to_bf16((f64)x); }
    dev static bf16 of(f32 x) { return to_bf16(x); }
};
struct Cast {
    template <class V> dev static TY at(V x, const Params &) { return To<TY>::of(x); }
};
struct CastBool {
    template <class V> dev static bool at(V x, const Params &) { return x != (V)0; }
};

template <class R> dev TY put(R r) { return down<TY>(r); }
dev TY put(TY r) { return r; }

const int SIZE = sizeof(TA) > sizeof(TY) ? sizeof(TA) : sizeof(TY);
#if ARITY >= 3
const int N = 16 / (SIZE > (int)sizeof(TB) ? SIZE : (int)sizeof(TB));
#else
const int N = 16 / SIZE;
#endif

#if ARITY == 1
#define ARGUMENTS const TA *a
#define APPLY(i, j, k) put(F::at(up(a[i]), p))
#define ALIGNED aligned(a)
#elif ARITY == 2
#define ARGUMENTS const TA *a, const TB *b
#define APPLY(i, j, k) put(F::at(up(a[i]), up(b[j]), p))
#define ALIGNED (aligned(a) || !sa) && (aligned(b) || !sb)
#else
#define ARGUMENTS const TA *a, const TB *b, const TC *c
#define APPLY(i, j, k) put(F::at(up(a[i]), up(b[j]), up(c[k]), p))
#define ALIGNED (aligned(a) || !sa) && (aligned(b) || !sb) && (aligned(c) || !sc)
#endif

template <class T> dev Pack<T, N> load(const T *p, I i, bool step) {
    Pack<T, N> out;
    if (step)
        return ((const Pack<T, N> *)p)[i];
    T one = *p;
    for (int k = 0; k < N; k++)
        out.v[k] = one;
    return out;
}

// Steps are 1, or 0 for one element that all share.
KERNEL(flat, ARGUMENTS, TY *y, I n, i32 sa, i32 sb, i32 sc, Params p) {
    I done = 0;
    if ((ALIGNED) && aligned(y)) {
        done = n / N * N;
        for (I i = thread_index(); i < n / N; i += thread_count()) {
            Pack<TA, N> pa = load(a, i, sa);
#if ARITY >= 2
            Pack<TB, N> pb = load(b, i, sb);
#endif
#if ARITY >= 3
            Pack<TC, N> pc = load(c, i, sc);
#endif
            Pack<TY, N> out;
            for (int k = 0; k < N; k++) {
#if ARITY == 1
                out.v[k] = put(F::at(up(pa.v[k]), p));
#elif ARITY == 2
                out.v[k] = put(F::at(up(pa.v[k]), up(pb.v[k]), p));
#else
                out.v[k] = put(F::at(up(pa.v[k]), up(pb.v[k]), up(pc.v[k]), p));
#endif
            }
            ((Pack<TY, N> *)y)[i] = out;
        }
    }
    for (I i = done + thread_index(); i < n; i += thread_count())
        y[i] = APPLY(sa ? i : 0, sb ? i : 0, sc ? i : 0);
}

#if ARITY > 1
KERNEL(broadcast, ARGUMENTS, TY *y, I n, i32 rank, Dims extents, Dims sa, Dims sb, Dims sc, Params p) {
    for (I i = thread_index(); i < n; i += thread_count()) {
        I at = i, ia = 0, ib = 0, ic = 0;
        for (int d = rank - 1; d >= 0; d--) {
            I e = d ? at % extents.v[d] : at;
            if (d)
                at /= extents.v[d];
            ia += e * sa.v[d];
            ib += e * sb.v[d];
            ic += e * sc.v[d];
        }
        y[i] = APPLY(ia, ib, ic);
    }
}
#endif
