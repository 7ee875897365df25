//! Costs in coarser units.
//!
//! The costs of a file may be floating-point operations, of which a step has 10^18, or picoseconds; the planner counts up to 2^50. Only
//! fractions of costs mean anything there, so that a unit of a power of two, the least that does, changes no answer by more than the 2^50th
//! part for each node. A higher limit was the alternative: not by much, since times are multiplied, added with a sign, and floats elsewhere.

use super::{
    check::MOST_TIME,
    problem::{Nanos, Problem},
};

/// Makes the times of a problem add up to what the planner can count. What takes time at all still does.
pub(super) fn coarsen(problem: &mut Problem) {
    let at = |time: Nanos, digits: u32| match time {
        0 => 0,
        // To the nearest, without a carry that would overflow.
        _ => ((time >> digits) + (time >> (digits - 1) & 1)).max(1),
    };
    let times = || problem.nodes.iter().flat_map(|n| &n.implementations).map(|i| i.time);
    if times().map(u128::from).sum::<u128>() < u128::from(MOST_TIME) {
        return;
    }
    let counts = |digits: &u32| times().map(|t| u128::from(at(t, *digits))).sum::<u128>();
    // A billion nodes that take 1 each are too many for the planner, whatever their times.
    let digits = (1..Nanos::BITS).find(|d| counts(d) < u128::from(MOST_TIME)).unwrap_or(Nanos::BITS - 1);
    for i in problem.nodes.iter_mut().flat_map(|n| &mut n.implementations) {
        i.time = at(i.time, digits);
    }
}

#[cfg(test)]
mod tests {
    use super::super::import_json::import;

    fn times(costs: &[u64]) -> Vec<u64> {
        let nodes: Vec<String> = (costs.iter().enumerate())
            .map(|(i, c)| format!(r#"{{"id":{i},"bytes":1,"cost":{c},"inputs":[]}}"#))
            .collect();
        let graph = format!(r#"{{"outputs":[],"nodes":[{}]}}"#, nodes.join(","));
        import(&graph).unwrap().problem.nodes.iter().map(|n| n.implementations[0].time).collect()
    }

    #[test]
    fn costs_are_made_coarser_where_they_must_be_and_no_more() {
        let most = 1 << 50;
        assert_eq!(times(&[most - 2, 1, 0]), [most - 2, 1, 0]);
        assert_eq!(times(&[most - 1, 1, 0]), [most / 2, 1, 0]);
        assert_eq!(times(&[most, 5, 4, 1]), [most / 2, 3, 2, 1]);
        // 14 digits less would make it 2^50.
        assert_eq!(times(&[u64::MAX]), [1 << 49]);
        assert_eq!(times(&[u64::MAX - 3, 3]), [1 << 49, 1]);
    }
}
