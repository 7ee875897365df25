//! The exact replay, kept up to date while executions are inserted, removed and moved.
//!
//! Executions lie in slots with room between them. Lifetimes follow from the slots of a group's makers and readers, so that a change
//! touches the groups of one node only, and live bytes are a tree over the slots. Every change is in a journal and can be taken back.
//!
//! The timeline agrees with [`super::decode::Evaluator::evaluate`]; only the implementations of nodes are decisions here, where the
//! evaluator takes the fastest that fits. A test holds the two together.

mod lives;
mod room;
mod tree;

use std::collections::BTreeSet;

use super::index::{Index, NONE};
use super::problem::{Bytes, Nanos};
use lives::Life;
use tree::MaxTree;

/// Slots per execution in a fresh layout.
const GAP: usize = 8;
/// Of a group with more readers the slots that read it are in a set: what every round of a loop reads would be gone through at each change.
const MANY_READERS: usize = 64;

/// A change that can be taken back.
#[derive(Clone, Copy, Debug)]
enum Edit {
    Inserted { slot: u32 },
    Removed { slot: u32, node: u32, variant: u32 },
    Variant { slot: u32, before: u32 },
}

/// There is no room for so many executions before a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) before: u32,
    pub(crate) count: usize,
}

/// A sequence of executions under change.
pub(crate) struct Timeline<'i, 'a> {
    pub(crate) index: &'i Index<'a>,
    /// Sum of the executions' times.
    pub(crate) time: Nanos,
    /// Node at each slot, or [`NONE`].
    slots: Vec<u32>,
    variants: Vec<u32>,
    /// Bytes that overwriting saves at each slot.
    saved: Vec<Bytes>,
    occupied: Vec<u64>,
    /// Slots of each node's executions, rising.
    runs: Vec<Vec<u32>>,
    lives: Vec<Vec<Life>>,
    /// First start and last end of each group's lives.
    spans: Vec<(u32, u32)>,
    /// Slots that read a group with many readers; none for other groups, and those with views that may be made again.
    reads: Vec<Option<BTreeSet<u32>>>,
    /// Nodes that run more than once, and where each stands in that list.
    repeated: Vec<u32>,
    repeated_at: Vec<u32>,
    tree: MaxTree,
    journal: Vec<Edit>,
    fresh: Vec<Life>,
    dirty: Vec<u32>,
    /// Elementary steps so far, for work limits: about as long as one step of an evaluation.
    pub(crate) work: u64,
}

impl<'i, 'a> Timeline<'i, 'a> {
    /// Lays out a sequence, every node in its fastest implementation.
    pub(crate) fn new(index: &'i Index<'a>, sequence: &[u32]) -> Self {
        let mut this = Self {
            index,
            time: 0,
            slots: Vec::new(),
            variants: Vec::new(),
            saved: Vec::new(),
            occupied: Vec::new(),
            runs: vec![Vec::new(); index.nodes()],
            lives: vec![Vec::new(); index.groups()],
            spans: vec![(NONE, 0); index.groups()],
            reads: (0..index.groups() as u32)
                .map(|g| {
                    let many = index.group_edges.row(g).len() > MANY_READERS;
                    let views = index.members.row(g).len() > 1;
                    (many && (!views || index.pinned[g as usize])).then(BTreeSet::new)
                })
                .collect(),
            repeated: Vec::new(),
            repeated_at: vec![NONE; index.nodes()],
            tree: MaxTree::default(),
            journal: Vec::new(),
            fresh: Vec::new(),
            dirty: Vec::new(),
            work: 0,
        };
        this.lay_out(&sequence.iter().map(|&n| (n, 0)).collect::<Vec<_>>(), NONE, 0);
        this
    }

    /// The nodes in order of execution.
    pub(crate) fn sequence(&self) -> Vec<u32> {
        self.slots.iter().copied().filter(|&n| n != NONE).collect()
    }

    /// The nodes in order of execution as they were before the changes in the journal.
    pub(crate) fn sequence_before_changes(&self) -> Vec<u32> {
        let mut slots = self.slots.clone();
        for edit in self.journal.iter().rev() {
            match *edit {
                Edit::Inserted { slot } => slots[slot as usize] = NONE,
                Edit::Removed { slot, node, .. } => slots[slot as usize] = node,
                Edit::Variant { .. } => {}
            }
        }
        slots.retain(|&n| n != NONE);
        slots
    }

    fn lay_out(&mut self, steps: &[(u32, u32)], wide: u32, room: usize) {
        let size = (GAP * (steps.len() + 2) + room).next_power_of_two();
        self.work += 2 * size as u64 / GAP as u64;
        self.slots.clear();
        self.slots.resize(size, NONE);
        self.variants.clear();
        self.variants.resize(size, 0);
        self.saved.clear();
        self.saved.resize(size, 0);
        self.occupied.clear();
        self.occupied.resize(size.div_ceil(64), 0);
        self.runs.iter_mut().for_each(Vec::clear);
        self.repeated.clear();
        self.repeated_at.fill(NONE);
        self.time = 0;
        self.reads.iter_mut().flatten().for_each(BTreeSet::clear);
        let mut slot = 0;
        for (step, &(node, variant)) in steps.iter().enumerate() {
            slot += GAP + if step as u32 == wide { room } else { 0 };
            self.slots[slot] = node;
            self.variants[slot] = variant;
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.runs[node as usize].push(slot as u32);
            self.note_runs(node);
            self.note_read(node, slot as u32, true);
            self.time += self.implementation(node, variant).1;
        }
        let mut change = vec![0i64; size + 1];
        for group in 0..self.index.groups() as u32 {
            self.live_again(group);
            std::mem::swap(&mut self.fresh, &mut self.lives[group as usize]);
            self.note_span(group);
            for life in &self.lives[group as usize] {
                change[life.start as usize] += self.index.group_bytes[group as usize] as i64;
                let end = (life.last as usize).min(size - 1) + 1;
                change[end] -= self.index.group_bytes[group as usize] as i64;
            }
        }
        let mut live = self.index.problem.resident as i64;
        for (slot, change) in change.iter_mut().enumerate().take(size) {
            live += *change;
            let node = self.slots[slot];
            let mut here = live;
            if node != NONE {
                self.saved[slot] = self.overwritten(slot as u32);
                here += self.implementation(node, self.variants[slot]).0 as i64 - self.saved[slot] as i64;
            }
            *change = here;
        }
        self.tree.build(size, change[..size].iter().copied(), 0);
    }

    /// Rounded workspace and time.
    fn implementation(&self, node: u32, variant: u32) -> (Bytes, Nanos) {
        if variant == 0 {
            return (self.index.workspace[node as usize], self.index.time[node as usize]);
        }
        let problem = self.index.problem;
        let found = problem.nodes[node as usize].implementations[variant as usize];
        let scratch = found.workspace.next_multiple_of(problem.alignment);
        (scratch + self.index.reserved(node), found.time)
    }

    /// Most bytes live at one step.
    pub(crate) fn peak(&self) -> Bytes {
        (self.tree.greatest().max(0) as Bytes).max(self.index.problem.resident)
    }

    /// The first slot at the peak.
    pub(crate) fn peak_slot(&self) -> u32 {
        self.tree.find(self.tree.greatest(), || false).unwrap_or(0)
    }

    /// Bytes live at a slot.
    pub(crate) fn live_at(&self, slot: u32) -> Bytes {
        self.tree.at(slot).max(0) as Bytes
    }

    /// Some slot where at least so much is live.
    pub(crate) fn slot_above(&self, least: Bytes, right: impl FnMut() -> bool) -> Option<u32> {
        self.tree.find(least as i64, right)
    }

    /// The slot behind all executions.
    pub(crate) fn end(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn node_at(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).copied().unwrap_or(NONE)
    }

    /// Slots of a node's executions.
    pub(crate) fn runs(&self, node: u32) -> &[u32] {
        &self.runs[node as usize]
    }

    /// Nodes that run more than once.
    pub(crate) fn repeated(&self) -> &[u32] {
        &self.repeated
    }

    /// The last execution before a slot.
    pub(crate) fn before(&self, slot: u32) -> Option<u32> {
        let mut word = slot as usize / 64;
        let mut bits = self.occupied.get(word).map_or(0, |b| b & ((1u64 << (slot % 64)) - 1));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.occupied[word];
        }
        Some((word * 64) as u32 + 63 - bits.leading_zeros())
    }

    /// The first execution after a slot.
    pub(crate) fn after(&self, slot: u32) -> Option<u32> {
        let next = slot as usize + 1;
        let mut word = next / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (next % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some((word * 64) as u32 + bits.trailing_zeros())
    }

    fn note_runs(&mut self, node: u32) {
        let many = self.runs[node as usize].len() > 1;
        let at = self.repeated_at[node as usize];
        if many && at == NONE {
            self.repeated_at[node as usize] = self.repeated.len() as u32;
            self.repeated.push(node);
        } else if !many && at != NONE {
            self.repeated.swap_remove(at as usize);
            if let Some(&moved) = self.repeated.get(at as usize) {
                self.repeated_at[moved as usize] = at;
            }
            self.repeated_at[node as usize] = NONE;
        }
    }

    /// A node that reads groups with many readers comes to a slot or leaves it.
    fn note_read(&mut self, node: u32, slot: u32, comes: bool) {
        for &group in self.index.input_groups.row(node) {
            if let Some(reads) = &mut self.reads[group as usize] {
                if comes {
                    reads.insert(slot);
                } else {
                    reads.remove(&slot);
                }
            }
        }
    }

    /// Inserts executions before a slot, in this order.
    pub(crate) fn insert(&mut self, nodes: &[u32], before: u32) -> Result<(), Full> {
        let from = self.before(before).map_or(0, |s| s + 1).max(1);
        let room = (before - from) as usize;
        if room < nodes.len() {
            return Err(Full { before, count: nodes.len() });
        }
        for (position, &node) in nodes.iter().enumerate() {
            let slot = from + ((position + 1) * (room + 1) / (nodes.len() + 1)) as u32 - 1;
            self.put(node, slot, 0);
            self.journal.push(Edit::Inserted { slot });
        }
        Ok(())
    }

    /// Removes the execution at a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        let (node, variant) = (self.slots[slot as usize], self.variants[slot as usize]);
        self.take(slot);
        self.journal.push(Edit::Removed { slot, node, variant });
    }

    /// Chooses an implementation.
    pub(crate) fn set_variant(&mut self, slot: u32, variant: u32) {
        let before = self.change_variant(slot, variant);
        self.journal.push(Edit::Variant { slot, before });
    }

    /// The implementation at a slot.
    pub(crate) fn variant(&self, slot: u32) -> u32 {
        self.variants[slot as usize]
    }

    /// A point to go back to.
    pub(crate) fn mark(&self) -> usize {
        self.journal.len()
    }

    /// Takes back what was changed since the mark.
    pub(crate) fn undo(&mut self, mark: usize) {
        while self.journal.len() > mark {
            match self.journal.pop() {
                Some(Edit::Inserted { slot }) => self.take(slot),
                Some(Edit::Removed { slot, node, variant }) => self.put(node, slot, variant),
                Some(Edit::Variant { slot, before }) => {
                    self.change_variant(slot, before);
                }
                None => {}
            }
        }
    }

    /// Accepts what was changed.
    pub(crate) fn commit(&mut self) {
        self.journal.clear();
    }

    fn change_variant(&mut self, slot: u32, variant: u32) -> u32 {
        let node = self.slots[slot as usize];
        let before = std::mem::replace(&mut self.variants[slot as usize], variant);
        let (old, new) = (self.implementation(node, before), self.implementation(node, variant));
        self.time = self.time - old.1 + new.1;
        self.tree.add(slot, slot + 1, new.0 as i64 - old.0 as i64);
        before
    }

    fn put(&mut self, node: u32, slot: u32, variant: u32) {
        debug_assert_eq!(self.slots[slot as usize], NONE);
        self.slots[slot as usize] = node;
        self.variants[slot as usize] = variant;
        self.occupied[slot as usize / 64] |= 1 << (slot % 64);
        let runs = &mut self.runs[node as usize];
        let at = runs.partition_point(|&s| s < slot);
        runs.insert(at, slot);
        self.note_runs(node);
        self.note_read(node, slot, true);
        let (workspace, time) = self.implementation(node, variant);
        self.time += time;
        self.tree.add(slot, slot + 1, workspace as i64);
        if !self.index.overwrites.row(node).is_empty() {
            self.dirty.push(slot);
        }
        self.refresh_around(node);
    }

    fn take(&mut self, slot: u32) {
        let node = self.slots[slot as usize];
        let (workspace, time) = self.implementation(node, self.variants[slot as usize]);
        self.time -= time;
        let saved = std::mem::take(&mut self.saved[slot as usize]);
        self.tree.add(slot, slot + 1, saved as i64 - workspace as i64);
        self.slots[slot as usize] = NONE;
        self.variants[slot as usize] = 0;
        self.occupied[slot as usize / 64] &= !(1 << (slot % 64));
        self.runs[node as usize].retain(|&s| s != slot);
        self.note_runs(node);
        self.note_read(node, slot, false);
        self.refresh_around(node);
    }

    /// Brings the groups that a node makes or reads up to date, and then what overwriting saves.
    fn refresh_around(&mut self, node: u32) {
        let index = self.index;
        self.work += 8;
        for &value in index.outputs.row(node) {
            let group = index.value_group[value as usize];
            if group != NONE {
                self.refresh(group);
            }
        }
        for &group in index.input_groups.row(node) {
            self.refresh(group);
        }
        while let Some(slot) = self.dirty.pop() {
            let saved = self.overwritten(slot);
            let before = std::mem::replace(&mut self.saved[slot as usize], saved);
            self.tree.add(slot, slot + 1, before as i64 - saved as i64);
        }
    }
}
