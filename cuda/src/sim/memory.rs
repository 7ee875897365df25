//! The simulated device's memory, and what is known of each of its bytes.

use super::clock::{Clock, Moment};
use crate::{Read, Tag, Write};
use std::collections::BTreeMap;

/// One allocation.
struct Block {
    words: Vec<u128>,
    bytes: u64,
}

/// What is known of a run of bytes.
#[derive(Clone)]
struct Run {
    end: u64,
    written: Option<(Moment, Tag, String)>,
    /// The last read by each actor since.
    reads: Vec<(Moment, String)>,
}

/// All allocations.
#[derive(Default)]
pub(super) struct Memory {
    blocks: BTreeMap<u64, Block>,
    /// By first byte; together they are the allocations.
    runs: BTreeMap<u64, Run>,
    pub(super) used: u64,
}

/// Alignment of allocations.
const ALIGN: u64 = 256;

impl Memory {
    /// Takes memory, filled with what no program should read.
    pub(super) fn alloc(&mut self, bytes: u64) -> u64 {
        let words = vec![u128::from_ne_bytes([0xA5; 16]); (bytes + ALIGN).div_ceil(16) as usize + 1];
        let at = (words.as_ptr() as u64).next_multiple_of(ALIGN);
        self.blocks.insert(at, Block { words, bytes });
        if bytes > 0 {
            self.runs.insert(at, Run { end: at + bytes, written: None, reads: Vec::new() });
        }
        self.used += bytes;
        at
    }

    pub(super) fn free(&mut self, at: u64) -> Result<(), String> {
        let block = self.blocks.remove(&at).ok_or("not an allocation")?;
        self.runs.retain(|start, _| *start < at || *start >= at + block.bytes);
        self.used -= block.bytes;
        drop(block.words);
        Ok(())
    }

    /// The bytes of a place.
    pub(super) fn bytes(&mut self, at: u64, len: u64) -> Result<&mut [u8], String> {
        let outside = || format!("{len} bytes at {at:#x} lie outside of every allocation");
        let (start, block) = self.blocks.range_mut(..=at).next_back().ok_or_else(outside)?;
        if at + len > start + block.bytes {
            return Err(outside());
        }
        let skip = (at - block.words.as_ptr() as u64) as usize;
        // SAFETY: the block owns the words, and the range was checked to lie inside of them.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(block.words.as_mut_ptr().cast::<u8>().add(skip), len as usize)
        })
    }

    /// Cuts runs so that some of them make up the place exactly; their starts.
    fn cut(&mut self, at: u64, len: u64) -> Result<Vec<u64>, String> {
        self.bytes(at, len)?;
        for edge in [at, at + len] {
            if let Some((start, run)) = self.runs.range(..edge).next_back()
                && run.end > edge
            {
                let (start, tail) = (*start, run.clone());
                if let Some(head) = self.runs.get_mut(&start) {
                    head.end = edge;
                }
                self.runs.insert(edge, tail);
            }
        }
        Ok(self.runs.range(at..at + len).map(|(s, _)| *s).collect())
    }

    /// Takes bytes for not written.
    pub(super) fn forget(&mut self, at: u64, len: u64) {
        for start in self.cut(at, len).unwrap_or_default() {
            if let Some(run) = self.runs.get_mut(&start) {
                (run.written, run.reads) = (None, Vec::new());
            }
        }
    }

    /// Whether a read may happen, and notes it.
    pub(super) fn read(&mut self, r: &Read, now: Moment, clock: &Clock, what: &str) -> Result<(), String> {
        if r.len == 0 {
            return Ok(());
        }
        for start in self.cut(r.at, r.len)? {
            let Some(run) = self.runs.get_mut(&start) else { continue };
            match &run.written {
                None => return Err(format!("{what} reads bytes at {start:#x} that nothing has written")),
                Some((m, _, writer)) if !clock.knows(*m) => {
                    return Err(format!(
                        "{what} reads bytes at {start:#x} without waiting for {writer}, which writes them"
                    ));
                }
                Some((_, tag, writer)) if r.tag.is_some_and(|t| t != *tag) => {
                    return Err(format!(
                        "{what} reads bytes at {start:#x} that {writer} has overwritten meanwhile"
                    ));
                }
                Some(_) => {}
            }
            run.reads.retain(|(m, _)| m.actor != now.actor);
            run.reads.push((now, what.to_owned()));
        }
        Ok(())
    }

    /// Whether a write may happen, and notes it.
    pub(super) fn write(&mut self, w: &Write, now: Moment, clock: &Clock, what: &str) -> Result<(), String> {
        if w.len == 0 {
            return Ok(());
        }
        let starts = self.cut(w.at, w.len)?;
        for start in &starts {
            let Some(run) = self.runs.get(start) else { continue };
            if let Some((m, _, writer)) = &run.written
                && !clock.knows(*m)
            {
                return Err(format!(
                    "{what} writes bytes at {start:#x} without waiting for {writer}, which writes them too"
                ));
            }
            if let Some((_, reader)) = run.reads.iter().find(|(m, _)| !clock.knows(*m)) {
                return Err(format!(
                    "{what} writes bytes at {start:#x} without waiting for {reader}, which still reads them"
                ));
            }
        }
        // One run again, so that their number stays small.
        for start in &starts {
            self.runs.remove(start);
        }
        let written = Some((now, w.tag, what.to_owned()));
        self.runs.insert(w.at, Run { end: w.at + w.len, written, reads: Vec::new() });
        Ok(())
    }
}
