//! Plans that may come again.
//!
//! A plan is a function of the program and of how far it may go, and of nothing else: both together are what it is kept under. Which order a
//! step's program is in is not: two graphs may have the same program in one order and different ones in the other.

use dtr::foresight::{self, Failure, Limits, Schedule, Straight};
use std::sync::{Arc, Mutex};

/// What the planner says of a program.
pub(super) type Plan = Result<Arc<Schedule>, Failure>;

struct Kept {
    program: Straight,
    limits: Limits,
    plan: Plan,
}

/// The latest plans, the last one used last.
#[derive(Default)]
pub(crate) struct Plans(Mutex<Vec<Kept>>);

/// How many of them: a step may have two, one for each place of its commits.
const PLANS: usize = 16;

impl Plans {
    /// The plan of a program; what is made anew is kept if it may come again.
    pub(super) fn plan(&self, program: &Straight, limits: Limits, may_come_again: bool) -> Plan {
        if let Some(plan) = self.find(program, limits) {
            return plan;
        }
        let plan = foresight::plan(program, limits).map(Arc::new);
        if may_come_again && let Ok(mut all) = self.0.lock() {
            if all.len() == PLANS {
                all.remove(0);
            }
            all.push(Kept { program: program.clone(), limits, plan: plan.clone() });
        }
        plan
    }

    fn find(&self, program: &Straight, limits: Limits) -> Option<Plan> {
        let mut all = self.0.lock().ok()?;
        let at = all.iter().rposition(|k| k.limits == limits && k.program == *program)?;
        all[at..].rotate_left(1);
        all.last().map(|k| k.plan.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtr::foresight::Step;

    /// A chain of so many storages, each made from the one before.
    fn chain(n: u32) -> Straight {
        let step = |i: u32| Step {
            reads: i.checked_sub(1).into_iter().collect(),
            makes: vec![i],
            cost: 1,
            ..Step::default()
        };
        Straight {
            steps: (0..n).map(step).collect(),
            bytes: vec![1; n as usize],
            makers: (0..n).collect(),
            results: vec![n - 1],
            last: n as usize,
            ..Straight::default()
        }
    }

    #[test]
    fn a_plan_is_found_by_its_program_and_limits_alone() {
        let plans = Plans::default();
        let limits = |budget| Limits { budget, repeat_cost: 100 };
        let made = plans.plan(&chain(3), limits(2), true).unwrap();
        assert!(Arc::ptr_eq(&made, &plans.plan(&chain(3), limits(2), true).unwrap()));
        assert_eq!(plans.plan(&chain(4), limits(2), true).unwrap().first_cost, 4);
        // That there is none is kept too.
        assert!(plans.plan(&chain(3), limits(1), true).is_err());
        assert!(plans.find(&chain(3), limits(1)).is_some_and(|p| p.is_err()));
        assert!(plans.find(&chain(3), limits(3)).is_none());
        // What comes again stays, what does not goes.
        for n in 5..5 + PLANS as u32 {
            assert!(plans.find(&chain(3), limits(2)).is_some());
            plans.plan(&chain(n), limits(2), true).unwrap();
        }
        assert!(plans.find(&chain(4), limits(2)).is_none());
        plans.plan(&chain(4), limits(2), false).unwrap();
        assert!(plans.find(&chain(4), limits(2)).is_none());
    }
}
