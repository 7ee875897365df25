//! Random allocation traces through the pool of dynamic programs, as CSV: pool over live bytes, less one, when an allocation first finds
//! no hole and when it fails, and what slid in between.

use bench::traces::{kinds, quantile, trace};

/// Traces of each kind.
const TRACES: u64 = 1000;

fn main() {
    println!("sizes,lifetimes,traces,first_gap_median,failure_median,failure_90th,failure_most,moved_median");
    for (sizes, lifetimes) in kinds() {
        let all: Vec<_> = (0..TRACES).map(|seed| trace(sizes, lifetimes, seed)).collect();
        let mut gaps: Vec<f64> = all.iter().map(|o| o.first_gap).collect();
        let mut failures: Vec<f64> = all.iter().map(|o| o.failure).collect();
        let mut moved: Vec<f64> = all.iter().map(|o| o.moved).collect();
        println!(
            "{sizes:?},{lifetimes:?},{TRACES},{:.4},{:.4},{:.4},{:.4},{:.4}",
            quantile(&mut gaps, 0.5),
            quantile(&mut failures, 0.5),
            quantile(&mut failures, 0.9),
            quantile(&mut failures, 1.0),
            quantile(&mut moved, 0.5)
        );
    }
}
