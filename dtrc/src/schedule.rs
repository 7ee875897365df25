//! Learning rate schedules.

/// `--lr-schedule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LrSchedule {
    /// The same rate always.
    Constant,
    /// From the rate down to 0, which the step after the last would have.
    Linear,
    /// Half a cosine from the rate down to 0, which the step after the last would have.
    Cosine,
    /// A tenth after each third of the steps.
    Step,
}

/// The learning rate of step `step` (from 1) of `total`, rising linearly over the first `warmup` steps to its full value at the last of them.
pub fn learning_rate(schedule: LrSchedule, base: f64, step: u64, total: u64, warmup: u64) -> f64 {
    if step <= warmup {
        return base * step as f64 / warmup as f64;
    }
    let span = total.saturating_sub(warmup).max(1) as f64;
    let done = ((step - warmup - 1) as f64 / span).min(1.0);
    match schedule {
        LrSchedule::Constant => base,
        LrSchedule::Linear => base * (1.0 - done),
        LrSchedule::Cosine => base * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        LrSchedule::Step => base * 0.1f64.powi((done * 3.0) as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_start_at_the_rate_and_fall() {
        for s in [LrSchedule::Constant, LrSchedule::Linear, LrSchedule::Cosine, LrSchedule::Step] {
            let lr = |step| learning_rate(s, 1.0, step, 110, 10);
            assert!((lr(1) - 0.1).abs() < 1e-12 && lr(10) == 1.0 && lr(11) == 1.0, "{s:?}");
            let rest: Vec<f64> = (11..=110).map(lr).collect();
            assert!(rest.windows(2).all(|w| w[1] <= w[0] && w[1] >= 0.0), "{s:?}");
        }
        assert!((learning_rate(LrSchedule::Cosine, 1.0, 61, 110, 10) - 0.5).abs() < 1e-12);
        assert!((learning_rate(LrSchedule::Step, 1.0, 110, 110, 10) - 0.01).abs() < 1e-12);
    }
}
