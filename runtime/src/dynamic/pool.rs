//! The memory of a dynamic program: one range, cut as tensors come and go.
//!
//! Offsets and lengths are multiples of the alignment. Freed ranges merge at once. Tensors that are dear to recompute are placed at the
//! low end and cheap ones at the high end, so that what is evicted together lies together. Where free bytes are enough and no hole is long
//! enough, parts slide together: gaps never cost an eviction.

use std::collections::BTreeMap;

/// A range of bytes with holes.
#[derive(Clone, Debug)]
pub struct Pool {
    bytes: u64,
    /// Length of each hole by its first byte.
    holes: BTreeMap<u64, u64>,
    /// Length and owner of each used part by its first byte.
    used: BTreeMap<u64, (u64, u32)>,
    live: u64,
    /// Bytes that lie elsewhere and count here.
    lent: u64,
    peak: u64,
}

impl Pool {
    /// One hole of so many bytes.
    pub fn new(bytes: u64) -> Pool {
        let holes = if bytes > 0 { BTreeMap::from([(0, bytes)]) } else { BTreeMap::new() };
        Pool { bytes, holes, used: BTreeMap::new(), live: 0, lent: 0, peak: 0 }
    }

    /// Bytes of the whole range.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in use, what is lent included.
    pub fn live(&self) -> u64 {
        self.live + self.lent
    }

    /// Bytes that are used beside the range, as [`Pool::lend`] says.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// So many bytes are used elsewhere and count as if they were here: all are never in use at once.
    pub fn lend(&mut self, bytes: u64) {
        self.lent = bytes;
        self.touch(0);
    }

    /// Most bytes that were in use at once, as far as [`Pool::touch`] was told.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// First byte and length of every hole.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.holes.iter().map(|(at, len)| (*at, *len))
    }

    /// The longest hole.
    pub fn largest_hole(&self) -> u64 {
        self.holes.values().copied().max().unwrap_or(0)
    }

    /// Notes that `bytes` more than what is in use are needed for a moment.
    pub fn touch(&mut self, bytes: u64) {
        self.peak = self.peak.max(self.live() + bytes);
    }

    /// Where `bytes` fit: in the lowest hole from below, or in the highest from above.
    pub fn find(&self, bytes: u64, from_above: bool) -> Option<u64> {
        if self.live().checked_add(bytes).is_none_or(|all| all > self.bytes) {
            return None;
        }
        let fits = |(_, len): &(&u64, &u64)| **len >= bytes;
        if from_above {
            self.holes.iter().rev().find(fits).map(|(at, len)| at + len - bytes)
        } else {
            self.holes.iter().find(fits).map(|(at, _)| *at)
        }
    }

    /// Takes a part of a hole.
    pub fn take(&mut self, at: u64, bytes: u64, owner: u32) {
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
        self.touch(0);
    }

    /// Gives a part back.
    pub fn free(&mut self, at: u64) {
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

    /// Makes one hole of at least `bytes`, if as many are free, by sliding the fewest used bytes together. What is to be moved, in order:
    /// (owner, from, to, length); ranges may overlap.
    pub fn slide(&mut self, bytes: u64) -> Vec<(u32, u64, u64, u64)> {
        // Parts and holes in order of address: (first byte, length, owner).
        let mut parts: Vec<(u64, u64, Option<u32>)> =
            self.used.iter().map(|(at, (len, o))| (*at, *len, Some(*o))).collect();
        parts.extend(self.holes.iter().map(|(at, len)| (*at, *len, None)));
        parts.sort_unstable();
        let mut best: Option<(u64, usize, usize)> = None;
        let (mut from, mut free, mut moved) = (0, 0u64, 0u64);
        for to in 0..parts.len() {
            match parts[to].2 {
                None => free += parts[to].1,
                Some(_) => moved += parts[to].1,
            }
            // A window begins and ends with a hole.
            while from < to && (parts[from].2.is_some() || free - parts[from].1 >= bytes) {
                match parts[from].2 {
                    None => free -= parts[from].1,
                    Some(_) => moved -= parts[from].1,
                }
                from += 1;
            }
            if free >= bytes && best.is_none_or(|(m, _, _)| moved < m) {
                best = Some((moved, from, to));
            }
        }
        let Some((_, from, to)) = best else { return Vec::new() };
        let mut moves = Vec::new();
        let (start, end) = (parts[from].0, parts[to].0 + parts[to].1);
        let mut next = start;
        for (at, len, owner) in parts[from..=to].iter().copied() {
            match owner {
                None => {
                    self.holes.remove(&at);
                }
                Some(owner) => {
                    self.used.remove(&at);
                    moves.push((owner, at, next, len));
                    next += len;
                }
            }
        }
        for (owner, _, to, len) in &moves {
            self.used.insert(*to, (*len, *owner));
        }
        if end > next {
            self.holes.insert(next, end - next);
        }
        moves
    }

    /// A used part gets another owner.
    pub fn pass_on(&mut self, at: u64, owner: u32) {
        if let Some((_, o)) = self.used.get_mut(&at) {
            *o = owner;
        }
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
    fn the_fewest_bytes_slide() {
        let mut p = Pool::new(12);
        for (i, at) in [0, 2, 4, 6, 8, 10].into_iter().enumerate() {
            p.take(at, 2, i as u32);
        }
        p.free(2);
        p.free(6);
        assert_eq!(p.largest_hole(), 2);
        assert_eq!(p.slide(4), [(2, 4, 2, 2)]);
        assert_eq!((p.largest_hole(), p.find(4, false)), (4, Some(4)));
        p.take(4, 4, 9);
        p.free(10);
        p.free(0);
        assert_eq!(p.slide(5), []);
        assert_eq!(p.slide(4), [(2, 2, 0, 2), (9, 4, 2, 4), (4, 8, 6, 2)]);
        assert_eq!((p.find(4, false), p.live()), (Some(8), 8));
    }
}
