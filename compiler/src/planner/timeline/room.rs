//! Room for insertions where the slots have run out.
//!
//! Moves insert where something binds, so that the same few places fill up again and again. There only the neighbours are spread: a
//! layout of everything would cost as much as the sequence is long.

use std::collections::VecDeque;

use super::super::index::NONE;
use super::{Full, Timeline};

/// With fewer slots everything is spread.
const FEW_SLOTS: usize = 1 << 16;
/// Executions that are taken in at a time, either way.
const REACH: usize = 16;
/// With more executions than these everything is spread.
const MOST: usize = 1024;
/// Slots an execution before they are spread; fewer soon run out again.
const SPARSE: usize = 4;

impl Timeline<'_, '_> {
    /// Spreads the executions again, with room for `count` more before a slot. Slots change; the journal must be empty.
    pub(crate) fn make_room(&mut self, full: Full) {
        debug_assert!(self.journal.is_empty());
        if self.slots.len() > FEW_SLOTS && self.spread_near(full) {
            return;
        }
        let mut at = NONE;
        let mut steps = Vec::new();
        for (slot, &node) in self.slots.iter().enumerate() {
            if slot as u32 == full.before {
                at = steps.len() as u32;
            }
            if node != NONE {
                steps.push((node, self.variants[slot]));
            }
        }
        let at = at.min(steps.len() as u32);
        self.lay_out(&steps, at, 2 * full.count + 32);
    }

    /// Spreads the executions around a slot over the slots that they and their gaps have; false if too many would have to move.
    fn spread_near(&mut self, full: Full) -> bool {
        let mut inside: VecDeque<u32> = VecDeque::new();
        let (mut left, mut right) = (Some(full.before), full.before.checked_sub(1));
        while inside.len() <= MOST {
            for _ in 0..REACH {
                left = left.and_then(|l| self.before(l));
                if let Some(slot) = left {
                    inside.push_front(slot);
                }
                right = right.and_then(|r| self.after(r));
                inside.extend(right);
            }
            let low = left.and_then(|l| self.before(l)).map_or(1, |l| l + 1);
            let high = right.and_then(|r| self.after(r)).unwrap_or(self.end());
            let slots = (high - low) as usize;
            if slots >= SPARSE * (inside.len() + full.count) {
                self.spread_to(&Vec::from(inside), (low, slots), full);
                return true;
            }
            if left.is_none() && right.is_none() {
                return false;
            }
        }
        false
    }

    /// Moves executions to slots from `low` on, with extra room before the one at or behind `full.before`.
    fn spread_to(&mut self, inside: &[u32], (low, slots): (u32, usize), full: Full) {
        let extra = (2 * full.count + REACH).min(slots / 2);
        let gap = (slots - extra) / (inside.len() + 1);
        let moved: Vec<(u32, u32, u32)> =
            inside.iter().map(|&s| (s, self.slots[s as usize], self.variants[s as usize])).collect();
        for &(slot, _, _) in &moved {
            self.take(slot);
        }
        for (place, &(slot, node, variant)) in moved.iter().enumerate() {
            let room = if slot >= full.before { extra } else { 0 };
            self.put(node, low + ((place + 1) * gap + room) as u32 - 1, variant);
        }
    }
}
