//! Live bytes over slots: add to a range, and the first slot of the maximum, both in logarithmic time.

/// A segment tree over a power of two of slots; sums are never pushed down.
#[derive(Clone, Default)]
pub(super) struct MaxTree {
    size: usize,
    /// Greatest value below each vertex, its own addend included.
    max: Vec<i64>,
    add: Vec<i64>,
}

impl MaxTree {
    /// Over these values; their number is rounded up to a power of two with `rest`.
    pub(super) fn build(&mut self, size: usize, values: impl Iterator<Item = i64>, rest: i64) {
        debug_assert!(size.is_power_of_two());
        self.size = size;
        self.max.clear();
        self.max.resize(size, rest);
        self.max.extend(values);
        self.max.resize(2 * size, rest);
        self.add.clear();
        self.add.resize(size, 0);
        for vertex in (1..size).rev() {
            self.max[vertex] = self.max[2 * vertex].max(self.max[2 * vertex + 1]);
        }
    }

    /// Adds to every slot of `from..to`.
    pub(super) fn add(&mut self, from: u32, to: u32, value: i64) {
        if from >= to || value == 0 {
            return;
        }
        let (first, last) = (from as usize + self.size, to as usize - 1 + self.size);
        let (mut left, mut right) = (first, last + 1);
        while left < right {
            if left & 1 == 1 {
                self.bump(left, value);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.bump(right, value);
            }
            left >>= 1;
            right >>= 1;
        }
        let (mut a, mut b) = (first >> 1, last >> 1);
        while a != b {
            self.pull(a);
            self.pull(b);
            a >>= 1;
            b >>= 1;
        }
        while a > 0 {
            self.pull(a);
            a >>= 1;
        }
    }

    #[inline]
    fn bump(&mut self, vertex: usize, value: i64) {
        self.max[vertex] += value;
        if vertex < self.size {
            self.add[vertex] += value;
        }
    }

    #[inline]
    fn pull(&mut self, vertex: usize) {
        self.max[vertex] = self.max[2 * vertex].max(self.max[2 * vertex + 1]) + self.add[vertex];
    }

    /// The greatest value.
    pub(super) fn greatest(&self) -> i64 {
        self.max[1]
    }

    /// The value at a slot.
    pub(super) fn at(&self, slot: u32) -> i64 {
        let mut vertex = slot as usize + self.size;
        let mut value = self.max[vertex];
        while vertex > 1 {
            vertex >>= 1;
            value += self.add[vertex];
        }
        value
    }

    /// A slot whose value is at least `least`, if there is one: the first, or where both halves have some, the one that `right` says.
    pub(super) fn find(&self, least: i64, mut right: impl FnMut() -> bool) -> Option<u32> {
        if self.max[1] < least {
            return None;
        }
        let (mut vertex, mut above) = (1, 0);
        while vertex < self.size {
            above += self.add[vertex];
            let fits = |v: usize| self.max[v] + above >= least;
            let (left, other) = (2 * vertex, 2 * vertex + 1);
            vertex = if !fits(left) || (fits(other) && right()) { other } else { left };
        }
        Some((vertex - self.size) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_array() {
        let mut plain: Vec<i64> = (0..21).map(|i| i * 7 % 5).collect();
        let mut tree = MaxTree::default();
        tree.build(32, plain.iter().copied(), -100);
        for round in 0..200i64 {
            let (from, to) = ((round * 13 % 21) as usize, (round * 29 % 22) as usize);
            let value = round % 9 - 4;
            tree.add(from as u32, to as u32, value);
            if from < to {
                plain[from..to].iter_mut().for_each(|p| *p += value);
            }
            let greatest = *plain.iter().max().expect("not empty");
            assert_eq!(tree.greatest(), greatest);
            let first = plain.iter().position(|p| *p == greatest).map(|p| p as u32);
            assert_eq!(tree.find(greatest, || false), first);
            assert_eq!(tree.find(greatest + 1, || false), None);
            for (slot, value) in plain.iter().enumerate() {
                assert_eq!(tree.at(slot as u32), *value);
            }
        }
    }
}
