//! Maximum flow with integer capacities (Dinic's algorithm) on the small networks of the bounds.
//!
//! Capacities are integers, so that a cut's value is exact and a bound made from it never overstates. Work is counted in arcs looked
//! at, for limits that do not depend on the machine.

/// A capacity that no cut can pay. Flows stay below half of it.
pub(super) const UNBOUNDED: u128 = 1 << 125;

#[derive(Clone, Copy)]
struct Arc {
    to: u32,
    room: u128,
}

/// A network whose arcs are kept while capacities change from one run to the next.
pub(super) struct Network {
    arcs: Vec<Arc>,
    /// Capacity of each pair of arcs.
    capacity: Vec<u128>,
    /// Arcs leaving each vertex; arc `i ^ 1` is the reverse of arc `i`.
    leaving: Vec<Vec<u32>>,
    level: Vec<u32>,
    next: Vec<u32>,
    /// Arcs looked at so far.
    pub(super) steps: u64,
    /// Where `steps` may go: beyond it a flow stays as far as it got, and no cut is told.
    pub(super) limit: u64,
}

impl Network {
    pub(super) fn new(vertices: usize) -> Self {
        Self {
            arcs: Vec::new(),
            capacity: Vec::new(),
            leaving: vec![Vec::new(); vertices],
            level: vec![0; vertices],
            next: vec![0; vertices],
            steps: 0,
            limit: u64::MAX,
        }
    }

    /// Adds an arc; returns its handle for [`Network::set`].
    pub(super) fn arc(&mut self, from: u32, to: u32, capacity: u128) -> u32 {
        let handle = self.arcs.len() as u32;
        self.arcs.push(Arc { to, room: 0 });
        self.arcs.push(Arc { to: from, room: 0 });
        self.capacity.push(capacity);
        self.leaving[from as usize].push(handle);
        self.leaving[to as usize].push(handle + 1);
        handle
    }

    /// Sets an arc's capacity.
    pub(super) fn set(&mut self, arc: u32, capacity: u128) {
        self.capacity[arc as usize / 2] = capacity;
    }

    /// The value of the least cut between `source` and `sink`, `UNBOUNDED` or more if there is none that can be paid. Afterwards
    /// [`Network::on_source_side`] tells one such cut: the one nearest to the source. Past the limit the value is that of the flow so far,
    /// which no cut is below.
    pub(super) fn least_cut(&mut self, source: u32, sink: u32) -> u128 {
        for (pair, &capacity) in self.arcs.chunks_exact_mut(2).zip(&self.capacity) {
            pair[0].room = capacity;
            pair[1].room = 0;
        }
        self.steps += self.capacity.len() as u64;
        let mut flow = 0u128;
        while self.levels(source, sink) {
            self.next.fill(0);
            loop {
                let pushed = self.push(source, sink);
                flow = flow.saturating_add(pushed);
                if flow >= UNBOUNDED || self.gave_up() {
                    return flow;
                }
                if pushed == 0 {
                    break;
                }
            }
        }
        flow
    }

    /// Whether the work ended before the flow was greatest.
    pub(super) fn gave_up(&self) -> bool {
        self.steps > self.limit
    }

    /// Whether a vertex lies on the source's side of the cut found last.
    pub(super) fn on_source_side(&self, vertex: u32) -> bool {
        self.level[vertex as usize] != u32::MAX
    }

    fn levels(&mut self, source: u32, sink: u32) -> bool {
        self.level.fill(u32::MAX);
        self.level[source as usize] = 0;
        let mut queue = vec![source];
        let mut at = 0;
        while at < queue.len() {
            let v = queue[at];
            at += 1;
            self.steps += self.leaving[v as usize].len() as u64;
            for &a in &self.leaving[v as usize] {
                let arc = self.arcs[a as usize];
                if arc.room > 0 && self.level[arc.to as usize] == u32::MAX {
                    self.level[arc.to as usize] = self.level[v as usize] + 1;
                    queue.push(arc.to);
                }
            }
        }
        self.level[sink as usize] != u32::MAX
    }

    /// Pushes flow along one shortest path. Without recursion: paths may be as long as the graph is deep.
    fn push(&mut self, source: u32, sink: u32) -> u128 {
        let mut path: Vec<u32> = Vec::new();
        let mut v = source;
        loop {
            if v == sink {
                let room = path.iter().map(|&a| self.arcs[a as usize].room).min().unwrap_or(0);
                for &a in &path {
                    self.arcs[a as usize].room -= room;
                    self.arcs[a as usize ^ 1].room = self.arcs[a as usize ^ 1].room.saturating_add(room);
                }
                return room;
            }
            let mut forward = None;
            while let Some(&a) = self.leaving[v as usize].get(self.next[v as usize] as usize) {
                self.steps += 1;
                let arc = self.arcs[a as usize];
                if arc.room > 0 && self.level[arc.to as usize] == self.level[v as usize] + 1 {
                    forward = Some(a);
                    break;
                }
                self.next[v as usize] += 1;
            }
            if let Some(a) = forward {
                path.push(a);
                v = self.arcs[a as usize].to;
            } else if let Some(a) = path.pop() {
                // A dead end: never look at it again in this phase.
                v = self.arcs[a as usize ^ 1].to;
                self.next[v as usize] += 1;
            } else {
                return 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_cut_of_a_small_network() {
        // Two paths share the middle arc; the cut is 3 + 1.
        let mut net = Network::new(4);
        for (from, to, capacity) in [(0, 1, 5), (0, 2, 1), (1, 2, 2), (1, 3, 1), (2, 3, 9)] {
            net.arc(from, to, capacity);
        }
        assert_eq!(net.least_cut(0, 3), 4);
        assert!(net.on_source_side(0) && net.on_source_side(1) && !net.on_source_side(2));
    }

    #[test]
    fn a_flow_that_was_given_up_is_below_the_least_cut() {
        // Each path is longer than the one before it, so that each is a phase of its own.
        let mut net = Network::new(64);
        for v in 1..63 {
            net.arc(0, v, 1);
            net.arc(v, v + 1, 100);
        }
        assert_eq!(net.least_cut(0, 63), 62);
        for limit in 0..200 {
            (net.steps, net.limit) = (0, limit * 20);
            let flow = net.least_cut(0, 63);
            assert!(flow <= 62 && (flow == 62 || net.gave_up()), "{limit}: {flow}");
        }
    }

    #[test]
    fn unbounded_arcs_are_not_cut() {
        let mut net = Network::new(3);
        net.arc(0, 1, UNBOUNDED);
        let b = net.arc(1, 2, 7);
        assert_eq!(net.least_cut(0, 2), 7);
        net.set(b, UNBOUNDED);
        assert!(net.least_cut(0, 2) >= UNBOUNDED);
    }
}
