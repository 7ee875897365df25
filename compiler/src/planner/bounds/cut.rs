//! One moment of a schedule as an optimisation problem: what is kept through it, what is run again after it.
//!
//! Take the first execution of a node b, a set *before* of nodes that have all run by then, and a set *after* of nodes that are still
//! to run for the first time. A value made in *before* and read in *after* (or live at the end) is *demanded*: its storage is resident
//! now, or its maker runs again, and then the same holds for all that the maker reads. With R the storages kept and Y the nodes run
//! again,
//!
//! ```text
//! minimise   sum of time(y) over Y
//! such that  R or Y serves each demanded storage, R or Y serves each storage read by a node of Y,
//!            bytes(R) fit beside the working set of b
//! ```
//!
//! bounds the extra time of every schedule with these sets. Priced by a multiplier per byte instead of the capacity, it is a least cut
//! in a network (a demanded storage is paid for, or its maker is, and the demand goes on to what that reads), and by duality the best
//! multiplier gives the value of the linear relaxation. Everything is in integers: multipliers are fractions with the denominator
//! [`SCALE`], so no bound is ever overstated.
//!
//! What makes it valid for every schedule: storages count their own bytes although an overwritten one may be larger; views add no bytes
//! and are there as long as their storage is; a working set counts each output that could take over an input's storage as free, and
//! keeping that storage costs it again where no other could serve; a node that cannot run again (it runs once, or it reads state that is
//! committed in *before*) must have its results kept; a staged input cannot be made at all. The time of view nodes counts only where
//! the view itself is demanded.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::flow::{Network, UNBOUNDED};
use crate::planner::problem::{Bytes, Nanos, NodeId, ValueId};

/// Denominator of the multipliers (time per byte).
pub(super) const SCALE: u128 = 1 << 30;
/// A storage that may be kept.
struct Storage {
    root: ValueId,
    bytes: Bytes,
    /// Demanded from outside; otherwise only where its reader runs again.
    demanded: bool,
    /// Index of its maker; none for a staged input.
    maker: Option<u32>,
}

/// A node that may run again.
struct Maker {
    node: NodeId,
    /// Time of running it again; none if it cannot.
    time: Option<Nanos>,
    /// Storages it reads.
    reads: Vec<u32>,
    /// Makers of demanded views on its outputs, run again where it is.
    views: Vec<u32>,
}

/// A choice of storages to keep, with the multiplier under which it is best.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Time of what runs again, and of a slower implementation of b.
    pub(super) time: u128,
    /// Bytes kept, and the workspace of b's implementation.
    pub(super) bytes: u128,
    /// Numerator of the multiplier.
    price: u128,
    /// time and bytes priced together, over [`SCALE`].
    priced: u128,
    /// Which storages are kept, in the cut's order.
    pub(super) kept: Vec<bool>,
}

impl Choice {
    /// The multiplier under which it is best.
    pub(super) fn price(&self) -> u128 {
        self.price
    }
}

/// What is decided about each storage of a branch: kept, not kept, or open.
pub(super) type Fixed = Vec<Option<bool>>;

/// The cut at one node.
pub(super) struct Cut {
    storages: Vec<Storage>,
    makers: Vec<Maker>,
    network: Network,
    /// Arc whose cutting keeps each storage.
    storage_arcs: Vec<u32>,
    /// Arc whose cutting runs each maker again.
    maker_arcs: Vec<u32>,
    /// Bytes that b's working set (without workspace) and the state leave of the budget; negative if they exceed it.
    pub(super) capacity: i128,
    /// Implementations of b: (workspace, time over the fastest).
    variants: Vec<(Bytes, Nanos)>,
    /// Prices stop here, so that no sum overflows.
    steepest: u128,
}

const SOURCE: u32 = 0;
const SINK: u32 = 1;

impl Cut {
    /// The cut at the first execution of `node` under a budget. `before` is closed under what its nodes read.
    pub(super) fn new(facts: &Facts, node: NodeId, before: &[bool], after: &[bool], budget: Bytes) -> Self {
        let site = Site::new(facts, node);
        let fixed = site.fixed;
        let fastest = facts.time[node as usize];
        let implementations = &facts.problem.nodes[node as usize].implementations;
        let variants: Vec<_> = implementations.iter().map(|i| (i.workspace, i.time - fastest)).collect();
        let mut builder = Builder::new(facts, before, site);
        for (v, value) in facts.problem.values.iter().enumerate() {
            let made_before = value.producer.is_none_or(|p| before[p as usize]);
            if made_before && (value.keep_to_end || facts.readers[v].iter().any(|&r| after[r as usize])) {
                builder.demand(v as ValueId);
            }
        }
        let Builder { storages, makers, .. } = builder.close();
        let vertex = |m: u32| 2 + m;
        let asked = |s: usize| if storages[s].demanded { SOURCE } else { 2 + (makers.len() + s) as u32 };
        let mut network = Network::new(2 + makers.len() + storages.len());
        let storage_arcs = (0..storages.len())
            .map(|s| network.arc(asked(s), storages[s].maker.map_or(SINK, vertex), 0))
            .collect();
        let mut maker_arcs = Vec::new();
        for (m, maker) in makers.iter().enumerate() {
            maker_arcs.push(network.arc(vertex(m as u32), SINK, 0));
            for &s in maker.reads.iter().filter(|&&s| !storages[s as usize].demanded) {
                network.arc(vertex(m as u32), asked(s as usize), UNBOUNDED);
            }
            for &view in &maker.views {
                network.arc(vertex(m as u32), vertex(view), UNBOUNDED);
            }
        }
        // Building costs work too.
        network.steps += (facts.problem.values.len() + 8 * (storages.len() + makers.len())) as u64;
        let most = storages.iter().map(|s| u128::from(s.bytes)).sum::<u128>()
            + variants.iter().map(|v| u128::from(v.0)).sum::<u128>();
        let steepest = (UNBOUNDED >> 2) / (most + 1);
        let capacity = i128::from(budget) - fixed as i128;
        Self { storages, makers, network, storage_arcs, maker_arcs, capacity, variants, steepest }
    }

    /// Number of storages that may be kept.
    pub(super) fn len(&self) -> usize {
        self.storages.len()
    }

    /// Work done so far, in arcs looked at.
    pub(super) fn steps(&self) -> u64 {
        self.network.steps
    }

    /// Gives up after so much more work: bounds stay valid, choices are no longer told.
    pub(super) fn limit(&mut self, steps: u64) {
        self.network.limit = self.network.steps.saturating_add(steps);
    }

    /// Whether work has ended.
    pub(super) fn gave_up(&self) -> bool {
        self.network.gave_up()
    }

    /// Bytes of a storage.
    pub(super) fn bytes(&self, storage: usize) -> Bytes {
        self.storages[storage].bytes
    }

    /// The roots of the storages, in the cut's order.
    pub(super) fn roots(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.storages.iter().map(|s| s.root)
    }

    /// The least workspace of b.
    pub(super) fn least_workspace(&self) -> u128 {
        self.variants.iter().map(|v| u128::from(v.0)).min().unwrap_or(0)
    }

    /// The price above which only bytes count.
    fn high(&self) -> u128 {
        let all: u128 = self.makers.iter().filter_map(|m| m.time).map(u128::from).sum();
        let slowest = self.variants.iter().map(|v| u128::from(v.1)).max().unwrap_or(0);
        (all + slowest + 1).saturating_mul(SCALE)
    }

    /// The choice under the highest price. True if no choice has fewer bytes; false only where sizes and times are astronomical, or work
    /// has ended.
    pub(super) fn keep_least(&mut self, fixed: &Fixed) -> (Choice, bool) {
        let high = self.high();
        let choice = self.best(high.min(self.steepest), fixed);
        (choice, high <= self.steepest && !self.gave_up())
    }

    /// The fewest bytes that must be kept whatever the time, without b's workspace: what cannot be made again. Fewer where work has ended.
    pub(super) fn least_bytes(&mut self) -> u128 {
        for (s, &arc) in self.storages.iter().zip(&self.storage_arcs) {
            self.network.set(arc, u128::from(s.bytes));
        }
        for (m, &arc) in self.makers.iter().zip(&self.maker_arcs) {
            self.network.set(arc, if m.time.is_some() { 0 } else { UNBOUNDED });
        }
        self.network.least_cut(SOURCE, SINK)
    }

    /// Workspace and extra time of b under a price.
    fn variant(&self, price: u128) -> (u128, u128) {
        let priced = |&(w, t): &(Bytes, Nanos)| (u128::from(t) * SCALE + u128::from(w) * price, t, w);
        self.variants.iter().map(priced).min().map_or((0, 0), |(_, t, w)| (u128::from(w), u128::from(t)))
    }

    /// The cheapest choice under a price per byte; where work has ended, one that fits nowhere but proves what was reached.
    pub(super) fn best(&mut self, price: u128, fixed: &Fixed) -> Choice {
        let mut held = 0u128;
        for ((s, &arc), fixed) in self.storages.iter().zip(&self.storage_arcs).zip(fixed) {
            let capacity = match fixed {
                None => u128::from(s.bytes) * price,
                Some(true) => {
                    held += u128::from(s.bytes);
                    0
                }
                Some(false) => UNBOUNDED,
            };
            self.network.set(arc, capacity);
        }
        for (m, &arc) in self.makers.iter().zip(&self.maker_arcs) {
            self.network.set(arc, m.time.map_or(UNBOUNDED, |t| u128::from(t) * SCALE));
        }
        let value = self.network.least_cut(SOURCE, SINK);
        let again: Vec<bool> =
            (0..self.makers.len() as u32).map(|m| self.network.on_source_side(2 + m)).collect();
        let (workspace, extra) = self.variant(price);
        let mut choice = Choice {
            time: extra,
            bytes: workspace + held,
            price,
            priced: value.saturating_add((held + workspace) * price).saturating_add(extra * SCALE),
            kept: Vec::with_capacity(self.storages.len()),
        };
        if self.gave_up() {
            choice.kept.resize(self.storages.len(), false);
            choice.time = UNBOUNDED;
            return choice;
        }
        for (k, (s, fixed)) in self.storages.iter().zip(fixed).enumerate() {
            let asked = s.demanded || self.network.on_source_side((2 + self.makers.len() + k) as u32);
            let kept = fixed.unwrap_or(asked && s.maker.is_none_or(|m| !again[m as usize]));
            if kept && fixed.is_none() {
                choice.bytes += u128::from(s.bytes);
            }
            choice.kept.push(kept);
        }
        for (m, _) in self.makers.iter().zip(&again).filter(|(_, again)| **again) {
            choice.time = choice.time.saturating_add(m.time.map_or(UNBOUNDED, u128::from));
        }
        choice
    }

    /// Whether a choice keeps within the capacity.
    pub(super) fn fits(&self, choice: &Choice) -> bool {
        self.capacity >= 0 && choice.bytes <= self.capacity as u128 && choice.time < UNBOUNDED
    }

    /// The bound on extra time that a choice, best under its price, proves; rounded up, as times are whole.
    pub(super) fn proves(&self, choice: &Choice) -> Nanos {
        let room = (self.capacity.max(0) as u128).saturating_mul(choice.price);
        Nanos::try_from(choice.priced.saturating_sub(room).div_ceil(SCALE)).unwrap_or(Nanos::MAX)
    }

    /// The price at which two choices cost the same.
    pub(super) fn level(&self, more: &Choice, less: &Choice) -> u128 {
        let time = less.time.saturating_sub(more.time).min(1 << 90);
        let bytes = more.bytes.saturating_sub(less.bytes).max(1);
        (time * SCALE / bytes).min(self.steepest)
    }

    /// Adds to a choice what of `more` still fits.
    pub(super) fn fill(&mut self, choice: Choice, more: &Choice) -> Choice {
        let mut room = (self.capacity.max(0) as u128).saturating_sub(choice.bytes);
        let mut kept = choice.kept.clone();
        let mut adding: Vec<usize> = (0..kept.len()).filter(|&k| more.kept[k] && !kept[k]).collect();
        adding.sort_by_key(|&k| std::cmp::Reverse(self.storages[k].bytes));
        for k in adding {
            if u128::from(self.storages[k].bytes) <= room {
                room -= u128::from(self.storages[k].bytes);
                kept[k] = true;
            }
        }
        if kept == choice.kept {
            return choice;
        }
        let workspace = self.variant(choice.price);
        let fixed: Fixed = kept.iter().map(|&k| Some(k)).collect();
        let mut filled = self.best(0, &fixed);
        let fastest = self.variant(0);
        filled.time = filled.time - fastest.1 + workspace.1;
        filled.bytes = filled.bytes - fastest.0 + workspace.0;
        if self.fits(&filled) && filled.time <= choice.time { filled } else { choice }
    }

    /// Whether `found`, best under its price, is no better there than `choice`: the search for a price is over.
    pub(super) fn no_better(&self, found: &Choice, choice: &Choice) -> bool {
        found.priced
            >= choice.time.saturating_mul(SCALE).saturating_add(choice.bytes.saturating_mul(found.price))
    }
}

/// What lies in memory while a node runs.
#[derive(Clone)]
pub(super) struct Site {
    /// Storages that the node reads, in order.
    read: Vec<ValueId>,
    /// What keeping one of these past the node costs.
    hosts: BTreeMap<ValueId, Bytes>,
    /// The state, and the working set without workspace after the best overwrites.
    pub(super) fixed: u128,
}

impl Site {
    pub(super) fn new(facts: &Facts, node: NodeId) -> Self {
        let (saving, hosts) = facts.overwriting(node);
        let read = facts.read(node);
        let working =
            read.iter().map(|&r| u128::from(facts.bytes(r))).sum::<u128>() + u128::from(facts.made(node));
        let fixed = u128::from(facts.problem.resident) + working - u128::from(saving).min(working);
        Self { read, hosts, fixed }
    }

    /// Bytes that keeping a storage through the node's execution adds.
    pub(super) fn bytes(&self, facts: &Facts, root: ValueId) -> Bytes {
        match self.read.binary_search(&root) {
            Ok(_) => self.hosts.get(&root).copied().unwrap_or(0),
            Err(_) => facts.bytes(root),
        }
    }
}

/// Collects the storages and makers that matter.
struct Builder<'a> {
    facts: &'a Facts<'a>,
    before: &'a [bool],
    site: Site,
    storages: Vec<Storage>,
    makers: Vec<Maker>,
    storage_of: BTreeMap<ValueId, u32>,
    maker_of: BTreeMap<NodeId, u32>,
}

impl<'a> Builder<'a> {
    fn new(facts: &'a Facts<'a>, before: &'a [bool], site: Site) -> Self {
        let (storages, makers, storage_of, maker_of) = Default::default();
        Self { facts, before, site, storages, makers, storage_of, maker_of }
    }

    /// The storage of a value, if keeping it costs anything.
    fn storage(&mut self, value: ValueId, demanded: bool) -> Option<u32> {
        let root = self.facts.root[value as usize];
        let bytes = self.site.bytes(self.facts, root);
        if bytes == 0 {
            return None;
        }
        let next = self.storages.len() as u32;
        let s = *self.storage_of.entry(root).or_insert(next);
        if s == next {
            let maker = self.facts.problem.values[root as usize].producer.map(|p| self.maker(p));
            self.storages.push(Storage { root, bytes, demanded, maker });
        }
        self.storages[s as usize].demanded |= demanded;
        Some(s)
    }

    fn maker(&mut self, node: NodeId) -> u32 {
        let next = self.makers.len() as u32;
        let m = *self.maker_of.entry(node).or_insert(next);
        if m == next {
            let time = (!self.facts.spent(node, self.before)).then(|| self.facts.time[node as usize]);
            self.makers.push(Maker { time, node, reads: Vec::new(), views: Vec::new() });
        }
        m
    }

    /// A value that is read after b or live at the end.
    fn demand(&mut self, value: ValueId) {
        let Some(s) = self.storage(value, true) else { return };
        let Some(maker) = self.storages[s as usize].maker else { return };
        // If the storage is given up, every view on the way to this one is made again too.
        let values = &self.facts.problem.values;
        let mut at = value;
        while let (Some(source), Some(producer)) = (values[at as usize].view_of, values[at as usize].producer)
        {
            let view = self.maker(producer);
            if view != maker && !self.makers[maker as usize].views.contains(&view) {
                self.makers[maker as usize].views.push(view);
            }
            at = source;
        }
    }

    /// Follows what makers read until nothing new comes up.
    fn close(mut self) -> Self {
        let mut m = 0;
        while m < self.makers.len() {
            let node = self.makers[m].node;
            for &v in &self.facts.problem.nodes[node as usize].inputs {
                if let Some(s) = self.storage(v, false)
                    && self.storages[s as usize].maker != Some(m as u32)
                {
                    self.makers[m].reads.push(s);
                }
            }
            m += 1;
        }
        self
    }
}
