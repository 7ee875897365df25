//! Windows and mel filter banks, computed in float64 with the `libm` crate: the same numbers on every machine.

use std::f64::consts::TAU;

/// Coefficients of cosines of the whole period, twice it, and so on: c0 - c1·cos x + c2·cos 2x - ..
pub(super) fn window(size: usize, periodic: bool, coefficients: &[f64]) -> Vec<f64> {
    let period = if periodic { size } else { size.saturating_sub(1) }.max(1) as f64;
    let at = |n: usize| {
        let terms = coefficients.iter().enumerate().map(|(k, c)| {
            let cosine = libm::cos(TAU * (k * n) as f64 / period);
            if k % 2 == 0 { c * cosine } else { -c * cosine }
        });
        terms.sum()
    };
    (0..size).map(at).collect()
}

/// Triangles between the edges of `bands` bands that are equally wide on the mel scale, `bins` rows by `bands` columns. Edges fall on
/// bins of a transform of length `length`.
pub(super) fn mel(bands: usize, length: usize, rate: f64, low: f64, high: f64) -> Vec<f64> {
    let to_mel = |hertz: f64| 2595.0 * libm::log10(1.0 + hertz / 700.0);
    let (low, high) = (to_mel(low), to_mel(high));
    let step = (high - low) / (bands + 2) as f64;
    let bins = length / 2 + 1;
    let edges: Vec<usize> = (0..bands + 2)
        .map(|i| {
            let hertz = 700.0 * (libm::pow(10.0, (i as f64 * step + low) / 2595.0) - 1.0);
            // Saturates, so that edges beyond the last bin stay outside.
            ((length + 1) as f64 * hertz / rate).floor() as usize
        })
        .collect();
    let mut out = vec![0.0; bins * bands];
    for (band, edge) in edges.windows(3).enumerate() {
        let mut put = |bin: usize, value: f64| {
            if bin < bins {
                out[bin * bands + band] = value;
            }
        };
        let (left, center, right) = (edge[0], edge[1].max(edge[0]), edge[2].max(edge[1]));
        let (up, down) = ((center - left) as f64, (right - center) as f64);
        (left..center.min(bins)).for_each(|j| put(j, (j - left) as f64 / up));
        put(center, 1.0);
        (center + 1..right.min(bins)).for_each(|j| put(j, (right - j) as f64 / down));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_even_and_peak_in_the_middle() {
        let hann = window(5, false, &[0.5, 0.5]);
        let want = [0.0, 0.5, 1.0, 0.5, 0.0];
        assert!(hann.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{hann:?}");
        let periodic = window(4, true, &[0.5, 0.5]);
        assert!(periodic.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{periodic:?}");
        assert_eq!(window(0, true, &[0.5, 0.5]), [0.0; 0]);
        assert_eq!(window(1, false, &[0.5, 0.5]).len(), 1);
    }

    #[test]
    fn bands_peak_at_one() {
        let (bands, length) = (8, 64);
        let m = mel(bands, length, 8192.0, 0.0, 4096.0);
        for band in 0..bands {
            let column: Vec<f64> = (0..length / 2 + 1).map(|b| m[b * bands + band]).collect();
            assert_eq!(column.iter().copied().fold(0.0, f64::max), 1.0);
            assert!(column.iter().all(|v| (0.0..=1.0).contains(v)));
        }
        // Edges far outside leave nothing inside.
        assert!(mel(2, 4, 1.0, 1e9, 2e9).iter().all(|v| *v == 0.0));
    }
}
