//! Memory-aware topological orders.
//!
//! Every order respects data and the commit rule. None recomputes: they are starting points, and the least of their peaks is keep-all.

use super::index::{Index, NONE};
use super::problem::Bytes;

/// Readers of a group with more are looked at when its last uses come: what every round of a loop reads would make this quadratic.
const MANY_READERS: usize = 64;

/// Candidate orders with their names, the given one first.
pub(crate) fn candidates(index: &Index<'_>) -> Vec<(&'static str, Vec<u32>)> {
    let mut orders = vec![("given", index.given.clone())];
    let mut add = |name, order: Vec<u32>| {
        if index.is_order(&order) && orders.iter().all(|(_, o)| *o != order) {
            orders.push((name, order));
        }
    };
    add("early release", early_release(index, &index.given));
    let deep = depth_first(index);
    add("depth first, early release", early_release(index, &deep));
    add("depth first", deep);
    add("least growth", least_growth(index));
    orders
}

/// Which groups are live while nodes run one after another, nothing being dropped before its last use.
struct Tracker<'i, 'a> {
    index: &'i Index<'a>,
    /// Uses still to come, per group.
    left: Vec<u32>,
    /// Predecessors still to run, per node.
    waiting: Vec<u32>,
    done: Vec<bool>,
}

impl<'i, 'a> Tracker<'i, 'a> {
    fn new(index: &'i Index<'a>) -> Self {
        let left = (0..index.groups() as u32).map(|g| index.group_edges.row(g).len() as u32 - 1).collect();
        let waiting = (0..index.nodes() as u32).map(|n| index.predecessors.row(n).len() as u32).collect();
        Self { index, left, waiting, done: vec![false; index.nodes()] }
    }

    fn ready(&self, node: u32) -> bool {
        self.waiting[node as usize] == 0 && !self.done[node as usize]
    }

    /// Bytes that running the node allocates, and bytes that its end frees (outputs without uses included).
    fn effect(&self, node: u32) -> (Bytes, Bytes) {
        let index = self.index;
        let (mut made, mut freed) = (0, 0);
        for &value in index.outputs.row(node) {
            let group = index.value_group[value as usize];
            if group != NONE && index.group_root[group as usize] == value {
                made += index.group_bytes[group as usize];
                if self.left[group as usize] == 0 {
                    freed += index.group_bytes[group as usize];
                }
            }
        }
        for &group in index.input_groups.row(node) {
            if self.left[group as usize] == 1 {
                freed += index.group_bytes[group as usize];
            }
        }
        (made, freed)
    }

    fn run(&mut self, node: u32) {
        self.done[node as usize] = true;
        for &group in self.index.input_groups.row(node) {
            self.left[group as usize] -= 1;
        }
        for &next in self.index.successors.row(node) {
            self.waiting[next as usize] -= 1;
        }
    }

    /// Whether the node, or the node and the one successor that waits for it alone, leaves no more live than before.
    fn releases(&self, node: u32) -> Option<Vec<u32>> {
        let (made, freed) = self.effect(node);
        if made <= freed {
            return Some(vec![node]);
        }
        let index = self.index;
        for &next in index.successors.row(node) {
            if self.waiting[next as usize] != 1 {
                continue;
            }
            let (next_made, next_freed) = self.effect(next);
            // What the node makes and only `next` reads is counted in `next_freed`; what both read for the last time is not.
            let shared: Bytes = index
                .input_groups
                .row(next)
                .iter()
                .filter(|g| self.left[**g as usize] == 2 && index.input_groups.row(node).contains(g))
                .map(|&g| index.group_bytes[g as usize])
                .sum();
            if made + next_made <= freed + next_freed + shared {
                return Some(vec![node, next]);
            }
        }
        None
    }
}

/// The base order, but every node (or pair such as a weight gradient and its commit) that frees at least what it makes runs as soon
/// as it can.
pub(crate) fn early_release(index: &Index<'_>, base: &[u32]) -> Vec<u32> {
    let mut tracker = Tracker::new(index);
    let mut order = Vec::with_capacity(base.len());
    let mut recent: Vec<u32> = Vec::new();
    for &node in base {
        if tracker.done[node as usize] {
            continue;
        }
        recent.clear();
        recent.push(node);
        tracker.run(node);
        order.push(node);
        // Only nodes near what just ran can have become releasing: successors, and readers of its inputs.
        while let Some(ran) = recent.pop() {
            let mut near: Vec<u32> = index.successors.row(ran).to_vec();
            for &group in index.input_groups.row(ran) {
                // Of what has uses left beyond these no reader frees anything yet.
                if index.group_edges.row(group).len() > MANY_READERS && tracker.left[group as usize] > 2 {
                    continue;
                }
                near.extend(index.group_edges.row(group).iter().map(|&e| index.edge_node[e as usize]));
            }
            near.retain(|&n| (n as usize) < index.nodes());
            near.sort_unstable();
            near.dedup();
            for candidate in near {
                if tracker.ready(candidate)
                    && let Some(run) = tracker.releases(candidate)
                {
                    for next in run {
                        tracker.run(next);
                        order.push(next);
                        recent.push(next);
                    }
                }
            }
        }
    }
    order
}

/// Each node as late as the first sink that needs it: depth first from the sinks in their given order.
fn depth_first(index: &Index<'_>) -> Vec<u32> {
    let mut order = Vec::with_capacity(index.given.len());
    let mut seen = vec![false; index.nodes()];
    let mut stack: Vec<(u32, usize)> = Vec::new();
    for &sink in index.given.iter().filter(|&&n| index.successors.row(n).is_empty()) {
        stack.push((sink, 0));
        seen[sink as usize] = true;
        while let Some(top) = stack.last_mut() {
            let predecessors = index.predecessors.row(top.0);
            if let Some(&next) = predecessors.get(top.1) {
                top.1 += 1;
                if !seen[next as usize] {
                    seen[next as usize] = true;
                    stack.push((next, 0));
                }
            } else {
                order.push(top.0);
                stack.pop();
            }
        }
    }
    order
}

/// List scheduling: the ready node that makes the live bytes grow least, the given order among equals.
fn least_growth(index: &Index<'_>) -> Vec<u32> {
    let mut tracker = Tracker::new(index);
    let mut ready: Vec<u32> = index.given.iter().copied().filter(|&n| tracker.ready(n)).collect();
    let mut order = Vec::with_capacity(index.given.len());
    // Wide graphs: look at the first nodes in the given order only.
    const LOOK: usize = 64;
    while !ready.is_empty() {
        let growth = |n: u32| {
            let (made, freed) = tracker.effect(n);
            made as i64 - freed as i64
        };
        let best = (0..ready.len().min(LOOK)).min_by_key(|&i| (growth(ready[i]), ready[i])).unwrap_or(0);
        let node = ready.remove(best);
        tracker.run(node);
        order.push(node);
        for &next in index.successors.row(node) {
            if tracker.ready(next) {
                ready.insert(ready.partition_point(|&r| r < next), next);
            }
        }
    }
    order
}
