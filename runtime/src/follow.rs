//! A budget that follows the memory there is.
//!
//! What is available moves all the time; a budget that moved with it would switch programs at every step. So it is lowered when less than
//! a 32nd would be left, and raised when a 16th is left afterwards and it is worth it: a dynamic program takes any budget, and every
//! other one is a step to be planned anew.

/// The budget that `have` bytes, what the arena holds and what is available beside it, are good for.
pub(crate) fn within(have: u64) -> u64 {
    have - have / 16
}

/// The next budget where `have` bytes are there and `budget` was the last; `None` if it may stay. `usable` says how much of a budget the
/// programs use.
pub(crate) fn next(have: u64, budget: u64, usable: &dyn Fn(u64) -> u64) -> Option<u64> {
    let now = usable(budget);
    let lower = now > have - have / 32;
    let then = usable(within(have));
    let raise = then > now && (then - now >= now / 32 || then == usable(u64::MAX));
    (lower || raise).then_some(within(have)).filter(|n| *n != budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_late_and_stays() {
        // Programs of 100 and 1000 bytes.
        let usable = |budget: u64| if budget >= 1000 { 1000 } else { budget.min(100) };
        assert_eq!(next(1_033, 1000, &usable), None, "a 32nd is left");
        assert_eq!(next(1_030, 1000, &usable), Some(966));
        assert_eq!(next(1_033, 966, &usable), None, "not yet enough to go back");
        assert_eq!(next(1_100, 966, &usable), Some(1_032));
        assert_eq!(next(50, 966, &usable), Some(47), "below the least program");
        assert_eq!(next(u64::MAX, 1000, &usable), None);
    }

    #[test]
    fn what_takes_any_budget_does_not_follow_every_move() {
        let usable = |budget: u64| budget.min(100_000);
        let budget = within(64_000);
        let moves = (62_000..=65_000).step_by(100).filter_map(|have| next(have, budget, &usable));
        assert_eq!(moves.count(), 0);
        assert_eq!(next(61_000, budget, &usable), Some(within(61_000)));
        assert_eq!(next(67_000, budget, &usable), Some(within(67_000)));
        // The last bit to the whole arena.
        assert_eq!(next(107_000, 99_000, &usable), Some(within(107_000)));
    }
}
