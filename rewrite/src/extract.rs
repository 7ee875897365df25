//! The choice of one term for each class: least cost of all that the results need, every term counted once.
//!
//! The least such set is hard to find in general, but the rules leave few classes with a choice, and what the graph has is a good start:
//! from it, each class changes its term as long as the whole gets cheaper. Classes that only rules made start with their least term.

use crate::{
    Level,
    cost::{Cost, Costs, Prices},
    space::Space,
    term::Term,
};
use egg::Id;
use std::collections::BTreeMap;

/// Most passes over the classes.
const PASSES: usize = 8;

struct Choice {
    term: Term,
    args: Vec<usize>,
    cost: Cost,
}

/// A choice for each class.
pub(crate) struct Chosen {
    level: Level,
    index: BTreeMap<Id, usize>,
    classes: Vec<Vec<Choice>>,
    choice: Vec<usize>,
    roots: Vec<usize>,
    reached: Vec<bool>,
    total: Cost,
}

/// Values that something outside of the region reads.
pub(crate) fn roots(space: &Space<'_>) -> Vec<graph::ValueId> {
    let g = space.graph;
    let mut read = vec![false; g.values.len()];
    let later = g.nodes[space.range.end..].iter().flat_map(|n| n.inputs.iter().flatten());
    for v in later.chain(&g.outputs).chain(g.states.iter().filter_map(|s| s.output.as_ref())) {
        read[v.index()] = true;
    }
    space.values.keys().copied().filter(|v| read[v.index()]).collect()
}

pub(crate) fn extract(space: &mut Space<'_>, level: Level, costs: Costs<'_>) -> Chosen {
    let mut prices = Prices::new(costs);
    let mut ids: Vec<Id> = space.egraph.classes().map(|c| c.id).collect();
    ids.sort();
    let index: BTreeMap<Id, usize> = ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    let classes: Vec<Vec<Choice>> = ids
        .iter()
        .map(|id| {
            let of = |term: Term| Choice {
                args: term.args.iter().map(|a| index[a]).collect(),
                cost: prices.of(space, &term),
                term,
            };
            space.terms(*id).into_iter().map(of).collect()
        })
        .collect();
    let mut given = vec![false; classes.len()];
    for id in space.nodes.iter().map(|(_, class, _)| class).chain(space.values.values()) {
        given[index[&space.egraph.find(*id)]] = true;
    }
    let roots = roots(space).iter().map(|v| index[&space.egraph.find(space.values[v])]).collect();
    let mut chosen = Chosen {
        level,
        choice: least(level, &classes, &given),
        reached: vec![false; classes.len()],
        index,
        classes,
        roots,
        total: Cost::default(),
    };
    chosen.start(space);
    chosen.improve();
    chosen
}

fn key(level: Level, c: Cost) -> (u64, u64, u64, u64) {
    match level {
        Level::Memory => (c.bytes, c.nanoseconds, c.kept, c.nodes),
        _ => (c.nanoseconds, c.bytes, c.kept, c.nodes),
    }
}

/// The least term of each class that only rules made: its own cost and that of parts that only rules made, too. What the graph has is
/// free here: it is mostly there anyway.
fn least(level: Level, classes: &[Vec<Choice>], given: &[bool]) -> Vec<usize> {
    let mut best: Vec<Option<Cost>> = given.iter().map(|g| g.then(Cost::default)).collect();
    let mut choice = vec![0; classes.len()];
    loop {
        let mut changed = false;
        for (c, terms) in classes.iter().enumerate().filter(|(c, _)| !given[*c]) {
            for (t, term) in terms.iter().enumerate() {
                let mut parts = term.args.iter().map(|a| best[*a]);
                let Some(cost) = parts.try_fold(term.cost, |sum, part| Some(sum + part?)) else { continue };
                if best[c].is_none_or(|b| key(level, cost) < key(level, b)) {
                    (best[c], choice[c], changed) = (Some(cost), t, true);
                }
            }
        }
        if !changed {
            return choice;
        }
    }
}

impl Chosen {
    /// Starts from the graph's own terms, of several in a class the first one's, a leaf before all: its arguments were there before it,
    /// so that the choice is never circular.
    fn start(&mut self, space: &Space<'_>) {
        for (_, class, term) in space.nodes.iter().rev() {
            self.choose(space, *class, &space.canonical(term));
        }
        for (v, class) in space.values.iter().rev() {
            let graph::ValueDef::Node { node, index } = space.graph.value(*v).def else { continue };
            let tuple = space.nodes[node.index() - space.range.start].1;
            let term = Term { head: crate::term::Head::Proj(index), args: vec![tuple] };
            self.choose(space, *class, &space.canonical(&term));
        }
        for (c, terms) in self.classes.iter().enumerate() {
            if let Some(t) = terms.iter().position(|t| matches!(t.term.head, crate::term::Head::Leaf(_))) {
                self.choice[c] = t;
            }
        }
        if let Some((total, reached)) = self.walk(&self.choice) {
            (self.total, self.reached) = (total, reached);
        }
    }

    fn choose(&mut self, space: &Space<'_>, class: Id, term: &Term) {
        let c = self.index[&space.egraph.find(class)];
        if let Some(t) = self.classes[c].iter().position(|x| x.term == *term) {
            self.choice[c] = t;
        }
    }

    /// The cost of a choice and what it reaches; `None` if it is circular.
    fn walk(&self, choice: &[usize]) -> Option<(Cost, Vec<bool>)> {
        // 0: not seen, 1: under way, 2: done.
        let mut state = vec![0u8; self.classes.len()];
        let mut total = Cost::default();
        let mut stack: Vec<(usize, usize)> = Vec::new();
        for root in &self.roots {
            if state[*root] == 0 {
                state[*root] = 1;
                stack.push((*root, 0));
            }
            while let Some((c, next)) = stack.pop() {
                let term = &self.classes[c][choice[c]];
                match term.args.get(next) {
                    None => {
                        state[c] = 2;
                        total = total + term.cost;
                    }
                    Some(a) => {
                        stack.push((c, next + 1));
                        match state[*a] {
                            0 => {
                                state[*a] = 1;
                                stack.push((*a, 0));
                            }
                            1 => return None,
                            _ => {}
                        }
                    }
                }
            }
        }
        Some((total, state.into_iter().map(|s| s == 2).collect()))
    }

    fn improve(&mut self) {
        let open: Vec<usize> = (0..self.classes.len()).rev().filter(|c| self.classes[*c].len() > 1).collect();
        for _ in 0..PASSES {
            let mut changed = false;
            for c in &open {
                if !self.reached[*c] {
                    continue;
                }
                for t in 0..self.classes[*c].len() {
                    if t == self.choice[*c] {
                        continue;
                    }
                    let mut other = self.choice.clone();
                    other[*c] = t;
                    if let Some((total, reached)) = self.walk(&other)
                        && key(self.level, total) < key(self.level, self.total)
                    {
                        (self.choice, self.total, self.reached, changed) = (other, total, reached, true);
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// The term of a class, if the results need the class.
    pub(crate) fn term(&self, space: &Space<'_>, class: Id) -> Option<&Term> {
        let c = *self.index.get(&space.egraph.find(class))?;
        self.reached[c].then(|| &self.classes[c][self.choice[c]].term)
    }

    /// What another term of a class that is needed would cost more, as (nanoseconds, bytes); `None` if it cannot be.
    pub(crate) fn instead(&self, space: &Space<'_>, class: Id, term: &Term) -> Option<(i64, i64)> {
        let c = *self.index.get(&space.egraph.find(class))?;
        let mut other = self.choice.clone();
        other[c] = self.classes[c].iter().position(|x| x.term == *term)?;
        let (total, _) = self.walk(&other)?;
        let more = |a: u64, b: u64| i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX);
        let time = more(total.nanoseconds, self.total.nanoseconds);
        Some((time, more(total.bytes, self.total.bytes)))
    }

    /// The price of a term.
    pub(crate) fn price(&self, space: &Space<'_>, class: Id, term: &Term) -> Option<Cost> {
        let c = *self.index.get(&space.egraph.find(class))?;
        self.classes[c].iter().find(|x| x.term == *term).map(|x| x.cost)
    }
}
