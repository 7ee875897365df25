//! The generator Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

use crate::cpu::Io;

/// Elements whose bits are made together.
pub const GROUP: usize = 128;

/// Counters a group takes: each gives four words.
const COUNTERS: usize = GROUP / 4;

/// The random bits of one node in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    /// Mixed into the high word of the counter.
    high: u32,
    id: u32,
    step: u32,
}

impl Stream {
    /// The bits of node `id` in step `step` under `seed`.
    pub fn new(seed: i64, id: u32, step: i64) -> Stream {
        let (seed, step) = (seed as u64, step as u64);
        Stream {
            key: [seed as u32, (seed >> 32) as u32],
            high: ((step >> 32) as u32).rotate_left(16),
            id,
            step: step as u32,
        }
    }

    /// With seed and step from two inputs.
    pub(super) fn of(io: &Io<'_>, first: usize, id: u32) -> Stream {
        Stream::new(io.input::<i64>(first)[0], id, io.input::<i64>(first + 1)[0])
    }

    /// Words of elements `group * GROUP ..`: a counter's four words go to elements that are `GROUP / 4` apart.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    pub fn group(&self, group: usize) -> [u32; GROUP] {
        let first = (group * COUNTERS) as u64;
        let mut c = [[0u32; COUNTERS]; 4];
        for l in 0..COUNTERS {
            let counter = first + l as u64;
            c[0][l] = counter as u32;
            c[1][l] = (counter >> 32) as u32 ^ self.high;
            c[2][l] = self.id;
            c[3][l] = self.step;
        }
        let words = rounds(c, self.key);
        let mut out = [0; GROUP];
        for (word, lanes) in words.iter().enumerate() {
            out[word * COUNTERS..(word + 1) * COUNTERS].copy_from_slice(lanes);
        }
        out
    }

    /// The word of one element.
    pub fn word(&self, element: usize) -> u32 {
        self.group(element / GROUP)[element % GROUP]
    }
}

/// Ten rounds on several counters side by side.
#[inline(always)]
fn rounds<const L: usize>(mut c: [[u32; L]; 4], mut key: [u32; 2]) -> [[u32; L]; 4] {
    for _ in 0..10 {
        let mut next = [[0u32; L]; 4];
        for l in 0..L {
            let a = u64::from(c[0][l]) * 0xD251_1F53;
            let b = u64::from(c[2][l]) * 0xCD9E_8D57;
            next[0][l] = (b >> 32) as u32 ^ c[1][l] ^ key[0];
            next[1][l] = b as u32;
            next[2][l] = (a >> 32) as u32 ^ c[3][l] ^ key[1];
            next[3][l] = a as u32;
        }
        c = next;
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
        rounds(counter.map(|c| [c]), key).map(|[w]| w)
    }

    /// The known answers published with the generator.
    #[test]
    fn known_answers() {
        assert_eq!(one([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(one([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = one([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn streams_differ_by_seed_node_and_step() {
        let words = |s: Stream| (s.group(0), s.group(5));
        let base = words(Stream::new(7, 3, 1));
        for other in [(8, 3, 1), (7, 4, 1), (7, 3, 2), (7 + (1 << 32), 3, 1), (7, 3, 1 + (1 << 32))] {
            assert_ne!(words(Stream::new(other.0, other.1, other.2)), base);
        }
        let s = Stream::new(7, 3, 1);
        assert_eq!(words(s), base);
        assert_eq!((s.word(0), s.word(5 * GROUP + 10)), (base.0[0], base.1[10]));
    }
}
