//! Small programs over binary variables, solved by `good_lp` with its pure-Rust solver.
//!
//! The one place that knows a solver. An answer is a suggestion, never a proof: arithmetic is in floating point, so whoever asks
//! evaluates what comes out exactly. Limits count nodes of the search tree, and variables and rows have a fixed order, so that the same
//! program has the same answer everywhere.

use good_lp::solvers::microlp::microlp;
use good_lp::{Expression, ProblemVariables, SolverModel, Variable, variable};
use microlp::{SolveOptions, SolveOutcome};

/// Half of the distance between "off" and "on".
const HALF: f64 = 0.5;

/// Index of a variable.
pub(crate) type Column = u32;

/// Minimise a sum of costs over variables that are 0 or 1, subject to rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// Cost of each variable, and whether it must be whole. Others are between 0 and 1 and follow from the whole ones.
    columns: Vec<(f64, bool)>,
    rows: Vec<Row>,
}

/// The sum of the terms is at least `least`.
#[derive(Clone, Debug)]
struct Row {
    terms: Vec<(Column, f64)>,
    least: f64,
}

/// What came out.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Per variable: on. None if no assignment was found.
    pub(crate) on: Option<Vec<bool>>,
    /// Steps of the simplex method, for work limits.
    pub(crate) iterations: u64,
}

impl Program {
    /// A variable that is 0 or 1.
    pub(crate) fn binary(&mut self, cost: f64) -> Column {
        self.columns.push((cost, true));
        self.columns.len() as Column - 1
    }

    /// A variable without cost between 0 and 1 that is whole wherever the binary ones are.
    pub(crate) fn implied(&mut self) -> Column {
        self.columns.push((0.0, false));
        self.columns.len() as Column - 1
    }

    /// Requires the sum of the terms to be at least `least`. No variable may stand in it twice.
    pub(crate) fn at_least(&mut self, terms: Vec<(Column, f64)>, least: f64) {
        self.rows.push(Row { terms, least });
    }

    /// Requires the sum of the terms to be at most `most`.
    pub(crate) fn at_most(&mut self, mut terms: Vec<(Column, f64)>, most: f64) {
        terms.iter_mut().for_each(|t| t.1 = -t.1);
        self.at_least(terms, -most);
    }

    /// Number of variables.
    pub(crate) fn len(&self) -> usize {
        self.columns.len()
    }

    /// Searches at most so many nodes of the tree.
    pub(crate) fn solve(&self, nodes: u64) -> Answer {
        let mut variables = ProblemVariables::new();
        let columns: Vec<Variable> = self
            .columns
            .iter()
            .map(|&(_, whole)| {
                variables.add(if whole { variable().binary() } else { variable().clamp(0, 1) })
            })
            .collect();
        let mut objective = Expression::with_capacity(columns.len());
        for (&column, &(cost, _)) in columns.iter().zip(&self.columns) {
            objective.add_mul(cost, column);
        }
        let mut model = variables.minimise(objective).using(microlp);
        for row in &self.rows {
            let mut sum = Expression::with_capacity(row.terms.len());
            for &(column, factor) in &row.terms {
                sum.add_mul(factor, columns[column as usize]);
            }
            model.add_constraint(sum.geq(row.least));
        }
        let mut options = SolveOptions::default();
        options.node_limit = Some(nodes);
        let nothing = Answer { on: None, iterations: 1 };
        let Ok(outcome) = model.as_inner().solve_with(options) else { return nothing };
        let iterations = outcome.stats().lp_iterations.max(1);
        match outcome {
            SolveOutcome::Solution(solution) => {
                let on = solution.iter().map(|(_, value)| value > HALF).collect();
                Answer { on: Some(on), iterations }
            }
            _ => Answer { iterations, ..nothing },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least cost over all assignments, the implied variables among them.
    fn exhaustive(program: &Program) -> Option<f64> {
        let lawful = |bits: u32| {
            program.rows.iter().all(|row| {
                let on = row.terms.iter().filter(|t| bits >> t.0 & 1 == 1);
                on.map(|t| t.1).sum::<f64>() >= row.least - 1e-9
            })
        };
        let cost = |bits: u32| -> f64 {
            (0..program.len()).filter(|c| bits >> c & 1 == 1).map(|c| program.columns[c].0).sum()
        };
        let all = (0..1u32 << program.len()).filter(|&b| lawful(b)).map(cost);
        all.min_by(f64::total_cmp)
    }

    #[test]
    fn agrees_with_exhaustive_search() {
        let mut random = crate::planner::strategies::Random::new(5);
        let (mut solved, mut refused) = (0, 0);
        for _ in 0..200 {
            let mut program = Program::default();
            for _ in 0..2 + random.below(8) {
                program.binary(1.0 + random.below(9) as f64);
            }
            for _ in 0..1 + random.below(5) {
                let terms: Vec<(Column, f64)> = (0..program.len() as Column)
                    .filter_map(|c| {
                        if random.below(2) == 0 { Some((c, random.below(7) as f64 - 2.0)) } else { None }
                    })
                    .collect();
                program.at_least(terms, random.below(5) as f64);
            }
            let answer = program.solve(10_000);
            match exhaustive(&program) {
                Some(cost) => {
                    let on = answer.on.unwrap_or_else(|| panic!("{program:?}: {cost} is possible"));
                    let found: f64 = program.columns.iter().zip(on).filter(|c| c.1).map(|c| c.0.0).sum();
                    assert!((found - cost).abs() < 1e-6, "{program:?}: {found} and {cost}");
                    solved += 1;
                }
                None => {
                    assert!(answer.on.is_none(), "{program:?}");
                    refused += 1;
                }
            }
        }
        assert!(solved > 60 && refused > 20, "{solved} solved, {refused} refused");
    }

    #[test]
    fn a_limit_on_nodes_ends_the_search() {
        // Equal weights and an odd sum: every node of the tree has the same bound.
        let mut program = Program::default();
        let columns: Vec<_> = (0..24).map(|_| program.binary(1.0)).collect();
        program.at_least(columns.iter().map(|&c| (c, 2.0)).collect(), 23.0);
        program.at_most(columns.iter().map(|&c| (c, 2.0)).collect(), 23.5);
        let answer = program.solve(50);
        assert!(answer.on.is_none() && answer.iterations < 100_000);
    }
}
