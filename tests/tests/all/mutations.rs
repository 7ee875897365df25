//! Mutated plans: each is refused, or runs with the same bits.
//!
//! A plan is a contract, so nothing that differs from a right plan may slip through: over a thousand random edits of searched plans are
//! either refused by the validator (or by the runtime before it runs), or proved harmless by running them.

use graph::{Attr, DType, Dim, Init, NodeId, OpFacts, StateKind, ValueDef, ValueId};
use ops::Registry;
use plan::{Device, Place, Plan, Program, ProgramKind, Run, Step, align, numerics, validate};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use runtime::RuntimeError;
use std::collections::BTreeMap;
use tests::{reference::sgd, tiny};

/// A kind of edit, and whether none of its plans can be right.
type Kind = (&'static str, bool);

fn any_run<'a>(rng: &mut StdRng, p: &'a mut Program) -> &'a mut Run {
    let i = rng.random_range(0..p.steps.len());
    match &mut p.steps[i] {
        Step::Run(r) => r,
        other => panic!("planners emit no such step: {other:?}"),
    }
}

/// Offsets as an adversary chooses them: near those of the plan, unaligned, out of range.
fn any_offset(rng: &mut StdRng, near: u64, arena: u64) -> u64 {
    match rng.random_range(0..6) {
        0 => near.wrapping_add(256 * rng.random_range(1..8)),
        1 => near.saturating_sub(256 * rng.random_range(1..8)),
        2 => rng.random_range(0..arena / 256 + 2) * 256,
        3 => near ^ (1 << rng.random_range(0..8)),
        4 => u64::MAX - rng.random_range(0..512),
        _ => arena.saturating_sub(rng.random_range(0..3) * 256),
    }
}

fn any_value(rng: &mut StdRng, p: &Program) -> ValueId {
    ValueId(rng.random_range(0..p.graph.values.len() as u32 + 1))
}

fn any_number(rng: &mut StdRng, n: u64) -> u64 {
    *[0, 1, n + 1, n + 256, n.saturating_sub(256), n / 2, n.saturating_mul(2), u64::MAX].choose(rng).unwrap()
}

/// Edits of what is computed: they change the numerics.
fn edit_graph(rng: &mut StdRng, p: &mut Program) -> Option<Kind> {
    let g = &mut p.graph;
    let n = rng.random_range(0..g.nodes.len());
    Some(match rng.random_range(0..8) {
        0 => {
            let attrs = &mut g.nodes[n].attrs.0;
            let key = attrs.keys().nth(rng.random_range(0..attrs.len().max(1)))?.clone();
            let big = *[-1, 0, 1, 2, 7, i64::MAX, i64::MIN, 1 << 40].choose(rng).unwrap();
            match attrs.get_mut(&key)? {
                Attr::Int(i) => *i = big,
                Attr::Ints(v) if !v.is_empty() => {
                    let k = rng.random_range(0..v.len());
                    v[k] = big;
                }
                Attr::Float(x) => *x = *[0.0, -1.0, f64::NAN, 1e308].choose(rng).unwrap(),
                a => *a = Attr::DType(*DType::ALL.choose(rng).unwrap()),
            }
            ("attribute", true)
        }
        1 => {
            let attrs = &mut g.nodes[n].attrs.0;
            let key = attrs.keys().nth(rng.random_range(0..attrs.len().max(1)))?.clone();
            attrs.remove(&key);
            ("attribute left out", true)
        }
        2 => {
            let v = rng.random_range(0..g.values.len());
            g.values[v].ty.dtype = *DType::ALL.choose(rng).unwrap();
            ("dtype", true)
        }
        3 => {
            let v = rng.random_range(0..g.values.len());
            let shape = &mut g.values[v].ty.shape.0;
            let to = *[-1, 0, 1, 3, 1 << 20, 1 << 40, i64::MAX].choose(rng).unwrap();
            let to = if rng.random_bool(0.2) { Dim::symbol("n") } else { Dim::constant(to) };
            match rng.random_range(0..3) {
                0 if !shape.is_empty() => {
                    let k = rng.random_range(0..shape.len());
                    shape[k] = to;
                }
                1 if !shape.is_empty() => drop(shape.pop()),
                _ => shape.push(to),
            }
            ("shape", true)
        }
        4 => {
            let v = any_value(rng, p);
            let inputs = &mut p.graph.nodes[n].inputs;
            let k = rng.random_range(0..inputs.len().max(1));
            *inputs.get_mut(k)? = if rng.random_bool(0.3) { None } else { Some(v) };
            ("argument", true)
        }
        5 => {
            let inputs = &mut g.nodes[n].inputs;
            if rng.random_bool(0.5) && inputs.len() > 1 {
                let k = rng.random_range(1..inputs.len());
                inputs.swap(0, k);
            } else {
                inputs.pop();
            }
            ("arguments", true)
        }
        6 => {
            let other = g.nodes.choose(rng)?.op.clone();
            g.nodes[n].op = other;
            ("operator", true)
        }
        _ => {
            let v = any_value(rng, p);
            let g = &mut p.graph;
            match rng.random_range(0..4) {
                0 => g.outputs.push(v),
                1 => g.states.choose_mut_at(rng)?.output = Some(v),
                2 => g.states.choose_mut_at(rng)?.output = None,
                _ => g.states.choose_mut_at(rng)?.input = v,
            }
            ("outputs and states", true)
        }
    })
}

trait ChooseMut<T> {
    fn choose_mut_at(&mut self, rng: &mut StdRng) -> Option<&mut T>;
}

impl<T> ChooseMut<T> for Vec<T> {
    fn choose_mut_at(&mut self, rng: &mut StdRng) -> Option<&mut T> {
        let i = rng.random_range(0..self.len().max(1));
        self.get_mut(i)
    }
}

/// Edits of the order and of what ends when.
fn edit_steps(rng: &mut StdRng, p: &mut Program) -> Option<Kind> {
    let n = p.steps.len();
    let (i, j) = (rng.random_range(0..n), rng.random_range(0..n));
    Some(match rng.random_range(0..8) {
        0 => {
            p.steps.swap(i, j);
            ("two steps change places", false)
        }
        1 => {
            p.steps.swap(i, (i + 1) % n);
            ("neighbours change places", false)
        }
        2 => {
            p.steps.remove(i);
            ("step left out", false)
        }
        3 => {
            let step = p.steps[i].clone();
            p.steps.insert(j, step);
            ("step repeated", false)
        }
        4 => {
            let nodes = p.graph.nodes.len() as u32;
            any_run(rng, p).node = NodeId(rng.random_range(0..nodes + 1));
            ("other node", false)
        }
        5 => {
            let v = any_value(rng, p);
            let drops = &mut any_run(rng, p).drops;
            drops.push(v);
            drops.sort();
            ("one more drop", false)
        }
        6 => {
            let drops = &mut any_run(rng, p).drops;
            let k = rng.random_range(0..drops.len().max(1));
            let v = *drops.get(k)?;
            if rng.random_bool(0.5) {
                drops.remove(k);
            } else {
                drops.insert(k, v);
                return Some(("drop repeated", true));
            }
            if rng.random_bool(0.5) {
                let drops = &mut any_run(rng, p).drops;
                drops.push(v);
                drops.sort();
                return Some(("drop elsewhere", false));
            }
            ("drop left out", false)
        }
        _ => {
            p.steps.insert(i, Step::Wait { queue: 0, on: 1 });
            ("wait", true)
        }
    })
}

/// Edits of where things lie.
fn edit_places(rng: &mut StdRng, p: &mut Program, arena: u64) -> Option<Kind> {
    Some(match rng.random_range(0..7) {
        0 | 1 => {
            let near = rng.random_range(0..arena / 256 + 1) * 256;
            let place = any_run(rng, p).outputs.choose_mut_at(rng)?;
            let Place::New { offset, .. } = place else { return None };
            let near = if rng.random_bool(0.7) { *offset } else { near };
            *offset = any_offset(rng, near, arena);
            ("offset", false)
        }
        2 => {
            let other = *any_run(rng, p).outputs.choose(rng)?;
            let random = match rng.random_range(0..5) {
                0 => Place::Overwrite { input: rng.random_range(0..4) },
                1 => Place::View { input: rng.random_range(0..4) },
                2 => Place::Commit { input: rng.random_range(0..4) },
                3 => Place::New { space: 1, offset: 0 },
                _ => other,
            };
            *any_run(rng, p).outputs.choose_mut_at(rng)? = random;
            ("place", false)
        }
        3 => {
            let run = any_run(rng, p);
            run.workspace = match run.workspace {
                Some(_) if rng.random_bool(0.3) => None,
                Some(at) => Some(any_offset(rng, at, arena)),
                None => Some(rng.random_range(0..arena / 256) * 256),
            };
            ("workspace", false)
        }
        4 => {
            let offset = p.inputs.choose_mut_at(rng)?;
            *offset = any_offset(rng, *offset, arena);
            ("input offset", false)
        }
        5 => {
            any_run(rng, p).implementation = rng.random_range(0..4);
            ("implementation", false)
        }
        _ => {
            any_run(rng, p).queue = rng.random_range(1..=255);
            ("queue", true)
        }
    })
}

/// Edits of header, state section and certificate.
fn edit_header(rng: &mut StdRng, plan: &mut Plan) -> Option<Kind> {
    Some(match rng.random_range(0..16) {
        0 => {
            plan.budget = any_number(rng, plan.budget);
            ("budget", false)
        }
        1 => {
            plan.arena = any_number(rng, plan.arena);
            ("arena", false)
        }
        2 => {
            plan.state_bytes = any_number(rng, plan.state_bytes);
            ("state bytes", false)
        }
        3 => {
            plan.numerics[rng.random_range(0..32)] ^= 1 << rng.random_range(0..8);
            ("numerics", true)
        }
        4 => {
            plan.device = Device::Cuda;
            ("device", true)
        }
        5 => {
            plan.accumulate = *[0, 2, 8].choose(rng)?;
            ("accumulate", true)
        }
        6 => {
            plan.programs[0].kind =
                *[ProgramKind::Micro, ProgramKind::Last, ProgramKind::Infer].choose(rng)?;
            ("program kind", true)
        }
        7 => {
            let p = plan.programs[0].clone();
            if rng.random_bool(0.5) {
                plan.programs.push(p);
            } else {
                plan.programs.clear();
            }
            ("programs", true)
        }
        8 => {
            let c = &mut plan.programs[0].certificate;
            c.live_peak = any_number(rng, c.live_peak);
            ("certified live peak", true)
        }
        9 => {
            let c = &mut plan.programs[0].certificate;
            c.arena = any_number(rng, c.arena);
            ("certified arena", true)
        }
        10 => {
            let c = &mut plan.programs[0].certificate;
            (c.keep_all, c.time_ns, c.lower_bound_ns) = (0, u64::MAX, Some(u64::MAX));
            c.strategy = "none".to_owned();
            ("what people are told", false)
        }
        11 => {
            let e = plan.state.choose_mut_at(rng)?;
            e.offset = any_offset(rng, e.offset, plan.arena);
            ("state offset", false)
        }
        12 => {
            let (i, j) = (rng.random_range(0..plan.state.len()), rng.random_range(0..plan.state.len()));
            match rng.random_range(0..3) {
                0 => plan.state.swap(i, j),
                1 => {
                    let (a, b) = (plan.state[i].offset, plan.state[j].offset);
                    (plan.state[i].offset, plan.state[j].offset) = (b, a);
                }
                _ => {
                    let (a, b) = (plan.state[i].name.clone(), plan.state[j].name.clone());
                    (plan.state[i].name, plan.state[j].name) = (b, a);
                }
            }
            ("two states", false)
        }
        13 => {
            let e = plan.state.choose_mut_at(rng)?;
            e.init = match e.init {
                Init::Zeros => Init::Weight("fc1.weight".into()),
                _ => Init::Zeros,
            };
            ("first elements", true)
        }
        14 => {
            let e = plan.state.choose_mut_at(rng)?;
            match rng.random_range(0..3) {
                0 => e.hash = Some([1; 32]),
                1 => e.kind = *[StateKind::Frozen, StateKind::Accumulator].choose(rng)?,
                _ => e.ty.dtype = *DType::ALL.choose(rng)?,
            }
            ("state", false)
        }
        _ => {
            if rng.random_bool(0.5) {
                plan.state.pop();
            } else {
                let mut e = plan.state.choose(rng)?.clone();
                (e.name, e.offset) = ("more".into(), plan.state_bytes);
                plan.state_bytes += align(e.ty.bytes()?);
                plan.state.push(e);
            }
            ("one state more or less", true)
        }
    })
}

fn edit(rng: &mut StdRng, plan: &mut Plan) -> Option<Kind> {
    let arena = plan.arena;
    let first = &mut plan.programs[0];
    match rng.random_range(0..10) {
        0 | 1 => edit_graph(rng, first),
        2..5 => edit_steps(rng, first),
        5..8 => edit_places(rng, first, arena),
        _ => edit_header(rng, plan),
    }
}

/// What came of the edits of one kind: refused, refused by the runtime before it ran, harmless.
type Tally = BTreeMap<&'static str, [u32; 3]>;

/// Tries `n` edits of a model's plans.
fn try_edits(file: &str, n: u32, seed: u64, tally: &mut Tally) {
    let imported = tiny::imported(file);
    let plans = tiny::plans(&imported, sgd(), &[1.0, if seed == 0 { 0.6 } else { 0.5 }]);
    let data = tiny::data(&plans[0]);
    let expected = tiny::step(&plans[0], &imported.weights, &data).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut done = 0;
    while done < n {
        let original = plans.choose(&mut rng).unwrap();
        let mut plan = original.clone();
        let Some((kind, wrong)) = edit(&mut rng, &mut plan) else { continue };
        if plan == *original {
            continue;
        }
        done += 1;
        let counts = tally.entry(kind).or_default();
        if let Err(e) = validate(&plan, &Registry) {
            assert!(!e.to_string().is_empty());
            counts[0] += 1;
            continue;
        }
        assert!(!wrong, "{file}, edit {done}: {kind} was accepted");
        match tiny::step(&plan, &imported.weights, &data) {
            Ok(bits) => {
                assert!(bits == expected, "{file}, edit {done}: {kind} was accepted and gives other bits");
                counts[2] += 1;
            }
            Err(
                RuntimeError::NotEnoughMemory { .. }
                | RuntimeError::Allocate { .. }
                | RuntimeError::Weight { .. },
            ) => {
                counts[1] += 1;
            }
            Err(e) => panic!("{file}, edit {done}: {kind} was accepted, then: {e}"),
        }
    }
}

#[test]
fn a_thousand_edits_are_refused_or_harmless() {
    let mut tally = Tally::new();
    for (i, (file, n)) in tiny::TINY.into_iter().zip([940, 40, 40, 20]).enumerate() {
        try_edits(file, n, i as u64, &mut tally);
    }
    println!("{:<28} {:>8} {:>8} {:>9}", "edit", "refused", "by load", "harmless");
    for (kind, [refused, load, harmless]) in &tally {
        println!("{kind:<28} {refused:>8} {load:>8} {harmless:>9}");
    }
    let sum = |k: usize| tally.values().map(|t| t[k]).sum::<u32>();
    println!("{:<28} {:>8} {:>8} {:>9}", "all", sum(0), sum(1), sum(2));
    assert!(sum(0) + sum(1) + sum(2) >= 1000);
    // Both verdicts occur, so neither is given blindly.
    assert!(sum(0) > 500 && sum(2) > 20);
}

/// An edited graph under the right hash of itself is another program. It may be refused or run, but does not pass for the same one, and
/// nothing panics.
#[test]
fn edited_graphs_with_their_own_hash_are_other_programs() {
    let imported = tiny::imported(tiny::TINY[0]);
    let plans = tiny::plans(&imported, sgd(), &[1.0, 0.6]);
    let data = tiny::data(&plans[0]);
    let mut rng = StdRng::seed_from_u64(11);
    let (mut refused, mut other) = (0, 0);
    while refused + other < 400 {
        let original = plans.choose(&mut rng).unwrap();
        let mut plan = original.clone();
        let first = &mut plan.programs[0];
        if edit_graph(&mut rng, first).is_none() || plan == *original {
            continue;
        }
        let graphs = plan.programs.iter().map(|p| (p.kind, &p.graph, p.dynamic.as_ref()));
        plan.numerics = numerics(plan.device, plan.accumulate, graphs, &Registry);
        if validate(&plan, &Registry).is_err() {
            refused += 1;
            continue;
        }
        assert_ne!(plan.numerics, original.numerics);
        // A result or a refusal: the bits are those of another program.
        let _ = tiny::step(&plan, &imported.weights, &data);
        other += 1;
    }
    println!("{refused} refused, {other} other programs");
    assert!(refused > 100 && other > 0);
}

/// Runs every node that reads trained state and inputs only once more after the state's commit, with all else right: fresh places beyond
/// the arena, inputs kept to the end.
#[test]
fn recomputing_after_the_commit_is_refused() {
    for file in tiny::TINY {
        let imported = tiny::imported(file);
        let plan = tiny::plans(&imported, sgd(), &[1.0]).remove(0);
        let g = &plan.programs[0].graph;
        let mut late = 0;
        for (n, node) in g.nodes.iter().enumerate() {
            let reads = |v: &ValueId| match g.value(*v).def {
                ValueDef::State(s) => g.states[s.index()].output,
                _ => None,
            };
            let old: Vec<ValueId> = node.inputs.iter().flatten().filter_map(reads).collect();
            let made = |v: &ValueId| matches!(g.value(*v).def, ValueDef::Node { .. });
            let commits = node.outputs.iter().any(|o| g.states.iter().any(|s| s.output == Some(*o)));
            if old.is_empty() || commits || node.inputs.iter().flatten().any(made) {
                continue;
            }
            let edited = late_run(&plan, NodeId(n as u32), old[0]);
            let e = validate(&edited, &Registry).expect_err(&node.name);
            assert!(e.what.contains("old version of a committed state"), "{file}: {e}");
            late += 1;
        }
        assert!(late > 0, "{file}: no node reads only state and inputs");
        println!("{file}: {late} nodes");
    }
}

fn late_run(plan: &Plan, node: NodeId, new_version: ValueId) -> Plan {
    let mut plan = plan.clone();
    let mut end = plan.arena;
    let mut fresh = |bytes: u64| {
        end += align(bytes);
        end - align(bytes)
    };
    let p = &mut plan.programs[0];
    let g = &p.graph;
    // Inputs move beyond the arena and stay.
    p.inputs = g.inputs.iter().map(|i| fresh(g.ty(i.value).bytes().unwrap())).collect();
    let is_input = |v: &ValueId| matches!(g.value(*v).def, ValueDef::Input(_));
    let mut commit = None;
    let mut again = None;
    for (i, step) in p.steps.iter_mut().enumerate() {
        let Step::Run(r) = step else { continue };
        r.drops.retain(|v| !is_input(v));
        if g.node(r.node).outputs.contains(&new_version) {
            commit = Some(i);
        }
        if r.node == node {
            again = Some(r.clone());
        }
    }
    let (commit, mut again) = (commit.expect("a commit"), again.expect("a run"));
    let outputs = g.node(node).outputs.clone();
    for (o, place) in outputs.iter().zip(&mut again.outputs) {
        if let Place::New { offset, .. } = place {
            *offset = fresh(g.ty(*o).bytes().unwrap());
        }
    }
    let facts = Registry.facts(g, node).expect("facts");
    let workspace = facts.implementations[usize::from(again.implementation)].workspace;
    again.workspace = (workspace > 0).then(|| fresh(workspace));
    again.drops = outputs;
    again.drops.sort();
    plan.programs[0].steps.insert(commit + 1, Step::Run(again));
    (plan.arena, plan.budget) = (end, end);
    plan
}
