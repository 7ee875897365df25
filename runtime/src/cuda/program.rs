//! A program as kernels with arguments: what is captured into its graph.

use super::CudaDevice;
use crate::{
    RuntimeError,
    device::{RunOptions, RunReport},
    resolve::{Call, Region},
};
use cuda::{Access, Function, GraphExec, Places, Read, Status, Tag, Write, encode};
use graph::{Graph, OpFacts, ValueId};
use ops::{
    Signature,
    cuda::{CudaRegistry, on_architecture},
};
use std::{collections::BTreeMap, time::Instant};

/// What the host has written, and every version of a state.
pub(super) const EXTERNAL: Tag = Tag(1);
/// What lies in scratch memory and in the status.
const SCRATCH: Tag = Tag(2);

/// A launch with everything but its stream.
struct Prepared {
    function: Function,
    grid: u32,
    block: u32,
    args: Vec<Vec<u8>>,
    access: Access,
}

/// The launches of one call.
struct Step {
    call: usize,
    node: usize,
    launches: Vec<Prepared>,
    /// Address and bytes of each output.
    outputs: Vec<(u64, u64)>,
}

/// A prepared program.
#[derive(Default)]
pub(super) struct Program {
    steps: Vec<Step>,
    status: u64,
    total_calls: usize,
    /// Node and operator of each call.
    names: Vec<(String, String)>,
    /// Whether a node runs more than once.
    repeated: Vec<bool>,
    pub(super) graph: Option<GraphExec>,
}

impl Program {
    /// Node and operator of a call.
    pub(super) fn name(&self, call: u32) -> (String, String) {
        self.names.get(call as usize).cloned().unwrap_or_default()
    }

    /// Compiles and loads every kernel, and computes all arguments.
    pub(super) fn prepare(
        device: &mut CudaDevice,
        graph: &Graph,
        calls: &[Call],
    ) -> Result<Program, RuntimeError> {
        let status = device.arena()?.status();
        let architecture = device.driver.get_mut().device().architecture;
        let mut program = Program {
            status,
            total_calls: calls.len(),
            repeated: vec![false; graph.nodes.len()],
            ..Program::default()
        };
        let number = (device.programs.len() as u64 + 1) << 48;
        let mut tags: BTreeMap<ValueId, Tag> = BTreeMap::new();
        for (index, call) in calls.iter().enumerate() {
            let node = graph.node(call.node);
            program.names.push((node.name.to_string(), node.op.to_string()));
            program.repeated[call.node.index()] |= call.recompute;
            let refuse =
                |what| RuntimeError::Prepare { node: node.name.to_string(), op: node.op.to_string(), what };
            let facts = CudaRegistry.facts(graph, call.node).map_err(refuse)?;
            let read: Vec<Option<Tag>> =
                node.inputs.iter().map(|v| v.map(|v| tags.get(&v).copied().unwrap_or(EXTERNAL))).collect();
            for (o, v) in node.outputs.iter().enumerate() {
                let view = facts.views.iter().find(|f| f.output == o);
                let source = view.and_then(|f| read.get(f.input).copied().flatten());
                let commits = facts.commits.iter().any(|c| c.0 == o);
                let own =
                    if commits { EXTERNAL } else { Tag(number | (index as u64) << 16 | (o as u64 + 16)) };
                tags.insert(*v, source.unwrap_or(own));
            }
            if call.is_view {
                continue;
            }
            let address = |device: &CudaDevice, r: &Region| device.place(r.offset, r.len);
            let mut places = Places { status, call: index as u32, ..Places::default() };
            for r in &call.inputs {
                places.inputs.push(r.as_ref().map_or(Ok(0), |r| address(device, r))?);
            }
            for r in &call.outputs {
                places.outputs.push(address(device, r)?);
            }
            if let Some(r) = &call.workspace {
                places.workspace = address(device, r)?;
            }
            let mut access = Access { what: node.name.to_string(), ..Access::default() };
            for (i, (r, tag)) in call.inputs.iter().zip(&read).enumerate() {
                let Some(r) = r else { continue };
                access.reads.push(Read { at: places.inputs[i], len: r.len, tag: *tag });
            }
            for (o, (r, v)) in call.outputs.iter().zip(&node.outputs).enumerate() {
                if !facts.views.iter().any(|f| f.output == o) {
                    let tag = tags.get(v).copied().unwrap_or(SCRATCH);
                    access.writes.push(Write { at: places.outputs[o], len: r.len, tag });
                }
            }
            if let Some(r) = &call.workspace {
                access.writes.push(Write { at: places.workspace, len: r.len, tag: SCRATCH });
            }
            let op = ops::find(&node.op).ok_or_else(|| refuse("this runtime does not know it".to_owned()))?;
            let signature = Signature::of(graph, node);
            on_architecture(&signature, architecture).map_err(|e| refuse(e.to_string()))?;
            let kernels = op.cuda(&signature).map_err(|e| refuse(e.to_string()))?;
            let mut launches = Vec::new();
            for launch in &kernels.launches {
                launches.push(Prepared {
                    function: device.function(launch)?,
                    grid: launch.grid,
                    block: launch.block,
                    args: encode(launch, &places),
                    access: access.clone(),
                });
                // What the first launch has overwritten is another value for the next ones.
                access
                    .reads
                    .retain(|r| !access.writes.iter().any(|w| w.at < r.at + r.len && r.at < w.at + w.len));
            }
            let outputs = places.outputs.iter().copied().zip(call.outputs.iter().map(|r| r.len)).collect();
            program.steps.push(Step { call: index, node: call.node.index(), launches, outputs });
        }
        Ok(program)
    }

    /// Issues everything in order. With options, each call is waited for and looked at.
    pub(super) fn issue(
        &self,
        device: &mut CudaDevice,
        mut look: Option<(RunOptions, &mut RunReport)>,
    ) -> Result<(), RuntimeError> {
        let compute = device.compute;
        let to = Write { at: self.status, len: Status::BYTES as u64, tag: SCRATCH };
        let zeroed = device.driver.get_mut().zero(to, compute, "the status");
        device.checked(zeroed)?;
        if let Some((options, report)) = &mut look
            && options.measure
        {
            report.call_ns = vec![0; self.total_calls];
        }
        let mut hashes: BTreeMap<usize, blake3::Hash> = BTreeMap::new();
        for step in &self.steps {
            let start = Instant::now();
            for l in &step.launches {
                let driver = device.driver.get_mut();
                let done = driver.launch(l.function, l.grid, l.block, &l.args, compute, &l.access);
                device.checked(done)?;
            }
            let Some((options, report)) = &mut look else { continue };
            if options.measure {
                let waited = device.driver.get_mut().synchronize(compute);
                device.checked(waited)?;
                report.call_ns[step.call] = start.elapsed().as_nanos() as u64;
            }
            if options.check_recompute && self.repeated[step.node] {
                let mut h = blake3::Hasher::new();
                for (at, len) in &step.outputs {
                    let mut bytes = vec![0; *len as usize];
                    let from = Read { at: *at, len: *len, tag: None };
                    let read =
                        device.driver.get_mut().download(from, &mut bytes, compute, "a recomputed value");
                    device.checked(read)?;
                    h.update(&bytes);
                }
                let hash = h.finalize();
                if *hashes.entry(step.node).or_insert(hash) != hash {
                    let (node, op) = self.name(step.call as u32);
                    return Err(RuntimeError::RecomputeDiffers { node, op });
                }
            }
        }
        Ok(())
    }
}
