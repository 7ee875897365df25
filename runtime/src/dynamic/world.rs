//! What the machine of online rematerialization decides over: tensors in a pool, kernels of a device.

use super::pool::Pool;
use crate::{
    RuntimeError,
    device::{Eager, Prepared},
    resolve::Region,
};
use dtr::{Event, OpId};
use graph::Literal;
use plan::align;
use std::{collections::BTreeMap, sync::Arc};

/// Bytes of the host.
pub(crate) enum HostBytes<'d> {
    /// What the step is given.
    Given(&'d [u8]),
    Constant(Literal),
}

/// How an op comes to its outputs.
pub(crate) enum Work<'d> {
    /// They lie outside of the pool.
    Resident,
    /// A copy from the host.
    Host(HostBytes<'d>),
    /// Views of arguments.
    View,
    /// Its scratch is there: bytes that will be used on the host.
    Lend,
    /// A kernel; `None` when only memory is simulated.
    Kernel(Option<Prepared>),
}

/// An op of the machine's program.
pub(crate) struct OpRecord<'d> {
    pub(crate) work: Work<'d>,
    /// Arguments by position; `None` for one left out.
    pub(crate) inputs: Vec<Option<u32>>,
    /// First output tensor.
    pub(crate) first: u32,
    pub(crate) outputs: u32,
    /// Scratch bytes.
    pub(crate) workspace: u64,
    /// Whether its outputs are cheap to make again.
    pub(crate) cheap: bool,
    /// Output and argument that share a place at the first execution: nothing reads the argument afterwards.
    pub(crate) over: Option<(u32, u32)>,
    /// Name and operator of the node.
    pub(crate) name: Arc<str>,
    pub(crate) op: Arc<str>,
}

/// A tensor of the machine's program.
#[derive(Clone, Copy)]
pub(crate) struct TensorRecord {
    pub(crate) storage: u32,
    /// From the storage's first byte.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A storage of the machine's program.
#[derive(Clone, Copy)]
pub(crate) struct StorageRecord {
    /// Bytes in the pool, aligned; 0 if it lies elsewhere.
    pub(crate) bytes: u64,
    /// First byte in the arena.
    pub(crate) at: Option<u64>,
    /// Never needed again.
    gone: bool,
    /// Tensors on it that something may still read.
    pub(crate) readers: u32,
    /// The op that makes it.
    op: u32,
}

/// What a run did with its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolReport {
    /// Most bytes in use at once, workspaces included.
    pub peak: u64,
    /// Bytes that were moved to make longer holes.
    pub moved: u64,
}

/// Somebody who holds much of a full pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of the node that made it.
    pub node: String,
    /// Bytes.
    pub bytes: u64,
}

pub(crate) struct PoolWorld<'d> {
    /// `None` when only memory is simulated.
    pub(crate) device: Option<&'d mut dyn Eager>,
    pub(crate) pool: Pool,
    /// First byte of the pool in the arena.
    base: u64,
    pub(crate) ops: Vec<OpRecord<'d>>,
    pub(crate) tensors: Vec<TensorRecord>,
    pub(crate) storages: Vec<StorageRecord>,
    /// Where the op that was last asked about will be placed.
    reserved: u64,
    /// Which one that was.
    asked: u32,
    /// Bytes it needs.
    wanted: u64,
    /// Bytes that were moved.
    moved: u64,
    /// Ops that ran.
    ran: Vec<bool>,
    /// Hash of each op's first outputs, if recomputation is checked.
    hashes: Option<BTreeMap<u32, blake3::Hash>>,
}

impl<'d> PoolWorld<'d> {
    pub(crate) fn new(
        device: Option<&'d mut dyn Eager>,
        base: u64,
        bytes: u64,
        check: bool,
    ) -> PoolWorld<'d> {
        PoolWorld {
            device,
            pool: Pool::new(bytes),
            base,
            ops: Vec::new(),
            tensors: Vec::new(),
            storages: Vec::new(),
            reserved: 0,
            asked: 0,
            wanted: 0,
            moved: 0,
            ran: Vec::new(),
            hashes: check.then(BTreeMap::new),
        }
    }

    /// Forgets all ops and frees the pool.
    pub(crate) fn clear(&mut self) {
        self.pool = Pool::new(self.pool.bytes());
        self.ops.clear();
        self.tensors.clear();
        self.storages.clear();
        self.ran.clear();
        self.hashes.iter_mut().for_each(BTreeMap::clear);
        (self.reserved, self.asked, self.wanted, self.moved) = (0, 0, 0, 0);
    }

    /// First byte of the pool in the arena.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn report(&self) -> PoolReport {
        PoolReport { peak: self.pool.peak(), moved: self.moved }
    }

    /// Declares a storage of the op that will be declared next.
    pub(crate) fn storage(&mut self, bytes: u64, at: Option<u64>) -> u32 {
        let bytes = if at.is_some() { 0 } else { align(bytes) };
        // What has no elements lies anywhere.
        let at = if bytes == 0 { at.or(Some(self.base)) } else { at };
        self.storages.push(StorageRecord { bytes, at, gone: false, readers: 0, op: self.ops.len() as u32 });
        self.storages.len() as u32 - 1
    }

    /// Declares an op that only reads a tensor, so that it is brought back.
    pub(crate) fn touch_record(&mut self, tensor: u32) {
        let storage = self.storage(0, None);
        let first = self.tensors.len() as u32;
        self.tensors.push(TensorRecord { storage, offset: 0, bytes: 0 });
        self.ops.push(OpRecord {
            work: Work::Resident,
            inputs: vec![Some(tensor)],
            first,
            outputs: 1,
            workspace: 0,
            cheap: true,
            over: None,
            name: "read".into(),
            op: "Read".into(),
        });
    }

    /// Declares an op that needs so many bytes for a moment: afterwards they are free, to be lent.
    pub(crate) fn lend_record(&mut self, bytes: u64, of: Option<u32>, name: Arc<str>) {
        let storage = self.storage(0, None);
        let first = self.tensors.len() as u32;
        self.tensors.push(TensorRecord { storage, offset: 0, bytes: 0 });
        self.ops.push(OpRecord {
            work: Work::Lend,
            inputs: of.map(Some).into_iter().collect(),
            first,
            outputs: 1,
            workspace: bytes,
            cheap: true,
            over: None,
            name,
            op: "Read".into(),
        });
    }

    /// Gives pages where nothing lies back to the system.
    pub(crate) fn discard(&mut self) {
        if let Some(device) = self.device.as_deref_mut() {
            self.pool.holes().for_each(|(at, len)| device.discard(self.base + at, len));
        }
    }

    /// Bytes that the op which was last asked about needs at once.
    pub(crate) fn needed(&self) -> u64 {
        self.wanted
    }

    /// The op that was last asked about.
    pub(crate) fn asked(&self) -> u32 {
        self.asked
    }

    /// Where a resident tensor lies.
    pub(crate) fn region(&self, tensor: u32) -> Option<Region> {
        let t = self.tensors[tensor as usize];
        let at = self.storages[t.storage as usize].at?;
        Some(Region { offset: at + t.offset, len: t.bytes })
    }

    /// The largest holders of the pool, what is lent among them.
    pub(crate) fn holders(&self, most: usize) -> Vec<Holder> {
        let mut all: Vec<&StorageRecord> =
            self.storages.iter().filter(|s| s.at.is_some() && s.bytes > 0).collect();
        all.sort_by_key(|s| (std::cmp::Reverse(s.bytes), s.op));
        let holder = |s: &&StorageRecord| Holder {
            node: self.ops.get(s.op as usize).map_or_else(String::new, |o| o.name.to_string()),
            bytes: s.bytes,
        };
        let mut holders: Vec<Holder> = all.iter().take(most).map(holder).collect();
        let lent = self.pool.lent();
        if lent > 0 {
            let at = holders.partition_point(|h| h.bytes >= lent);
            holders.insert(at, Holder { node: "(read on the host)".to_owned(), bytes: lent });
            holders.truncate(most);
        }
        holders
    }

    /// Bytes of the places that an op's outputs need.
    fn outputs_bytes(&self, op: &OpRecord<'_>, first: bool) -> u64 {
        let shared = op.over.filter(|_| first).map(|(o, _)| op.first + o);
        let own = (op.first..op.first + op.outputs).filter(|t| Some(*t) != shared);
        let own = own.map(|t| self.tensors[t as usize].storage).filter(|s| self.is_own(op, *s));
        own.map(|s| self.storages[s as usize].bytes).sum()
    }

    /// Whether a storage is made by this op, not a view on an argument's.
    fn is_own(&self, op: &OpRecord<'_>, storage: u32) -> bool {
        !op.inputs.iter().flatten().any(|i| self.tensors[*i as usize].storage == storage)
    }

    fn execute(&mut self, id: u32, first: bool) -> Result<(), RuntimeError> {
        let op = &self.ops[id as usize];
        let over = op.over.filter(|_| first);
        if self.ran.len() <= id as usize {
            self.ran.resize(self.ops.len(), false);
        }
        self.ran[id as usize] = true;
        if matches!(op.work, Work::Resident | Work::View | Work::Lend) {
            return Ok(());
        }
        let workspace = align(op.workspace);
        // Scratch lies on the side of the hole.
        let mut at = self.reserved + if op.cheap { workspace } else { 0 };
        let scratch = if op.cheap { self.reserved } else { self.reserved + self.wanted - workspace };
        let mut outputs = Vec::with_capacity(op.outputs as usize);
        let mut placed: Vec<(u32, u64)> = Vec::new();
        for t in op.first..op.first + op.outputs {
            let TensorRecord { storage, offset, bytes } = self.tensors[t as usize];
            let s = self.storages[storage as usize];
            let start = if let Some((_, input)) = over.filter(|(o, _)| op.first + o == t) {
                let from = self.tensors[input as usize].storage;
                self.storages[from as usize].at.unwrap_or(self.reserved)
            } else if s.bytes == 0 || !self.is_own(op, storage) {
                s.at.unwrap_or(self.reserved)
            } else {
                at += s.bytes;
                if s.at.is_none() && !s.gone {
                    placed.push((storage, at - s.bytes));
                }
                at - s.bytes
            };
            outputs.push(Region { offset: start + offset, len: bytes });
        }
        self.pool.touch(self.wanted);
        let refuse =
            |what: String| RuntimeError::Kernel { node: op.name.to_string(), op: op.op.to_string(), what };
        if let Some(device) = self.device.as_deref_mut() {
            match &op.work {
                Work::Host(HostBytes::Given(bytes)) => device.write(outputs[0].offset, bytes),
                Work::Host(HostBytes::Constant(l)) => device.write(outputs[0].offset, l.bytes()),
                Work::Kernel(Some(kernel)) => {
                    let mut inputs = Vec::with_capacity(op.inputs.len());
                    for i in &op.inputs {
                        inputs.push(match i {
                            None => None,
                            Some(t) => {
                                let t = self.tensors[*t as usize];
                                let at = self.storages[t.storage as usize].at;
                                let at =
                                    at.ok_or_else(|| refuse("an argument is not there (a bug)".to_owned()))?;
                                Some(Region { offset: at + t.offset, len: t.bytes })
                            }
                        });
                    }
                    let scratch = (op.workspace > 0).then_some(Region { offset: scratch, len: op.workspace });
                    device.call(kernel, &inputs, &outputs, scratch).map_err(refuse)?;
                }
                _ => {}
            }
            if let Some(hashes) = &mut self.hashes {
                let mut h = blake3::Hasher::new();
                let mut buffer = Vec::new();
                for o in &outputs {
                    buffer.resize(o.len as usize, 0);
                    device.read(o.offset, &mut buffer);
                    h.update(&buffer);
                }
                let hash = h.finalize();
                if *hashes.entry(id).or_insert(hash) != hash {
                    let (node, op) = (op.name.to_string(), op.op.to_string());
                    return Err(RuntimeError::RecomputeDiffers { node, op });
                }
            }
        }
        if let Some((o, input)) = over {
            let (to, from) =
                (self.tensors[(op.first + o) as usize].storage, self.tensors[input as usize].storage);
            // The argument's bytes are the output's now; the machine is told when its last reader lets go.
            if let Some(at) = self.storages[from as usize].at.take() {
                self.pool.pass_on(at - self.base, to);
                self.storages[to as usize].at = Some(at);
            }
        }
        for (storage, at) in placed {
            let bytes = self.storages[storage as usize].bytes;
            self.pool.take(at - self.base, bytes, storage);
            self.storages[storage as usize].at = Some(at);
        }
        Ok(())
    }
}

impl dtr::World for PoolWorld<'_> {
    fn event(&mut self, event: Event) -> Result<Option<u64>, dtr::Error> {
        match event {
            Event::Execute { op, first, .. } => {
                self.execute(op.0, first).map_err(|e| dtr::Error::World(Box::new(e)))?;
            }
            Event::Drop { storage, cause, .. } => {
                let s = &mut self.storages[storage.index()];
                s.gone |= cause == dtr::Cause::Gone;
                if s.bytes > 0
                    && let Some(at) = s.at.take()
                {
                    self.pool.free(at - self.base);
                }
            }
            Event::Forget { storage, .. } => self.storages[storage.index()].gone = true,
            Event::Pin { .. } => {}
        }
        Ok(None)
    }

    fn fits(&mut self, op: OpId, _: u64, _: u64, _: u64) -> bool {
        let record = &self.ops[op.index()];
        let bytes = match record.work {
            Work::Resident | Work::View => 0,
            _ => {
                self.outputs_bytes(record, !self.ran.get(op.index()).copied().unwrap_or(false))
                    + align(record.workspace)
            }
        };
        (self.asked, self.wanted) = (op.index() as u32, bytes);
        if bytes == 0 {
            self.reserved = self.base;
            return true;
        }
        let cheap = record.cheap;
        let mut at = self.pool.find(bytes, cheap);
        if at.is_none() && self.pool.bytes() - self.pool.live() >= bytes {
            for (storage, from, to, len) in self.pool.slide(bytes) {
                if from != to {
                    if let Some(device) = self.device.as_deref_mut() {
                        device.shift(self.base + from, self.base + to, len);
                    }
                    self.moved += len;
                    self.storages[storage as usize].at = Some(self.base + to);
                }
            }
            at = self.pool.find(bytes, cheap);
        }
        self.reserved = self.base + at.unwrap_or(0);
        at.is_some()
    }
}
