//! Recomputation ordered by need (`--order-remats`), so that locks cannot starve it.
//!
//! The reference locks every argument that is there while it recomputes the others, at every level of the recursion: memory fills with
//! locked values although each single op would fit. Here an op on the stack takes its arguments one by one, in the order of Sethi and Ullman:
//! those first that need much and leave little. Only what has been taken is locked. What is there but not yet taken stays out of the pool
//! (it is wanted), but when the pool is empty it goes after all, the one needed latest first, and is recomputed in its turn.
//!
//! So a recomputation succeeds whenever pinned and held bytes plus the op's need fit the budget, need being computed as if nothing else
//! were there.

use crate::ids::NONE;
use crate::live::MATERIAL;
use crate::machine::Machine;
use crate::program::Program;

#[derive(Default)]
pub(crate) struct Order {
    /// Each op's arguments in the order of taking, laid out as the program's.
    lines: Vec<u32>,
    /// Bytes that suffice to run each op from nothing but constants.
    needs: Vec<u64>,
    entries: Vec<(u64, u64, u32)>,
}

impl Order {
    /// Takes in the ops declared since the last call.
    pub(crate) fn extend(&mut self, program: &Program) {
        for op in &program.ops[self.needs.len()..] {
            self.entries.clear();
            for &arg in program.args(op) {
                let tensor = program.tensors[arg as usize];
                let constant = program.ops[tensor.op as usize].constant;
                let (need, bytes) = match constant {
                    true => (0, 0),
                    false => {
                        (self.needs[tensor.op as usize], program.storages[tensor.storage as usize].bytes)
                    }
                };
                self.entries.push((need, bytes, arg));
            }
            self.entries.sort_by_key(|&(need, bytes, _)| std::cmp::Reverse(need.saturating_sub(bytes)));
            let (mut taken, mut need) = (0u64, op.bytes);
            for (index, &(own, bytes, arg)) in self.entries.iter().enumerate() {
                let storage = program.tensors[arg as usize].storage;
                let again = self.entries[..index]
                    .iter()
                    .any(|&(_, _, before)| program.tensors[before as usize].storage == storage);
                need = need.max(taken.saturating_add(own));
                taken = taken.saturating_add(if again { 0 } else { bytes });
                self.lines.push(arg);
            }
            self.needs.push(need.max(taken.saturating_add(op.bytes)));
        }
    }

    /// Appends an op's arguments in the order of taking.
    pub(crate) fn line_up(&self, program: &Program, op: u32, into: &mut Vec<u32>) {
        let op = &program.ops[op as usize];
        into.extend_from_slice(&self.lines[op.args as usize..(op.args + op.arity) as usize]);
    }
}

/// How many wanted storages one command may evict, for each op of the program, before it is given up.
const PATIENCE: usize = 64;

impl Machine {
    /// Locks all arguments of the topmost op if they are there; if some have gone again, the op waits for them again.
    pub(crate) fn take_all(&mut self, start: u32) -> bool {
        let line = start as usize..self.waiting.len();
        if !line.clone().all(|index| self.has(self.waiting[index])) {
            if let Some(frame) = self.frames.last_mut() {
                frame.next = start;
            }
            return false;
        }
        for index in line {
            let storage = self.storage(self.waiting[index]);
            self.live.at_mut(storage).wants -= 1;
            self.lock(storage);
        }
        true
    }

    /// Of the resident storages that ops on the stack want, the one needed latest.
    pub(crate) fn waiting_victim(&mut self) -> Option<u32> {
        self.order.as_ref()?;
        self.forced += 1;
        if self.forced > PATIENCE * self.program.ops.len() {
            return None;
        }
        let mark = self.live.fresh_mark();
        let (mut victim, mut taken, mut end) = (None, None, self.waiting.len());
        for frame in (0..self.frames.len()).rev() {
            let frame = self.frames[frame];
            for index in frame.start as usize..end {
                let storage = self.storage(self.waiting[index]);
                if self.live.set_mark(storage, mark) {
                    let entry = self.live.at(storage);
                    if entry.is(MATERIAL) && entry.locks == 0 && entry.bytes > 0 {
                        debug_assert_eq!(entry.slot, NONE);
                        if index >= frame.next as usize {
                            victim = Some(storage);
                        } else {
                            taken = Some(storage);
                        }
                    }
                }
            }
            end = frame.start as usize;
        }
        victim.or(taken)
    }
}
