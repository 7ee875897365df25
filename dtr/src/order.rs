//! Recomputation ordered by need (`--order-remats`), so that locks cannot starve it.
//!
//! The reference locks every argument that is there while it recomputes the others, at every level of the recursion: memory fills with
//! locked values although each single op would fit. Here an op on the stack gets its arguments one by one, in the better of two orders:
//! earlier ones first (what a later one is computed from is then there), or, after Sethi and Ullman, those first that need much and leave
//! little. What an op on the stack wants stays out of the pool, but when the pool is empty it goes after all: first what an op has not yet
//! had its turn for, the one needed latest first, then even what it has got already, which is recomputed before the op runs.
//!
//! A recomputation succeeds whenever pinned and held bytes plus the op's need fit the budget, need being computed as if nothing else were
//! there. Beyond that it often does, because much else is there; patience is limited by a count.

use crate::ids::NONE;
use crate::live::MATERIAL;
use crate::machine::Machine;
use crate::program::{Op, Program, Tensor};

/// How many ops a need given what has been taken may look at; beyond them it is the need from nothing.
const LOOKS: usize = 512;

#[derive(Default)]
pub(crate) struct Order {
    /// Each op's arguments in the order of taking, laid out as the program's.
    lines: Vec<u32>,
    /// Bytes that suffice to run each op from nothing but constants.
    needs: Vec<u64>,
    /// Each op's need given what is taken, for the mark it carries.
    given: Vec<(u32, u64)>,
    mark: u32,
    looks: usize,
    taken: Taken,
}

/// Storages that are held while the next argument is taken: an op may have thousands of arguments.
#[derive(Default)]
struct Taken {
    /// By storage: the number of the line that took it.
    by: Vec<u32>,
    line: u32,
    /// The first tensor of the earliest one.
    earliest: Option<u32>,
}

impl Taken {
    /// Begins a line with nothing taken.
    fn clear(&mut self, storages: usize) {
        self.by.resize(storages.max(self.by.len()), 0);
        if self.line == u32::MAX {
            self.by.fill(0);
            self.line = 0;
        }
        self.line += 1;
        self.earliest = None;
    }

    fn add(&mut self, program: &Program, storage: u32) {
        self.by[storage as usize] = self.line;
        let root = program.storages[storage as usize].root;
        self.earliest = Some(self.earliest.map_or(root, |earliest| earliest.min(root)));
    }

    fn contains(&self, storage: u32) -> bool {
        self.by[storage as usize] == self.line
    }
}

impl Order {
    /// Takes in the ops declared since the last call.
    pub(crate) fn extend(&mut self, program: &Program) {
        self.given.resize(program.ops.len(), (0, 0));
        for op in &program.ops[self.needs.len()..] {
            let args = program.args(op);
            // Earlier ones first: a later one that is computed from them finds them there.
            let mut line = args.to_vec();
            line.sort_unstable();
            let mut need = self.need_in_line(program, op, &line);
            // Those first that need much and leave little.
            let mut other = args.to_vec();
            other.sort_by_key(|&arg| {
                let Tensor { op, storage } = program.tensors[arg as usize];
                std::cmp::Reverse(
                    self.needs[op as usize].saturating_sub(program.storages[storage as usize].bytes),
                )
            });
            let less = self.need_in_line(program, op, &other);
            if less <= need {
                (line, need) = (other, less);
            }
            self.lines.extend_from_slice(&line);
            self.needs.push(need);
        }
    }

    /// Bytes that suffice to take an op's arguments in this order and to run it.
    fn need_in_line(&mut self, program: &Program, op: &Op, line: &[u32]) -> u64 {
        self.taken.clear(program.storages.len());
        let (mut held, mut need) = (0u64, op.bytes);
        for &arg in line {
            let Tensor { op, storage } = program.tensors[arg as usize];
            if program.ops[op as usize].constant || self.taken.contains(storage) {
                continue;
            }
            self.mark += 1;
            self.looks = 0;
            need = need.max(held.saturating_add(self.need_given(program, op)));
            held = held.saturating_add(program.storages[storage as usize].bytes);
            self.taken.add(program, storage);
        }
        need.max(held.saturating_add(op.bytes))
    }

    /// Bytes beyond those taken that suffice to run an op when the storages taken are there. The depth of recursion is at most [`LOOKS`].
    fn need_given(&mut self, program: &Program, id: u32) -> u64 {
        let from_nothing = self.needs[id as usize];
        let op = &program.ops[id as usize];
        if self.taken.earliest.is_none_or(|earliest| op.first <= earliest) || self.looks >= LOOKS {
            return from_nothing;
        }
        let (mark, known) = self.given[id as usize];
        if mark == self.mark {
            return known;
        }
        self.looks += 1;
        let (mut held, mut need) = (0u64, op.bytes);
        let line = op.args as usize..(op.args + op.arity) as usize;
        for index in line.clone() {
            let Tensor { op, storage } = program.tensors[self.lines[index] as usize];
            if program.ops[op as usize].constant || self.taken.contains(storage) {
                continue;
            }
            need = need.max(held.saturating_add(self.need_given(program, op)));
            let again = self.lines[line.start..index]
                .iter()
                .any(|&before| program.tensors[before as usize].storage == storage);
            held = held.saturating_add(if again { 0 } else { program.storages[storage as usize].bytes });
        }
        let need = need.max(held.saturating_add(op.bytes)).min(from_nothing);
        self.given[id as usize] = (self.mark, need);
        need
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
