//! Lifetimes of a group's instances, from the slots of its makers and readers; and what overwriting saves.

use std::ops::Bound::{Excluded, Included};

use super::super::index::NONE;
use super::super::problem::Bytes;
use super::Timeline;

/// Executed steps that bringing a group with many readers up to date is worth.
const LOOK_UP: u64 = 16;
/// With more groups than these, what is live over a slot is drawn, not listed; so many draws for one that is wanted.
const MANY_GROUPS: usize = 1024;
const DRAWS: usize = 32;

/// An instance's life: from the slot that makes it to the slot that reads it last (the end, if it is kept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) start: u32,
    pub(crate) last: u32,
}

impl Timeline<'_, '_> {
    /// The life of a group that began at a slot.
    fn life_from(&self, group: u32, start: Option<u32>) -> Option<Life> {
        let lives = &self.lives[group as usize];
        let start = start?;
        let at = lives.partition_point(|l| l.start < start);
        lives.get(at).copied().filter(|l| l.start == start)
    }

    /// The life of a group over a slot: made before it and used after it.
    pub(crate) fn life_over(&self, group: u32, slot: u32) -> Option<Life> {
        let lives = &self.lives[group as usize];
        let at = lives.partition_point(|l| l.start < slot).checked_sub(1)?;
        lives.get(at).copied().filter(|l| l.last > slot)
    }

    /// Whether a group with bytes is live at a slot, made before it and used after it, and not read there; pinned ones left out.
    fn is_over(&self, group: u32, slot: u32) -> bool {
        let index = self.index;
        let (start, last) = self.spans[group as usize];
        let node = self.node_at(slot);
        start < slot
            && last > slot
            && index.group_bytes[group as usize] > 0
            && !index.pinned[group as usize]
            && self.life_over(group, slot).is_some()
            && (node == NONE || !index.input_groups.row(node).contains(&group))
    }

    /// The groups that are live over a slot without being used there.
    pub(crate) fn live_over(&mut self, slot: u32, out: &mut Vec<u32>) {
        out.clear();
        self.work += self.index.groups() as u64 / 16;
        // Few of all groups: a pass over the spans alone is much shorter.
        let spans = self.spans.iter().enumerate();
        let around = spans.filter(|(_, (start, last))| *start < slot && *last > slot).map(|(g, _)| g as u32);
        out.extend(around.filter(|&g| self.is_over(g, slot)));
    }

    /// Some of the groups that are live over a slot: all of them, or, where there are many groups, up to `wanted` of them at random.
    pub(crate) fn some_live_over(
        &mut self,
        slot: u32,
        wanted: usize,
        mut random: impl FnMut(usize) -> usize,
        out: &mut Vec<u32>,
    ) {
        let groups = self.index.groups();
        if groups > MANY_GROUPS {
            out.clear();
            for draw in 0..DRAWS * wanted {
                let group = random(groups) as u32;
                if self.is_over(group, slot) && !out.contains(&group) {
                    out.push(group);
                }
                if out.len() == wanted || (draw + 1 == DRAWS * wanted && !out.is_empty()) {
                    self.work += draw as u64 / 16;
                    return;
                }
            }
        }
        self.live_over(slot, out);
    }

    /// The first slot behind `from`, and up to `to`, that reads a group; none where reads are not noted, or not value by value.
    pub(crate) fn first_read(&self, group: u32, from: u32, to: u32) -> Option<Option<u32>> {
        let alone = self.index.members.row(group).len() == 1;
        let reads = self.reads[group as usize].as_ref().filter(|_| alone)?;
        let mut between = reads.range((Excluded(from), Included(to.max(from))));
        Some(if to > from { between.next().copied() } else { None })
    }

    /// The slot at which the instance of a value that a read before `slot` would see was made: its storage's, if it is a view.
    pub(crate) fn instance(&self, value: u32, slot: u32) -> Option<u32> {
        let (mut value, mut slot) = (value, slot);
        loop {
            let producer = self.index.producer[value as usize];
            if producer == NONE {
                return Some(0);
            }
            let runs = &self.runs[producer as usize];
            let made = *runs[..runs.partition_point(|&s| s < slot)].last()?;
            match self.index.value_view[value as usize] {
                NONE => return Some(made),
                source => (value, slot) = (source, made + 1),
            }
        }
    }

    /// Whether the instance that a read before `slot` would see lives until there anyway.
    pub(crate) fn is_live(&self, value: u32, slot: u32) -> bool {
        let group = self.index.value_group[value as usize];
        let start = self.instance(value, slot);
        group == NONE || self.life_from(group, start).is_some_and(|l| l.last >= slot)
    }

    /// Whether nothing reads what the execution at a slot makes.
    pub(crate) fn is_unread(&self, slot: u32) -> bool {
        let index = self.index;
        let node = self.slots[slot as usize];
        let runs = &self.runs[node as usize];
        let next = runs.get(runs.partition_point(|&s| s <= slot)).copied().unwrap_or(NONE);
        index.outputs.row(node).iter().all(|&value| {
            let group = index.value_group[value as usize];
            // What has no bytes is not worth a proof.
            if group == NONE {
                return false;
            }
            let alone = index.members.row(group).len() == 1;
            if let Some(read) = self.first_read(group, slot, next) {
                return read.is_none() && (next != NONE || !self.is_kept(group));
            }
            index.group_edges.row(group).iter().all(|&edge| {
                let reader = index.edge_node[edge as usize];
                if reader as usize > index.nodes() {
                    return true;
                }
                if reader as usize == index.nodes() {
                    return next != NONE || !(alone || index.kept_to_end.contains(&value));
                }
                let reads = alone || index.inputs.row(reader).contains(&value);
                !reads || !self.runs[reader as usize].iter().any(|&s| slot < s && s <= next)
            })
        })
    }

    /// Computes a group's lives into `fresh`.
    pub(super) fn live_again(&mut self, group: u32) {
        self.fresh.clear();
        let noted = self.reads[group as usize].is_some();
        if self.index.members.row(group).len() > 1 && !noted {
            return self.live_again_with_views(group);
        }
        let index = self.index;
        let maker = index.group_node[group as usize];
        let end = self.slots.len() as u32;
        if maker == NONE {
            self.fresh.push(Life { start: 0, last: 0 });
        } else {
            self.fresh.extend(self.runs[maker as usize].iter().map(|&s| Life { start: s, last: s }));
        }
        if let Some(reads) = &self.reads[group as usize] {
            let mut next = end;
            for life in self.fresh.iter_mut().rev() {
                if next > life.start {
                    let read = reads.range((Excluded(life.start), Included(next))).next_back();
                    life.last = read.copied().unwrap_or(life.last);
                }
                next = life.start;
            }
            if self.is_kept(group)
                && let Some(life) = self.fresh.last_mut()
            {
                life.last = end;
            }
            self.fresh.retain(|l| l.last > 0);
            return;
        }
        for &edge in index.group_edges.row(group) {
            let reader = index.edge_node[edge as usize] as usize;
            if reader == index.nodes() {
                if let Some(life) = self.fresh.last_mut() {
                    life.last = end;
                }
            } else if reader < index.nodes() {
                for &slot in &self.runs[reader] {
                    let at = self.fresh.partition_point(|l| l.start < slot);
                    // While a first execution is on its way to another slot, its readers see nothing.
                    if let Some(life) = at.checked_sub(1).and_then(|i| self.fresh.get_mut(i)) {
                        life.last = life.last.max(slot);
                    }
                }
            }
        }
        // A staged input that nobody reads has no life at all.
        self.fresh.retain(|l| l.last > 0);
    }

    /// The same for a group with views: a view's instance lies on the instance of its source that was there when the view was made.
    fn live_again_with_views(&mut self, group: u32) {
        let index = self.index;
        let members = index.members.row(group);
        let mut events: Vec<(u32, u32)> = Vec::new();
        let makers = members.iter().map(|&v| index.producer[v as usize]);
        let readers = index.group_edges.row(group).iter().map(|&e| index.edge_node[e as usize]);
        for node in makers.chain(readers).filter(|&n| (n as usize) < index.nodes()) {
            events.extend(self.runs[node as usize].iter().map(|&s| (s, node)));
        }
        events.sort_unstable();
        events.dedup();
        let mut current = vec![NONE; members.len()];
        let position = |value: u32| members.iter().position(|&m| m == value);
        if index.group_node[group as usize] == NONE {
            self.fresh.push(Life { start: 0, last: 0 });
            if let Some(root) = position(index.group_root[group as usize]) {
                current[root] = 0;
            }
        }
        for (slot, node) in events {
            for &value in index.inputs.row(node) {
                if let Some(at) = position(value)
                    && let Some(life) = self.fresh.get_mut(current[at] as usize)
                {
                    life.last = slot;
                }
            }
            for &value in index.outputs.row(node) {
                let Some(at) = position(value) else { continue };
                current[at] = match index.value_view[value as usize] {
                    NONE => {
                        self.fresh.push(Life { start: slot, last: slot });
                        self.fresh.len() as u32 - 1
                    }
                    source => position(source).map_or(NONE, |s| current[s]),
                };
            }
        }
        let end = self.slots.len() as u32;
        for (at, value) in members.iter().enumerate() {
            if index.kept_to_end.contains(value)
                && let Some(life) = self.fresh.get_mut(current[at] as usize)
            {
                life.last = end;
            }
        }
        self.fresh.retain(|l| l.last > 0);
    }

    /// Whether a group is live at the end.
    fn is_kept(&self, group: u32) -> bool {
        // The edge that stands for the end is the last but one.
        let edges = self.index.group_edges.row(group);
        let end = self.index.nodes() as u32;
        edges.len() > 1 && self.index.edge_node[edges[edges.len() - 2] as usize] == end
    }

    pub(super) fn note_span(&mut self, group: u32) {
        let lives = &self.lives[group as usize];
        let last = lives.iter().map(|l| l.last).max().unwrap_or(0);
        self.spans[group as usize] = (lives.first().map_or(NONE, |l| l.start), last);
    }

    /// Brings a group's lives and the live bytes up to date.
    pub(super) fn refresh(&mut self, group: u32) {
        self.live_again(group);
        let many = self.reads[group as usize].is_some();
        self.work += if many { LOOK_UP } else { self.index.group_edges.row(group).len() as u64 };
        let old = std::mem::take(&mut self.lives[group as usize]);
        let fresh = std::mem::take(&mut self.fresh);
        let bytes = self.index.group_bytes[group as usize] as i64;
        if bytes > 0 {
            let (mut a, mut b) = (old.iter().peekable(), fresh.iter().peekable());
            loop {
                match (a.peek().copied(), b.peek().copied()) {
                    (Some(x), Some(y)) if x.start == y.start => {
                        if x.last != y.last {
                            self.extend(x.last, y.last, bytes);
                        }
                        a.next();
                        b.next();
                    }
                    (Some(x), y) if y.is_none_or(|y| x.start < y.start) => {
                        self.spread(*x, -bytes);
                        a.next();
                    }
                    (_, Some(y)) => {
                        self.spread(*y, bytes);
                        b.next();
                    }
                    _ => break,
                }
            }
        }
        self.lives[group as usize] = fresh;
        self.fresh = old;
        self.note_span(group);
    }

    fn touch(&mut self, slot: u32) {
        let node = self.node_at(slot);
        if node != NONE && !self.index.overwrites.row(node).is_empty() {
            self.dirty.push(slot);
        }
    }

    fn spread(&mut self, life: Life, bytes: i64) {
        let end = self.slots.len() as u32;
        self.tree.add(life.start, (life.last + 1).min(end), bytes);
        self.touch(life.last);
    }

    fn extend(&mut self, before: u32, now: u32, bytes: i64) {
        let end = self.slots.len() as u32;
        if now > before {
            self.tree.add(before + 1, (now + 1).min(end), bytes);
        } else {
            self.tree.add(now + 1, (before + 1).min(end), -bytes);
        }
        self.touch(before);
        self.touch(now);
    }

    /// Bytes that the outputs of the execution at a slot save by taking over storages that are read there for the last time.
    pub(super) fn overwritten(&self, slot: u32) -> Bytes {
        let index = self.index;
        let node = self.slots[slot as usize];
        if node == NONE {
            return 0;
        }
        let pairs = index.overwrites.row(node);
        let (mut saved, mut taken) = (0, [NONE; 8]);
        let mut count = 0;
        for pair in pairs.chunks_exact(2) {
            let (made, read) = (pair[0], index.value_group[pair[1] as usize]);
            let start = self.instance(pair[1], slot);
            let last = self.life_from(read, start).map(|l| l.last);
            let same =
                |v: &&u32| index.value_group[**v as usize] == read && self.instance(**v, slot) == start;
            if last == Some(slot)
                && count + 2 <= taken.len()
                && !taken.contains(&made)
                && !taken.contains(&(read | 1 << 31))
                && index.inputs.row(node).iter().filter(same).count() == 1
            {
                taken[count] = made;
                taken[count + 1] = read | 1 << 31;
                count += 2;
                saved += index.group_bytes[index.value_group[made as usize] as usize];
            }
        }
        saved
    }
}
