// Kernels on the CPU: the threads of a block are fibers of one thread, switched at barriers and shuffles.
//
// One block runs after the other, each thread of it up to its next barrier in turn. So a run is the same every time, and what a GPU would
// only sometimes show is always found: a barrier that some threads do not reach, or reach at another place; a shuffle without the whole
// warp; an element of shared memory that two threads use between two barriers, one of them writing; one that is read before it is
// written, or lies outside of its array; and where a warp holds fragments together, every lane's place in them (dtrc_tensor.h). Not
// covered: the order of blocks, races in global memory, how long anything takes, how tensor cores round their sums.
#ifndef DTRC_HOST_H
#define DTRC_HOST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define dev inline
#define shared static

namespace dtrc {

struct Dim3 {
    u32 x, y, z;
};

// What the driver hands over; the layout is known to the caller in Rust.
struct Launch {
    u32 grid[3];
    u32 block;
    void **args;
    char *message;
    u64 message_len;
};

const int THREADS = 1024;
const size_t STACK = 64 << 10;

enum State { FRESH, READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    State state;
    int line;
    int shuffles;
};

static Fiber fibers[THREADS];
static char *stacks;
static u64 lanes[2][THREADS];
static jmp_buf scheduler, failed;
static int current, block_size;
// Counts barriers over all blocks, so that what a block left in shared memory is old for the next one.
static u64 epoch, block_start;
static char *message;
static u64 message_len;
static void (*body)();
static void **arguments;
static const void *function;

} // namespace dtrc

static dtrc::Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace dtrc {

static void refuse(const char *format, ...) {
    int n = snprintf(message, message_len, "block %u, thread %d: ", blockIdx.x, current);
    va_list list;
    va_start(list, format);
    if (n > 0 && (u64)n < message_len)
        vsnprintf(message + n, message_len - n, format, list);
    va_end(list);
    _longjmp(failed, 1);
}

static void wait(State state, int line) {
    Fiber &f = fibers[current];
    f.state = state;
    f.line = line;
    if (!_setjmp(f.at))
        _longjmp(scheduler, 1);
}

static void fiber() {
    for (;;) {
        body();
        wait(DONE, 0);
    }
}

static void resume(int t) {
    Fiber &f = fibers[t];
    current = t;
    threadIdx.x = (u32)t;
    State before = f.state;
    f.state = READY;
    if (_setjmp(scheduler))
        return;
    if (before == FRESH) {
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = stacks + (size_t)t * STACK;
        f.start.uc_stack.ss_size = STACK;
        f.start.uc_link = nullptr;
        makecontext(&f.start, fiber, 0);
        setcontext(&f.start);
    }
    _longjmp(f.at, 1);
}

// Lets a warp that stands at one shuffle go on; whether any did.
static bool release_warps() {
    bool any = false;
    for (int first = 0; first < block_size; first += 32) {
        int at = 0;
        for (int t = first; t < first + 32; t++)
            at += fibers[t].state == AT_WARP;
        if (at == 0)
            continue;
        for (int t = first; t < first + 32; t++) {
            current = t;
            if (fibers[t].state != AT_WARP)
                refuse("shuffle divergence: %d threads of the warp wait at line %d, this one %s", at, fibers[first].line,
                       fibers[t].state == DONE ? "has returned" : "waits at a barrier");
            if (fibers[t].line != fibers[first].line)
                refuse("shuffle divergence: lines %d and %d", fibers[first].line, fibers[t].line);
            fibers[t].state = READY;
        }
        any = true;
    }
    return any;
}

static void run_block() {
    block_start = ++epoch;
    bool first = true;
    for (;;) {
        for (int t = 0; t < block_size; t++) {
            if (first && fibers[t].state != FRESH)
                fibers[t].state = READY;
            if (first)
                fibers[t].shuffles = 0;
            if (fibers[t].state == READY || fibers[t].state == FRESH)
                resume(t);
        }
        first = false;
        if (release_warps())
            continue;
        int done = 0;
        for (int t = 0; t < block_size; t++)
            done += fibers[t].state == DONE;
        if (done == block_size)
            return;
        int line = 0;
        for (int t = 0; t < block_size; t++)
            if (fibers[t].state == AT_BARRIER)
                line = fibers[t].line;
        for (int t = 0; t < block_size; t++) {
            current = t;
            if (fibers[t].state == DONE)
                refuse("barrier divergence: it has returned, others wait at line %d", line);
            if (fibers[t].line != line)
                refuse("barrier divergence: lines %d and %d", fibers[t].line, line);
            fibers[t].state = READY;
        }
        epoch++;
    }
}

template <int... N> struct Indices {};
template <int N, int... R> struct Count : Count<N - 1, N - 1, R...> {};
template <int... R> struct Count<0, R...> {
    typedef Indices<R...> type;
};
template <class... Args, int... N> static void call(void (*f)(Args...), Indices<N...>) { f(*(Args *)arguments[N]...); }
template <class... Args> static void trampoline() { call((void (*)(Args...))function, typename Count<sizeof...(Args)>::type()); }

template <class... Args> static int launch(void (*f)(Args...), Launch *l) {
    if (l->block == 0 || l->block % 32 != 0 || l->block > THREADS || l->grid[1] != 1 || l->grid[2] != 1) {
        snprintf(l->message, l->message_len, "a grid of %u x %u x %u blocks of %u threads", l->grid[0], l->grid[1], l->grid[2], l->block);
        return 1;
    }
    if (!stacks)
        stacks = (char *)malloc(THREADS * STACK);
    if (!stacks) {
        snprintf(l->message, l->message_len, "no memory for the threads' stacks");
        return 1;
    }
    message = l->message;
    message_len = l->message_len;
    arguments = l->args;
    function = (const void *)f;
    body = trampoline<Args...>;
    block_size = (int)l->block;
    blockDim = {l->block, 1, 1};
    gridDim = {l->grid[0], 1, 1};
    if (_setjmp(failed)) {
        for (int t = 0; t < THREADS; t++)
            fibers[t].state = FRESH;
        return 1;
    }
    for (u32 b = 0; b < l->grid[0]; b++) {
        blockIdx = {b, 0, 0};
        run_block();
    }
    return 0;
}

} // namespace dtrc

#define KERNEL(name, ...)                                                                                                                  \
    static void name(__VA_ARGS__);                                                                                                         \
    extern "C" __attribute__((visibility("default"))) int dtrc_##name(dtrc::Launch *l) { return dtrc::launch(name, l); }                                                          \
    static void name(__VA_ARGS__)

#define barrier() dtrc::wait(dtrc::AT_BARRIER, __LINE__)

static inline u64 dtrc_exchange(u64 v, int from, int line) {
    dtrc::Fiber &f = dtrc::fibers[dtrc::current];
    u64 *slot = dtrc::lanes[f.shuffles++ & 1];
    slot[dtrc::current] = v;
    dtrc::wait(dtrc::AT_WARP, line);
    return slot[from];
}
template <class Elem> static inline Elem dtrc_shuffle_xor(Elem v, int mask, int line) {
    u64 bits = 0;
    static_assert(sizeof(Elem) <= sizeof(bits), "shuffles move 8 bytes");
    memcpy(&bits, &v, sizeof(Elem));
    bits = dtrc_exchange(bits, dtrc::current ^ mask, line);
    memcpy(&v, &bits, sizeof(Elem));
    return v;
}
// What each lane of the warp gives.
static inline void dtrc_gather(u64 v, u64 (&all)[32], int line) {
    int first = dtrc::current & ~31;
    dtrc::Fiber &f = dtrc::fibers[dtrc::current];
    u64 *slot = dtrc::lanes[f.shuffles++ & 1];
    slot[dtrc::current] = v;
    dtrc::wait(dtrc::AT_WARP, line);
    memcpy(all, slot + first, sizeof(all));
}
static inline u32 dtrc_ballot(bool v, int line) {
    u64 all[32];
    u32 bits = 0;
    dtrc_gather(v, all, line);
    for (int i = 0; i < 32; i++)
        bits |= (u32)(all[i] != 0) << i;
    return bits;
}
#define shuffle_xor(v, mask) dtrc_shuffle_xor(v, mask, __LINE__)
#define ballot(v) dtrc_ballot(v, __LINE__)

static inline int lowest_bit(u32 x) { return __builtin_ctz(x); }

static inline u32 atomicCAS(u32 *p, u32 expected, u32 value) {
    u32 old = *p;
    if (old == expected)
        *p = value;
    return old;
}

template <class Int> static inline Int atomicMax(Int *p, Int value) {
    Int old = *p;
    if (value > old)
        *p = value;
    return old;
}

// Shared memory that knows who used each element since the last barrier.
template <class Elem, int N> struct Shared {
    Elem data[N];
    // The last write, and the last read: epoch and thread (-1: several).
    u64 written[N], read[N];
    int writer[N], reader[N];
    // Whether a copy is under way, and the block that began it.
    u64 expected[N];

    struct Place {
        Shared &of;
        int i;
        operator Elem() const {
            int me = dtrc::current;
            of.arrived(i);
            if (of.written[i] < dtrc::block_start)
                dtrc::refuse("shared element %d is read before it is written", i);
            if (of.written[i] == dtrc::epoch && of.writer[i] != me)
                dtrc::refuse("race on shared element %d: thread %d wrote it since the last barrier, this one reads", i, of.writer[i]);
            of.reader[i] = of.read[i] == dtrc::epoch && of.reader[i] != me ? -1 : me;
            of.read[i] = dtrc::epoch;
            return of.data[i];
        }
        Place &operator=(Elem v) {
            of.arrived(i);
            of.take(i);
            of.data[i] = v;
            return *this;
        }
        Place &operator=(const Place &v) { return *this = (Elem)v; }
    };
    void arrived(int i) const {
        if (expected[i] && expected[i] == dtrc::block_start)
            dtrc::refuse("shared element %d is used before a copy to it has arrived", i);
    }
    // This thread writes the element.
    void take(int i) {
        int me = dtrc::current;
        if (written[i] == dtrc::epoch && writer[i] != me)
            dtrc::refuse("race on shared element %d: thread %d wrote it since the last barrier, this one writes", i, writer[i]);
        if (read[i] == dtrc::epoch && reader[i] != me)
            dtrc::refuse("race on shared element %d: another thread read it since the last barrier, this one writes", i);
        writer[i] = me;
        written[i] = dtrc::epoch;
    }
    // A copy to the element begins, and arrives.
    void expect(int i) {
        (*this)[i];
        arrived(i);
        take(i);
        expected[i] = dtrc::block_start;
    }
    void arrive(int i, Elem v) {
        expected[i] = 0;
        take(i);
        data[i] = v;
    }
    Place operator[](int i) {
        if (i < 0 || i >= N)
            dtrc::refuse("shared element %d of %d", i, N);
        return Place{*this, i};
    }
};

#endif
