//! Plans that may come again.
//!
//! A plan is a function of the program and of how far it may go, and of nothing else: both together are what it is kept under. Which order a
//! step's program is in is not: two graphs may have the same program in one order and different ones in the other.

use dtr::foresight::{self, Limits, Schedule, Straight};
use std::sync::{Arc, Mutex};

/// How a plan is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// In all of the budget.
    Whole,
    /// In less.
    Below,
}

struct Kept {
    program: Straight,
    limits: Limits,
    search: Search,
    /// `None` if there is no plan.
    schedule: Option<Arc<Schedule>>,
}

/// The latest plans, the last one used last.
#[derive(Default)]
pub(crate) struct Plans(Mutex<Vec<Kept>>);

/// How many of them: a step may have four, for both places of its commits in all of the budget and in less.
const PLANS: usize = 16;

/// Most ops of all of them together, unless few have more: they lie beside the arena.
const OPS: usize = 1 << 16;

/// What one step may have.
const FEW: usize = 4;

impl Plans {
    /// The plan of a program, if one is found with the effort that is left; what the planner says is kept if it may be asked again.
    pub(super) fn plan(
        &self,
        program: &Straight,
        limits: Limits,
        search: Search,
        may_come_again: bool,
        effort: &mut u64,
    ) -> Option<Arc<Schedule>> {
        if let Some(known) = self.find(program, limits, search) {
            return known;
        }
        let schedule = match search {
            Search::Whole => foresight::plan_within(program, limits, effort).ok(),
            Search::Below => foresight::plan_below(program, limits, effort),
        };
        let schedule = schedule.map(Arc::new);
        // With more effort there may be one.
        let settled = schedule.is_some() || *effort > 0;
        if may_come_again
            && settled
            && let Ok(mut all) = self.0.lock()
        {
            let ops = |all: &[Kept]| all.iter().map(|k| k.program.steps.len()).sum::<usize>();
            while all.len() == PLANS || all.len() >= FEW && ops(&all) + program.steps.len() > OPS {
                all.remove(0);
            }
            all.push(Kept { program: program.clone(), limits, search, schedule: schedule.clone() });
        }
        schedule
    }

    fn find(&self, program: &Straight, limits: Limits, search: Search) -> Option<Option<Arc<Schedule>>> {
        let mut all = self.0.lock().ok()?;
        let same = |k: &Kept| (k.limits, k.search) == (limits, search) && k.program == *program;
        let at = all.iter().rposition(same)?;
        all[at..].rotate_left(1);
        all.last().map(|k| k.schedule.clone())
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
        let plan = |n, budget| plans.plan(&chain(n), limits(budget), Search::Whole, true, &mut { u64::MAX });
        let find = |n, budget| plans.find(&chain(n), limits(budget), Search::Whole);
        let made = plan(3, 2).unwrap();
        assert!(Arc::ptr_eq(&made, &plan(3, 2).unwrap()));
        assert_eq!(plan(4, 2).unwrap().first_cost, 4);
        // That there is none is kept too.
        assert!(plan(3, 1).is_none());
        assert_eq!(find(3, 1), Some(None));
        assert_eq!(find(3, 3), None);
        assert_eq!(plans.find(&chain(3), limits(2), Search::Below), None);
        // What comes again stays, what does not goes.
        for n in 5..5 + PLANS as u32 {
            assert!(find(3, 2).is_some());
            plan(n, 2).unwrap();
        }
        assert_eq!(find(4, 2), None);
        plans.plan(&chain(4), limits(2), Search::Whole, false, &mut { u64::MAX }).unwrap();
        // Whether there is one is not known.
        assert!(plans.plan(&chain(100), limits(2), Search::Whole, true, &mut 10).is_none());
        assert_eq!(find(100, 2), None);
        assert_eq!(find(4, 2), None);
        // Of long programs there are fewer.
        let long = OPS as u32;
        (0..FEW as u32).for_each(|n| drop(plan(long + n, 2)));
        assert_eq!(find(3, 2), None);
        assert!((0..FEW as u32).all(|n| find(long + n, 2).is_some()));
        plan(4, 2).unwrap();
        assert!(find(4, 2).is_some() && find(long, 2).is_none());
    }
}
