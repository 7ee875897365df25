//! Executions moved to the other side of a moment, with all that keeps them where they are.
//!
//! Its neighbours let a single execution hardly ever go far: a weight's gradient is followed by its update, a reader preceded by what it
//! reads. So what lies between goes along: all that depends on the execution if it moves later, all that it depends on if earlier.

use super::super::index::NONE;
use super::super::timeline::{Full, Timeline};
use super::Random;

/// Executions that a move may cross, and take along.
const REACH: usize = 256;
const ALONG: usize = 64;
/// Executions that it may go beyond the moment.
const BEYOND: usize = 16;

/// What a move takes along.
pub(crate) struct Drag {
    /// Slots, in the order that they were met.
    slots: Vec<u32>,
    nodes: Vec<u32>,
    along: Vec<bool>,
    live: Vec<u32>,
}

impl Drag {
    /// For sequences of so many nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { slots: Vec::new(), nodes: Vec::new(), along: vec![false; nodes], live: Vec::new() }
    }

    /// Moves what makes or reads some group that is live over a slot to the other side of it; none if it cannot go there. The order of the
    /// executions is lawful again, the changes are in the timeline's journal.
    pub(crate) fn across(
        &mut self,
        timeline: &mut Timeline<'_, '_>,
        slot: u32,
        random: &mut Random,
    ) -> Option<Result<(), Full>> {
        timeline.some_live_over(slot, 1, |n| random.below(n), &mut self.live);
        if self.live.is_empty() {
            return None;
        }
        let group = self.live[random.below(self.live.len())];
        let index = timeline.index;
        let edges = index.group_edges.row(group);
        let pick = random.below(edges.len());
        // The tail edge stands for the producer.
        let tail = pick + 1 == edges.len();
        let node =
            if tail { index.group_node[group as usize] } else { index.edge_node[edges[pick] as usize] };
        // Neither the end nor what is there from the beginning can be moved.
        if node as usize >= index.nodes() {
            return None;
        }
        let runs = timeline.runs(node);
        let from = *runs.get(if runs.len() > 1 { random.below(runs.len()) } else { 0 })?;
        let beyond = if random.below(2) == 0 { 0 } else { random.below(BEYOND) };
        let target = match from.cmp(&slot) {
            std::cmp::Ordering::Less => self.later(timeline, from, slot, beyond),
            std::cmp::Ordering::Greater => self.earlier(timeline, from, slot, beyond),
            std::cmp::Ordering::Equal => None,
        };
        timeline.work += self.slots.len() as u64;
        let moved = target.map(|target| {
            self.slots.iter().for_each(|&s| timeline.remove(s));
            timeline.insert(&self.nodes, target)
        });
        self.nodes.drain(..).for_each(|n| self.along[n as usize] = false);
        self.slots.clear();
        moved
    }

    fn take(&mut self, slot: u32, node: u32) -> Option<()> {
        self.along[node as usize] = true;
        self.slots.push(slot);
        self.nodes.push(node);
        (self.nodes.len() <= ALONG).then_some(())
    }

    /// Gathers what runs at a slot and what depends on it, up to the moment. It is to land before the slot that is returned.
    fn later(&mut self, timeline: &Timeline<'_, '_>, from: u32, slot: u32, mut beyond: usize) -> Option<u32> {
        self.take(from, timeline.node_at(from))?;
        let mut at = from;
        for _ in 0..REACH {
            at = timeline.after(at).unwrap_or(timeline.end());
            if at > slot && (beyond == 0 || at == timeline.end()) {
                return Some(at);
            }
            let node = timeline.node_at(at);
            let again = self.along[node as usize];
            if again || timeline.index.predecessors.row(node).iter().any(|&p| self.along[p as usize]) {
                if at > slot {
                    return Some(at);
                }
                // The moment itself, or another execution of the same node.
                if at == slot || again {
                    return None;
                }
                self.take(at, node)?;
            } else if at > slot {
                beyond -= 1;
            }
        }
        None
    }

    /// Gathers what runs at a slot and what it depends on, back to the moment. It is to land before the slot that is returned.
    fn earlier(
        &mut self,
        timeline: &Timeline<'_, '_>,
        from: u32,
        slot: u32,
        mut beyond: usize,
    ) -> Option<u32> {
        self.take(from, timeline.node_at(from))?;
        let mut target = from;
        for _ in 0..REACH {
            let Some(at) = timeline.before(target) else { break };
            if target <= slot && beyond == 0 {
                break;
            }
            let node = timeline.node_at(at);
            let again = self.along[node as usize];
            if again || timeline.index.successors.row(node).iter().any(|&s| self.along[s as usize]) {
                if at < slot {
                    break;
                }
                if at == slot || again {
                    return None;
                }
                self.take(at, node)?;
            } else if target <= slot {
                beyond -= 1;
            }
            target = at;
        }
        if target > slot || target == from {
            return None;
        }
        // Where it lands nothing of what moves remains.
        debug_assert!(target != NONE && !self.slots.contains(&target));
        self.slots.reverse();
        self.nodes.reverse();
        Some(target)
    }
}
