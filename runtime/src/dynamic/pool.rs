//! The memory of a dynamic program: one range, cut as tensors come and go.
//!
//! Offsets and lengths are multiples of the alignment. Freed ranges merge at once. Tensors that are dear to recompute are placed at the
//! low end and cheap ones at the high end, so that what is evicted together lies together.

use std::collections::{BTreeMap, HashMap};

/// A range of bytes with holes.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    bytes: u64,
    /// Length of each hole by its first byte.
    holes: BTreeMap<u64, u64>,
    /// Length and owner of each used part by its first byte.
    used: BTreeMap<u64, (u64, u32)>,
    live: u64,
    peak: u64,
    high_water: u64,
}

impl Pool {
    pub(crate) fn new(bytes: u64) -> Pool {
        let holes = if bytes > 0 { BTreeMap::from([(0, bytes)]) } else { BTreeMap::new() };
        Pool { bytes, holes, used: BTreeMap::new(), live: 0, peak: 0, high_water: 0 }
    }

    /// Bytes of the whole range.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in use.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Most bytes that were in use at once, as far as [`Pool::touch`] was told.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// First byte after everything that was ever used, counted from the nearer end.
    pub(crate) fn high_water(&self) -> u64 {
        self.high_water
    }

    /// The longest hole.
    pub(crate) fn largest_hole(&self) -> u64 {
        self.holes.values().copied().max().unwrap_or(0)
    }

    /// Notes that `bytes` more than what is in use are needed for a moment.
    pub(crate) fn touch(&mut self, bytes: u64) {
        self.peak = self.peak.max(self.live + bytes);
    }

    /// Where `bytes` fit: in the lowest hole from below, or in the highest from above.
    pub(crate) fn find(&self, bytes: u64, from_above: bool) -> Option<u64> {
        let fits = |(_, len): &(&u64, &u64)| **len >= bytes;
        if from_above {
            self.holes.iter().rev().find(fits).map(|(at, len)| at + len - bytes)
        } else {
            self.holes.iter().find(fits).map(|(at, _)| *at)
        }
    }

    /// Takes a part of a hole.
    pub(crate) fn take(&mut self, at: u64, bytes: u64, owner: u32) {
        let Some((&start, &len)) = self.holes.range(..=at).next_back() else { return };
        debug_assert!(at + bytes <= start + len, "a part outside of every hole");
        self.holes.remove(&start);
        if at > start {
            self.holes.insert(start, at - start);
        }
        if start + len > at + bytes {
            self.holes.insert(at + bytes, start + len - at - bytes);
        }
        self.used.insert(at, (bytes, owner));
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        self.high_water = self.high_water.max((at + bytes).min(self.bytes - at));
    }

    /// Gives a part back.
    pub(crate) fn free(&mut self, at: u64) {
        let Some((bytes, _)) = self.used.remove(&at) else { return };
        self.live -= bytes;
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &len)) = self.holes.range(..at).next_back()
            && before + len == at
        {
            self.holes.remove(&before);
            start = before;
        }
        if let Some(len) = self.holes.remove(&end) {
            end += len;
        }
        self.holes.insert(start, end - start);
    }

    /// The owners of the cheapest run of neighbours that makes a hole of `bytes`, holes in between included. `prices` are those of parts
    /// that may go.
    pub(crate) fn cheapest_window(&self, bytes: u64, prices: &HashMap<u32, f64>) -> Vec<u32> {
        // Parts and holes in order of address: (length, price, owner).
        let mut parts: Vec<(u64, Option<f64>, Option<u32>)> = Vec::with_capacity(self.used.len() * 2);
        let (mut used, mut holes) = (self.used.iter().peekable(), self.holes.iter().peekable());
        loop {
            match (used.peek(), holes.peek()) {
                (Some((u, _)), Some((h, _))) if u < h => {}
                (_, Some((_, len))) => {
                    parts.push((**len, Some(0.0), None));
                    holes.next();
                    continue;
                }
                (Some(_), None) => {}
                (None, None) => break,
            }
            if let Some((_, (len, owner))) = used.next() {
                parts.push((*len, prices.get(owner).copied(), Some(*owner)));
            }
        }
        let mut best: Option<(f64, usize, usize)> = None;
        let (mut from, mut sum, mut price) = (0, 0u64, 0.0f64);
        for to in 0..parts.len() {
            let (len, p, _) = parts[to];
            let Some(p) = p else {
                (from, sum, price) = (to + 1, 0, 0.0);
                continue;
            };
            sum += len;
            price += p;
            while sum - parts[from].0 >= bytes {
                sum -= parts[from].0;
                price -= parts[from].1.unwrap_or(0.0);
                from += 1;
            }
            if sum >= bytes && best.is_none_or(|(b, _, _)| price < b) {
                best = Some((price, from, to));
            }
        }
        let Some((_, from, to)) = best else { return Vec::new() };
        parts[from..=to].iter().filter_map(|(_, _, owner)| *owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_merge_and_both_ends_are_used() {
        let mut p = Pool::new(10);
        let low = p.find(4, false).unwrap();
        p.take(low, 4, 1);
        let high = p.find(4, true).unwrap();
        p.take(high, 4, 2);
        assert_eq!((low, high, p.largest_hole()), (0, 6, 2));
        assert_eq!(p.find(3, false), None);
        p.free(low);
        assert_eq!((p.largest_hole(), p.live()), (6, 4));
        p.free(high);
        assert_eq!((p.largest_hole(), p.live(), p.peak()), (10, 0, 8));
    }

    #[test]
    fn the_cheapest_neighbours_go_together() {
        let mut p = Pool::new(10);
        for (i, at) in [0, 2, 4, 6, 8].into_iter().enumerate() {
            p.take(at, 2, i as u32);
        }
        p.free(4);
        // 0 and 1 and the hole: 6 bytes. 3 and 4 are dear.
        let prices = HashMap::from([(0, 1.0), (1, 1.0), (3, 1.5), (4, 9.0)]);
        assert_eq!(p.cheapest_window(4, &prices), [1]);
        assert_eq!(p.cheapest_window(6, &prices), [0, 1]);
        let pinned = HashMap::from([(0, 1.0), (3, 1.0)]);
        assert_eq!(p.cheapest_window(4, &pinned), [3]);
        assert!(p.cheapest_window(6, &pinned).is_empty());
    }
}
