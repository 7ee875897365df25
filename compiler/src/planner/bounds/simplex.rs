//! The linear relaxation of a small program over variables that are 0 or 1, and what its multipliers prove.
//!
//! A dual simplex method over a dense tableau: the programs of a few moments have some hundred rows, costs are never negative, so that
//! "nothing on" is dual feasible at the start, and after a variable is fixed only a few steps are needed. Its arithmetic is in floating
//! point and proves nothing. What it leaves are multipliers of the rows, and any multipliers at all prove a bound: the rows, weighted
//! and taken off the costs, leave a sum whose least value over the boxes of the variables is plain. That sum is in integers
//! ([`Program::proves`]).

use super::cut::SCALE;
use crate::planner::problem::Nanos;

/// Smaller differences count as none.
const CLOSE: f64 = 1e-7;
/// Smaller elements are no pivots.
const PIVOT: f64 = 1e-6;
/// Costs are scaled to this for all variables together.
const COSTS: f64 = 1000.0;
/// Rows with fewer filled elements than one in this many are gone through by list.
const SPARSE: usize = 4;
/// Larger multipliers are cut off, so that no sum overflows; smaller ones prove as well.
const STEEPEST: f64 = 1e28;

/// A sum of terms that is at least `least`.
#[derive(Clone, Debug)]
struct Row {
    terms: Vec<(u32, i64)>,
    least: i64,
    /// The row times this is of order one.
    scale: f64,
}

/// Minimise costs over variables that are 0 or 1, subject to rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    costs: Vec<Nanos>,
    rows: Vec<Row>,
}

/// What a variable may be.
pub(super) type Fixed = Vec<Option<bool>>;

impl Program {
    /// A variable.
    pub(super) fn variable(&mut self, cost: Nanos) -> u32 {
        self.costs.push(cost);
        self.costs.len() as u32 - 1
    }

    /// Requires the sum of the terms to be at least `least`. No variable may stand in it twice.
    pub(super) fn at_least(&mut self, terms: Vec<(u32, i64)>, least: i64) {
        let largest = terms.iter().map(|t| t.1.unsigned_abs()).max().unwrap_or(1).max(1);
        self.rows.push(Row { terms, least, scale: 1.0 / largest as f64 });
    }

    /// Number of variables.
    pub(super) fn len(&self) -> usize {
        self.costs.len()
    }

    /// Costs of all variables together.
    pub(super) fn most(&self) -> Nanos {
        self.costs.iter().fold(0, |sum, &c| sum.saturating_add(c))
    }

    /// Elements of the tableau.
    pub(super) fn elements(&self) -> usize {
        self.costs.len() * self.rows.len()
    }

    fn cost_scale(&self) -> f64 {
        COSTS / self.costs.iter().map(|&c| c as f64).sum::<f64>().max(1.0)
    }

    /// The bound on the costs that multipliers of the rows prove, whatever they are; rounded up, as costs are whole. None if a number
    /// does not fit.
    fn proves(&self, multipliers: &[f64], fixed: &Fixed) -> Option<Nanos> {
        let whole = |(m, row): (&f64, &Row)| {
            let m = m * row.scale / self.cost_scale() * SCALE as f64;
            if m > 0.0 { m.min(STEEPEST) as i128 } else { 0 }
        };
        let mut rest: Vec<i128> =
            self.costs.iter().map(|&c| i128::from(c).checked_mul(SCALE as i128)).collect::<Option<_>>()?;
        let mut sum = 0i128;
        for (multiplier, row) in multipliers.iter().zip(&self.rows).map(|p| (whole(p), p.1)) {
            if multiplier == 0 {
                continue;
            }
            sum = sum.checked_add(multiplier.checked_mul(i128::from(row.least))?)?;
            for &(variable, factor) in &row.terms {
                let rest = &mut rest[variable as usize];
                *rest = rest.checked_sub(multiplier.checked_mul(i128::from(factor))?)?;
            }
        }
        for (rest, fixed) in rest.iter().zip(fixed) {
            if fixed.unwrap_or(*rest < 0) {
                sum = sum.checked_add(*rest)?;
            }
        }
        let sum = sum.max(0) as u128;
        Some(Nanos::try_from(sum.div_ceil(SCALE)).unwrap_or(Nanos::MAX))
    }
}

/// How a run of the method ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At the optimum.
    Optimum,
    /// No assignment, fractions included.
    Nothing,
    /// The limit on steps was reached.
    Limit,
}

/// The method's state. Columns are variables that are at one of their bounds, rows the others; slacks of the program's rows come after
/// its variables.
#[derive(Clone)]
pub(super) struct Tableau {
    /// By row and column: how the row's variable changes with the column's.
    slope: Vec<f64>,
    /// By column: how the costs change.
    price: Vec<f64>,
    /// By row: its variable, and that variable's value.
    basic: Vec<u32>,
    value: Vec<f64>,
    /// By column: its variable, and whether that is at its upper bound.
    free: Vec<u32>,
    upper: Vec<bool>,
    /// Per variable of the program.
    fixed: Fixed,
    /// How the dual grows without end, where there is nothing.
    ray: Option<(usize, bool)>,
    /// Elements looked at.
    pub(super) steps: u64,
}

impl Tableau {
    /// Everything off.
    pub(super) fn new(program: &Program) -> Self {
        let (variables, rows) = (program.costs.len(), program.rows.len());
        let mut slope = vec![0.0; variables * rows];
        for (r, row) in program.rows.iter().enumerate() {
            for &(variable, factor) in &row.terms {
                slope[r * variables + variable as usize] = factor as f64 * row.scale;
            }
        }
        let scale = program.cost_scale();
        // Many variables cost nothing; a little of a price, another for each, keeps the method from going in circles.
        let little = |v: usize| (1 + v.wrapping_mul(0x9E37_79B1) % 1009) as f64 * 1e-8;
        Self {
            slope,
            price: program.costs.iter().enumerate().map(|(v, &c)| c as f64 * scale + little(v)).collect(),
            basic: (variables as u32..(variables + rows) as u32).collect(),
            value: program.rows.iter().map(|r| -(r.least as f64) * r.scale).collect(),
            free: (0..variables as u32).collect(),
            upper: vec![false; variables],
            fixed: vec![None; variables],
            ray: None,
            steps: (variables * rows) as u64,
        }
    }

    /// Takes over the state of another one, with the memory at hand.
    pub(super) fn copy(&mut self, other: &Self) {
        self.slope.clone_from(&other.slope);
        self.price.clone_from(&other.price);
        self.basic.clone_from(&other.basic);
        self.value.clone_from(&other.value);
        self.free.clone_from(&other.free);
        self.upper.clone_from(&other.upper);
        self.fixed.clone_from(&other.fixed);
        self.ray = other.ray;
        self.steps = self.slope.len() as u64 / 3;
    }

    fn bounds(&self, variable: u32) -> (f64, f64) {
        match self.fixed.get(variable as usize) {
            None => (0.0, f64::INFINITY),
            Some(None) => (0.0, 1.0),
            Some(Some(on)) => (f64::from(u8::from(*on)), f64::from(u8::from(*on))),
        }
    }

    /// Fixes a variable of the program.
    pub(super) fn fix(&mut self, variable: u32, on: bool) {
        self.fixed[variable as usize] = Some(on);
        if let Some(column) = self.free.iter().position(|&v| v == variable)
            && self.upper[column] != on
        {
            let change = if on { 1.0 } else { -1.0 };
            self.upper[column] = on;
            for (value, row) in self.value.iter_mut().zip(self.slope.chunks_exact(self.free.len())) {
                *value += row[column] * change;
            }
        }
    }

    /// Values of the program's variables.
    pub(super) fn values(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.fixed.len()];
        for (&variable, &upper) in self.free.iter().zip(&self.upper) {
            if let Some(value) = values.get_mut(variable as usize) {
                *value = f64::from(u8::from(upper));
            }
        }
        for (&variable, &basic) in self.basic.iter().zip(&self.value) {
            if let Some(value) = values.get_mut(variable as usize) {
                *value = basic;
            }
        }
        values
    }

    /// Runs at most so many steps of the method.
    pub(super) fn run(&mut self, most: usize) -> End {
        if self.free.is_empty() {
            return End::Limit;
        }
        self.ray = None;
        for _ in 0..most {
            // The row that is furthest out of its bounds.
            let mut leaving: Option<(f64, usize, bool)> = None;
            for (row, (&variable, &value)) in self.basic.iter().zip(&self.value).enumerate() {
                let (low, high) = self.bounds(variable);
                let (out, below) = if value < low { (low - value, true) } else { (value - high, false) };
                if out > CLOSE && leaving.is_none_or(|l| out > l.0) {
                    leaving = Some((out, row, below));
                }
            }
            let Some((_, row, below)) = leaving else { return End::Optimum };
            let Some(column) = self.entering(row, below) else {
                self.ray = Some((row, below));
                return End::Nothing;
            };
            self.pivot(row, column, below);
        }
        End::Limit
    }

    /// The column that takes the row's place: the one whose price is used up first.
    fn entering(&self, row: usize, below: bool) -> Option<usize> {
        let width = self.free.len();
        let mut best: Option<(f64, f64, usize)> = None;
        for (column, &slope) in self.slope[row * width..][..width].iter().enumerate() {
            if slope.abs() < PIVOT || self.fixed.get(self.free[column] as usize).is_some_and(Option::is_some)
            {
                continue;
            }
            // At its lower bound it can only rise, and the row must rise if it is below.
            if (slope > 0.0) != (below != self.upper[column]) {
                continue;
            }
            let ratio = self.price[column].abs() / slope.abs();
            let better = best.is_none_or(|(least, size, _)| {
                ratio < least - CLOSE * 1e-3 || (ratio <= least && slope.abs() > size)
            });
            if better {
                best = Some((ratio, slope.abs(), column));
            }
        }
        best.map(|b| b.2)
    }

    fn pivot(&mut self, row: usize, column: usize, below: bool) {
        let width = self.free.len();
        let (low, high) = self.bounds(self.basic[row]);
        let target = if below { low } else { high };
        let mut taken: Vec<f64> = self.slope[row * width..][..width].to_vec();
        let pivot = taken[column];
        let change = (target - self.value[row]) / pivot;
        for slope in &mut taken {
            *slope /= -pivot;
        }
        taken[column] = 1.0 / pivot;
        let entering = f64::from(u8::from(self.upper[column])) + change;
        let filled: Vec<u32> = (0..width as u32).filter(|&c| taken[c as usize] != 0.0).collect();
        let sparse = filled.len() * SPARSE < width;
        let each = if sparse { filled.len() as u64 } else { width as u64 / 2 };
        for (r, (slopes, value)) in self.slope.chunks_exact_mut(width).zip(&mut self.value).enumerate() {
            let factor = slopes[column];
            if r == row || factor == 0.0 {
                continue;
            }
            *value += factor * change;
            slopes[column] = 0.0;
            if sparse {
                filled.iter().for_each(|&c| slopes[c as usize] += factor * taken[c as usize]);
            } else {
                slopes.iter_mut().zip(&taken).for_each(|(slope, taken)| *slope += factor * taken);
            }
            self.steps += each;
        }
        let price = std::mem::take(&mut self.price[column]);
        for (p, taken) in self.price.iter_mut().zip(&taken) {
            *p += price * taken;
        }
        self.slope[row * width..][..width].copy_from_slice(&taken);
        self.value[row] = entering;
        std::mem::swap(&mut self.basic[row], &mut self.free[column]);
        self.upper[column] = !below;
        self.steps += (self.basic.len() + width) as u64;
    }

    /// The bound that the multipliers prove; where there is nothing, at least `enough` if arithmetic is kind.
    pub(super) fn proves(&self, program: &Program, enough: Nanos) -> Nanos {
        let (variables, width) = (self.fixed.len(), self.free.len());
        let mut multipliers = vec![0.0; program.rows.len()];
        for (&variable, &price) in self.free.iter().zip(&self.price) {
            if let Some(row) = (variable as usize).checked_sub(variables) {
                multipliers[row] = price.max(0.0);
            }
        }
        let proven = program.proves(&multipliers, &self.fixed).unwrap_or(0);
        let Some((row, below)) = self.ray else { return proven };
        let (low, high) = self.bounds(self.basic[row]);
        // Further along the ray by what is missing, twice as far as it should need.
        let slopes = &self.slope[row * width..][..width];
        let mut most = self.value[row];
        for (column, &slope) in slopes.iter().enumerate() {
            let (low, high) = self.bounds(self.free[column]);
            let now = if self.upper[column] { high } else { low };
            if slope.abs() >= PIVOT {
                let (rise, fall) = ((high - now) * slope, (low - now) * slope);
                most += if below { rise.max(fall) } else { rise.min(fall) };
            }
        }
        let missing = if below { low - most } else { most - high };
        let far = 2.0 * (enough as f64 * program.cost_scale() + COSTS * 1e-3) / missing.max(CLOSE);
        let along = if below { -far } else { far };
        for (column, &slope) in slopes.iter().enumerate() {
            if let Some(row) = (self.free[column] as usize).checked_sub(variables) {
                multipliers[row] = (multipliers[row] + along * slope).max(0.0);
            }
        }
        if let Some(slack) = (self.basic[row] as usize).checked_sub(variables) {
            multipliers[slack] = far;
        }
        program.proves(&multipliers, &self.fixed).unwrap_or(0).max(proven)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::strategies::Random;

    /// The least cost over all assignments that agree with what is fixed.
    fn exhaustive(program: &Program, fixed: &Fixed) -> Option<Nanos> {
        let on = |bits: u32, v: u32| bits >> v & 1 == 1;
        let lawful = |&bits: &u32| {
            fixed.iter().enumerate().all(|(v, f)| f.is_none_or(|f| f == on(bits, v as u32)))
                && program.rows.iter().all(|row| {
                    row.terms.iter().filter(|t| on(bits, t.0)).map(|t| t.1).sum::<i64>() >= row.least
                })
        };
        let cost = |bits: u32| {
            (0..program.costs.len()).filter(|&v| on(bits, v as u32)).map(|v| program.costs[v]).sum()
        };
        (0..1u32 << program.costs.len()).filter(lawful).map(cost).min()
    }

    fn draw(random: &mut Random) -> Program {
        let mut program = Program::default();
        for _ in 0..2 + random.below(8) {
            program.variable(random.below(9) as Nanos);
        }
        for _ in 0..1 + random.below(6) {
            let terms: Vec<(u32, i64)> = (0..program.costs.len() as u32)
                .filter_map(
                    |v| if random.below(2) == 0 { Some((v, random.below(7) as i64 - 2)) } else { None },
                )
                .filter(|t| t.1 != 0)
                .collect();
            program.at_least(terms, random.below(6) as i64 - 1);
        }
        program
    }

    #[test]
    fn what_is_proven_is_never_above_the_least_cost() {
        let mut random = Random::new(11);
        let (mut tight, mut nothing) = (0, 0);
        for _ in 0..400 {
            let program = draw(&mut random);
            let mut tableau = Tableau::new(&program);
            for round in 0..3 {
                let end = tableau.run(1000);
                assert_ne!(end, End::Limit, "{program:?}");
                let proven = tableau.proves(&program, 1000);
                match exhaustive(&program, &tableau.fixed) {
                    Some(least) => {
                        assert_eq!(end, End::Optimum, "{program:?}");
                        assert!(proven <= least, "{program:?} {:?}: {proven} over {least}", tableau.fixed);
                        tight += u32::from(proven == least && least > 0);
                    }
                    None if end == End::Nothing => {
                        assert!(proven >= 1000, "{program:?} {:?}: {proven}", tableau.fixed);
                        nothing += 1;
                    }
                    None => {}
                }
                let variable = (round * 3 % program.costs.len()) as u32;
                if end == End::Nothing || tableau.fixed[variable as usize].is_some() {
                    break;
                }
                tableau.fix(variable, random.below(2) == 0);
            }
        }
        assert!(tight > 100 && nothing > 50, "{tight} tight, {nothing} without an assignment");
    }

    #[test]
    fn any_multipliers_prove_a_bound() {
        let mut random = Random::new(3);
        for _ in 0..400 {
            let program = draw(&mut random);
            let open = vec![None; program.costs.len()];
            let multipliers: Vec<f64> = program.rows.iter().map(|_| random.unit() * 300.0 - 30.0).collect();
            if let Some(least) = exhaustive(&program, &open) {
                assert!(program.proves(&multipliers, &open).unwrap() <= least, "{program:?}");
            }
        }
    }
}
