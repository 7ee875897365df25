//! The fast Fourier transform of one line, for any length: by prime factors, the classic decimation in time.

use crate::cpu::Float;

/// A complex number.
pub(super) type Complex<T> = [T; 2];

/// Prime factors of `n`, smallest first.
pub(super) fn factors(mut n: usize) -> Vec<usize> {
    let (mut out, mut p) = (Vec::new(), 2);
    while n > 1 {
        if p * p > n {
            p = n;
        }
        while n.is_multiple_of(p) {
            out.push(p);
            n /= p;
        }
        p += 1;
    }
    out
}

/// Writes `e^(sign·2πi·j/n)` for every j below `n`, the length of `out`.
pub(super) fn roots<T: Float>(positive: bool, out: &mut [Complex<T>]) {
    let n = out.len();
    for (j, w) in out.iter_mut().enumerate() {
        let angle = std::f64::consts::TAU * j as f64 / n as f64;
        let sine = libm::sin(angle);
        *w = [T::from_f64(libm::cos(angle)), T::from_f64(if positive { sine } else { -sine })];
    }
}

#[inline(always)]
fn times<T: Float>([a, b]: Complex<T>, [c, d]: Complex<T>) -> Complex<T> {
    [a * c - b * d, a * d + b * c]
}

#[inline(always)]
fn plus<T: Float>([a, b]: Complex<T>, [c, d]: Complex<T>) -> Complex<T> {
    [a + c, b + d]
}

/// The transform of the elements of `x` that lie `stride` apart into `out`, whose length is the product of `factors`. `roots` are those
/// of the whole line, `step` of which are one of this transform. `scratch` holds the largest factor.
///
/// Every output is a sum in an order that depends on the length alone.
pub(super) fn transform<T: Float>(
    factors: &[usize],
    (x, stride): (&[Complex<T>], usize),
    out: &mut [Complex<T>],
    (roots, step): (&[Complex<T>], usize),
    scratch: &mut [Complex<T>],
) {
    let Some((&p, rest)) = factors.split_first() else {
        out[0] = x[0];
        return;
    };
    let m = out.len() / p;
    for (r, out) in out.chunks_exact_mut(m).enumerate() {
        transform(rest, (&x[r * stride..], stride * p), out, (roots, step * p), scratch);
    }
    for k in 0..m {
        if p == 2 {
            let (a, b) = (out[k], times(out[m + k], roots[k * step]));
            out[k] = plus(a, b);
            out[m + k] = [a[0] - b[0], a[1] - b[1]];
            continue;
        }
        let parts = &mut scratch[..p];
        for (r, part) in parts.iter_mut().enumerate() {
            *part = times(out[r * m + k], roots[r * k * step]);
        }
        // A root of order p every so many roots of the line.
        let turn = roots.len() / p;
        for q in 0..p {
            let mut at = 0;
            let mut sum = parts[0];
            for part in &parts[1..] {
                at = (at + q) % p;
                sum = plus(sum, times(*part, roots[at * turn]));
            }
            out[q * m + k] = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_definition() {
        for n in [1usize, 2, 3, 4, 6, 7, 8, 12, 15, 16, 49, 60, 97] {
            let x: Vec<Complex<f64>> =
                (0..n).map(|i| [(i * 7 % 11) as f64 - 5.0, (i * 5 % 7) as f64]).collect();
            let mut w = vec![[0.0; 2]; n];
            roots(false, &mut w);
            let factors = factors(n);
            assert_eq!(factors.iter().product::<usize>(), n);
            let mut out = vec![[0.0; 2]; n];
            let mut scratch = vec![[0.0; 2]; factors.iter().copied().max().unwrap_or(1)];
            transform(&factors, (&x, 1), &mut out, (&w, 1), &mut scratch);
            for (k, got) in out.iter().enumerate() {
                let sum = (0..n).fold([0.0; 2], |s, j| plus(s, times(x[j], w[j * k % n])));
                let off = (got[0] - sum[0]).abs() + (got[1] - sum[1]).abs();
                assert!(off < 1e-10 * n as f64, "{n} at {k}: {got:?} {sum:?}");
            }
        }
    }
}
