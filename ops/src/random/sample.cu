// Random choices by given probabilities, in f64 as on the CPU: U is the type of the results.
#include "dtrc_device.h"

dev f64 unit(u32 word) { return (f64)word / 4294967296.0; }

KERNEL(choose, const T *x, const i64 *seed, const i64 *step, U *y, I n, u32 id) {
    for (I g = thread_index(); g < random_counters(n); g += thread_count()) {
        Four w = random_words(g, seed, step, id);
        for (int k = 0; k < 4; k++) {
            I e = random_element(g, k);
            if (e < n)
                y[e] = down<U>(unit(w.v[k]) < (f64)up(x[e]) ? 1.0f : 0.0f);
        }
    }
}

// A thread for each sample, which adds the weights of its row in order.
KERNEL(draw, const T *x, const i64 *seed, const i64 *step, U *y, I batch, I classes, I samples, u32 id, Status *status, u32 call) {
    for (I e = thread_index(); e < batch * samples; e += thread_count()) {
        I b = e / samples;
        const T *row = x + b * classes;
        // NaN is no maximum here, so that it reaches the sum.
        f64 most = Limits<f64>::lowest(), total = 0, sum = 0;
        for (I c = 0; c < classes; c++)
            most = (f64)up(row[c]) > most ? (f64)up(row[c]) : most;
        for (I c = 0; c < classes; c++)
            total += m_exp((f64)up(row[c]) - most);
        if (!(total > 0 && is_finite(total)))
            fail(status, call, BAD_WEIGHTS, b, 0);
        f64 target = unit(random_word(e, seed, step, id)) * total;
        // Rounding may leave the sum a little short of the total.
        I class_at = classes - 1;
        for (I c = 0; c < classes; c++) {
            sum += m_exp((f64)up(row[c]) - most);
            if (sum > target) {
                class_at = c;
                break;
            }
        }
        y[e] = (U)class_at;
    }
}
