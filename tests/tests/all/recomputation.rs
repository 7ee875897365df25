//! Every operator's gradient under forced recomputation: each value that its backward nodes read of the forward pass is dropped after the
//! forward pass and made again before they run. The schedules are written as plans, validated and run in one arena, with every overwrite
//! that the operators' facts offer there; gradients must be those of the reference interpreter, to the bit.
//!
//! Nodes whose own facts say that they must not run twice (`once`: choices that rounding could flip) are left alone. Dropout is not among
//! them: its masks come from a counter.

use compiler::{
    cost::{CostModel, DeviceProfile},
    emit,
    lower::lower,
    planner::{
        Planned, StopReason,
        offsets::{self, Buffer, Limits},
        outcome::{KeepAll, Layout},
        replay::{assemble, replay},
    },
};
use graph::{DType, Graph, Init, InputRole, Literal, NodeId, OpFacts, TensorType, ValueDef, ValueId};
use ops::{
    Builder, OPS, OpDef, OpError, Registry,
    case::{Case, Fill},
    cpu::interpret,
    grad::backward,
};
use plan::{Device, Place, Plan, ProgramKind, Step, plan_numerics};
use rand::{Rng, SeedableRng, rngs::StdRng};
use runtime::{CpuDevice, LoadOptions, RunOptions, Session, StepInputs, WeightSource};
use std::collections::{BTreeMap, BTreeSet};

/// A case with its gradients as outputs.
struct Training {
    graph: Graph,
    given: BTreeMap<ValueId, Literal>,
    /// Nodes of the forward pass.
    forward: BTreeSet<u32>,
    /// Nodes that must not run twice.
    once: BTreeSet<u32>,
}

fn literal(dtype: DType, shape: &[usize], elements: &[f64]) -> Literal {
    let bytes: Vec<u8> = elements.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
    Literal::new(dtype, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

/// Whether the nodes that the test adds take it.
fn plain(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

impl Training {
    /// The training graph of a case. Its inputs are computed, by `Neg`, so that they can be dropped and overwritten, too; the loss is half
    /// a weighted sum of the results' squares, so that the backward pass reads those as well. `None` if there is no gradient to compute.
    fn of(op: &dyn OpDef, case: &Case, dtype: DType) -> Result<Option<Training>, String> {
        let text = |e: OpError| e.to_string();
        let mut rng = StdRng::seed_from_u64(19);
        let mut graph = Graph::default();
        let mut b = Builder::new(&mut graph);
        let mut named: BTreeMap<String, Literal> = BTreeMap::new();
        let (mut inputs, mut wrt) = (Vec::new(), Vec::new());
        for (i, input) in case.inputs.iter().enumerate() {
            let Some(c) = input else {
                inputs.push(None);
                continue;
            };
            let (name, dtype) = (format!("x{i}"), c.dtype.unwrap_or(dtype));
            let elements = c.fill.draw(c.shape.iter().product(), &mut || rng.random());
            if c.constant {
                inputs.push(Some(b.graph_mut().add_constant(name, literal(dtype, &c.shape, &elements))));
                continue;
            }
            let ty = TensorType::new(dtype, &c.shape);
            let mut v = b.graph_mut().add_input(name.clone(), ty, InputRole::Data);
            let mut given = elements;
            if plain(dtype) {
                given.iter_mut().for_each(|x| *x = -*x);
                v = b.call("Neg", &[v]).map_err(text)?;
            }
            named.insert(name, literal(dtype, &c.shape, &given));
            if plain(dtype) && c.differentiate {
                wrt.push(v);
            }
            inputs.push(Some(v));
        }
        let results = b.emit(op.name(), case.attrs.clone(), &inputs).map_err(text)?;
        let forward: BTreeSet<String> = b.graph().nodes.iter().map(|n| n.name.to_string()).collect();
        let mut seeds = Vec::new();
        for (i, y) in results.iter().enumerate() {
            let ty = b.ty(*y).clone();
            if !plain(ty.dtype) {
                continue;
            }
            let shape = ty.shape.fixed().ok_or("an open shape")?;
            let elements = Fill::Uniform(0.5, 1.5).draw(shape.iter().product(), &mut || rng.random());
            let name = format!("weight{i}");
            named.insert(name.clone(), literal(ty.dtype, &shape, &elements));
            let weight = b.graph_mut().add_input(name, ty, InputRole::Data);
            seeds.push((*y, b.call("Mul", &[weight, *y]).map_err(text)?));
        }
        let gradients = backward(&mut b, &seeds, &wrt).map_err(|e| e.to_string())?;
        let made = |v: &ValueId| matches!(graph.value(*v).def, ValueDef::Node { .. });
        graph.outputs = gradients.into_iter().flatten().filter(made).collect();
        graph.outputs.sort();
        graph.outputs.dedup();
        let mut graph = graph.pruned();
        graph.lift_constants();
        graph.drop_unread();
        graph::verify(&graph).map_err(|e| e.to_string())?;
        let mut given: BTreeMap<ValueId, Literal> =
            graph.inputs.iter().map(|i| (i.value, named[&*graph.value(i.value).name].clone())).collect();
        for s in &graph.states {
            let Init::Literal(l) = &s.init else { return Err(format!("{} has no elements", s.name)) };
            given.insert(s.input, l.clone());
        }
        let all = 0..graph.nodes.len() as u32;
        let forward = all.clone().filter(|n| forward.contains(&*graph.node(NodeId(*n)).name)).collect();
        let once = all.filter(|n| Registry.facts(&graph, NodeId(*n)).is_ok_and(|f| f.once)).collect();
        Ok((!graph.outputs.is_empty()).then_some(Training { graph, given, forward, once }))
    }

    fn op(&self, node: u32) -> &str {
        &self.graph.node(NodeId(node)).op
    }

    /// Forward nodes that make what `node` reads, and with `deep` what those read, producers first.
    fn producers(&self, node: u32, deep: bool, out: &mut Vec<u32>) {
        for v in self.graph.node(NodeId(node)).inputs.iter().flatten() {
            let Some(p) = self.graph.producer(*v).map(|p| p.0) else { continue };
            if self.forward.contains(&p) && !self.once.contains(&p) && !out.contains(&p) {
                if deep {
                    self.producers(p, deep, out);
                }
                out.push(p);
            }
        }
    }

    /// Orders of execution with repetitions: a forward node whose results the backward pass reads runs again before the first node that
    /// reads them, one such node an order; and in a last order all that a backward node needs is made anew for it.
    fn orders(&self) -> Vec<Vec<u32>> {
        let nodes = 0..self.graph.nodes.len() as u32;
        let (forward, backward): (Vec<u32>, Vec<u32>) = nodes.partition(|n| self.forward.contains(n));
        let mut orders = Vec::new();
        let mut every = forward.clone();
        let mut found = BTreeSet::new();
        for (at, b) in backward.iter().enumerate() {
            let (mut near, mut deep) = (Vec::new(), Vec::new());
            self.producers(*b, false, &mut near);
            self.producers(*b, true, &mut deep);
            let (before, after) = backward.split_at(at);
            for p in near.into_iter().filter(|p| found.insert(*p)) {
                orders.push([&forward, before, &[p], after].concat());
            }
            every.extend(deep);
            every.push(*b);
        }
        orders.push(every);
        orders
    }

    /// The plan of an order of execution, validated.
    fn plan(&self, order: &[u32]) -> Result<Plan, String> {
        let (state, state_bytes) =
            emit::state_section(&[&self.graph], &|_| None).map_err(|e| e.to_string())?;
        let costs = CostModel::estimated(DeviceProfile::cpu());
        let problem = lower(&self.graph, &costs, state_bytes).map_err(|e| e.to_string())?;
        let schedule = assemble(&problem, order, u64::MAX);
        let replay = replay(&problem, &schedule).map_err(|e| e.to_string())?;
        let buffers: Vec<Buffer> = replay
            .lifetimes
            .iter()
            .map(|l| Buffer { start: l.start.into(), end: l.end.into(), size: l.size })
            .collect();
        let placed = offsets::place(&buffers, None, Limits::quick());
        let arena = state_bytes + placed.height;
        let layout = Layout { lifetimes: replay.lifetimes, offsets: placed.offsets, height: placed.height };
        let keep_all = KeepAll { live_peak: replay.peak, arena };
        let planned = Planned {
            schedule,
            layout,
            live_peak: replay.peak,
            arena,
            time: replay.time,
            base_time: replay.time,
            keep_all,
            naive_peak: replay.peak,
            bound: None,
            keep_order_bound: None,
            strategy: "forced".to_owned(),
            stop: StopReason::WorkLimit,
            work: 0,
        };
        let program = emit::program(ProgramKind::Infer, self.graph.clone(), &problem, &planned)
            .map_err(|e| e.to_string())?;
        let mut plan = Plan {
            model: "case".to_owned(),
            device: Device::Cpu,
            budget: arena,
            arena,
            numerics: [0; 32],
            provenance: String::new(),
            state,
            state_bytes,
            slot_bytes: 0,
            accumulate: 1,
            programs: vec![program],
        };
        plan.numerics = plan_numerics(&plan, &Registry);
        plan::validate(&plan, &Registry).map_err(|e| e.to_string())?;
        Ok(plan)
    }

    /// Elements of the outputs after a run of the plan, whose recomputed values are compared with the first ones on the way.
    fn run(&self, plan: Plan) -> Result<Vec<Vec<u8>>, String> {
        let device = CpuDevice::new(1).map_err(|e| e.to_string())?;
        let mut session = Session::load(plan, Box::new(device), &mut NoWeights, LoadOptions::default())
            .map_err(|e| e.to_string())?;
        let name = |v: &ValueId| &*self.graph.value(*v).name;
        let data: Vec<(&str, &[u8])> =
            self.graph.inputs.iter().map(|i| (name(&i.value), self.given[&i.value].bytes())).collect();
        let inputs = StepInputs { data: &data, ..StepInputs::default() };
        let options = RunOptions { check_recompute: true, measure: false };
        let result = session.run(0, &inputs, options).map_err(|e| e.to_string())?;
        Ok(result.outputs.into_iter().map(|(_, _, bytes)| bytes).collect())
    }
}

/// Constants carry their elements: nothing is read from a file.
struct NoWeights;

impl WeightSource for NoWeights {
    fn load(
        &mut self,
        name: &str,
        _: &TensorType,
        _: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        Err(format!("{name}: there are no weights"))
    }
}

/// What was seen over all cases.
#[derive(Default)]
struct Seen {
    plans: usize,
    /// Bytes of gradients that were compared.
    bytes: usize,
    /// Operators that ran a second time, and those whose second run overwrote an input.
    again: BTreeSet<String>,
    overwriting: BTreeSet<String>,
    /// Operators that must not run twice.
    once: BTreeSet<String>,
    /// Operators with a case whose gradient is computed.
    trained: BTreeSet<String>,
}

fn check(op: &dyn OpDef, case: &Case, dtype: DType, seen: &mut Seen) -> Result<(), String> {
    let Some(training) = Training::of(op, case, dtype)? else { return Ok(()) };
    let all = interpret(&training.graph, &training.given).map_err(|e| e.to_string())?;
    let want: Vec<&[u8]> = training.graph.outputs.iter().map(|o| all[o].bytes()).collect();
    seen.trained.insert(op.name().to_owned());
    seen.once.extend(training.once.iter().map(|n| training.op(*n).to_owned()));
    for order in training.orders() {
        let mut ran = BTreeSet::new();
        let again: Vec<bool> = order.iter().map(|n| !ran.insert(*n)).collect();
        let names: Vec<&str> =
            order.iter().zip(&again).filter(|(_, a)| **a).map(|(n, _)| training.op(*n)).collect();
        let fail = |e: String| format!("{} again: {e}", names.join(", "));
        let plan = training.plan(&order).map_err(fail)?;
        for (step, _) in plan.programs[0].steps.iter().zip(&again).filter(|(_, a)| **a) {
            let Step::Run(run) = step else { continue };
            let op = training.op(run.node.0).to_owned();
            if run.outputs.iter().any(|o| matches!(o, Place::Overwrite { .. })) {
                seen.overwriting.insert(op.clone());
            }
            seen.again.insert(op);
        }
        let got = training.run(plan).map_err(fail)?;
        if let Some(i) = (0..want.len()).find(|i| got.get(*i).is_none_or(|g| g != want[*i])) {
            return Err(fail(format!("gradient {i} has other bits")));
        }
        seen.plans += 1;
        seen.bytes += want.iter().map(|w| w.len()).sum::<usize>();
    }
    Ok(())
}

#[test]
fn gradients_keep_their_bits_when_what_they_read_is_made_again() {
    let mut seen = Seen::default();
    let mut failures = Vec::new();
    for op in OPS.iter().filter(|op| op.differentiable()) {
        for case in op.cases() {
            for dtype in [DType::F32, DType::F64] {
                if let Err(e) = check(*op, &case, dtype, &mut seen) {
                    failures.push(format!("{} ({}, {dtype}): {e}", op.name(), case.name));
                }
            }
        }
    }
    let (once, again) = (&seen.once, &seen.again);
    let table: String = again
        .iter()
        .map(|op| format!("- {op}{}\n", if seen.overwriting.contains(op) { ", over an input" } else { "" }))
        .chain(once.iter().map(|op| format!("- {op}: not twice\n")))
        .collect();
    let summary = format!(
        "{} plans ran {} operators again for their gradients, {} of them over an input",
        seen.plans,
        again.len(),
        seen.overwriting.len()
    );
    test_support::report("recomputation", &summary, &table);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(seen.bytes > 1 << 16, "{} bytes compared", seen.bytes);
    assert!(again.is_disjoint(once));
    let missing: Vec<&str> = OPS
        .iter()
        .filter(|op| op.differentiable())
        .map(|op| op.name())
        .filter(|n| !again.contains(*n) && !once.contains(*n))
        .collect();
    assert!(missing.is_empty(), "never ran again: {missing:?}");
    assert!(seen.overwriting.len() >= 20, "{:?}", seen.overwriting);
}
