//! Two small plans of one training step, and the operators that they use: nothing but what a validator asks.

use graph::{
    Attrs, DType, Facts, Graph, Implementation, Init, InputRole, NodeId, OpFacts, StateKind, TensorType,
    ValueId, View,
};
use plan::{Certificate, Device, Guard, Place, Plan, Program, ProgramKind, Run, StateEntry, Step, numerics};

/// A handful of operators.
pub struct Toy;

impl OpFacts for Toy {
    fn infer(&self, g: &Graph, node: NodeId) -> Result<Vec<TensorType>, String> {
        let n = g.node(node);
        let ty = |i: usize| {
            n.inputs.get(i).copied().flatten().map(|v| g.ty(v).clone()).ok_or("an input is missing")
        };
        match &*n.op {
            // A view of the second half.
            "Half" => {
                let t = ty(0)?;
                let n = t.shape.elements().ok_or("unknown size")? / 2;
                Ok(vec![TensorType::new(t.dtype, &[n][..])])
            }
            "Scale" | "Mul" | "AddRow" | "Sgd" | "Pick" | "Look" => Ok(vec![ty(0)?]),
            other => Err(format!("there is no operator {other}")),
        }
    }

    fn facts(&self, g: &Graph, node: NodeId) -> Result<Facts, String> {
        let n = g.node(node);
        let half = n.inputs.first().copied().flatten().and_then(|v| g.ty(v).bytes()).unwrap_or(0) / 2;
        Ok(match &*n.op {
            "Scale" => Facts {
                overwrites: vec![(0, 0)],
                implementations: vec![
                    Implementation { name: "fast", workspace: 300, slowdown_permille: 1000 },
                    Implementation { name: "small", workspace: 0, slowdown_permille: 1500 },
                ],
                ..Facts::default()
            },
            "Mul" => Facts { overwrites: vec![(0, 0), (0, 1)], ..Facts::default() },
            // Adds a vector to each row: only the first input may be overwritten.
            "AddRow" => Facts { overwrites: vec![(0, 0)], ..Facts::default() },
            "Half" => Facts { views: vec![View { output: 0, input: 0, offset: half }], ..Facts::default() },
            // Refuses indices (the second input) that are out of range.
            "Look" => Facts { can_fail: true, ..Facts::default() },
            "Sgd" => Facts { commits: vec![(0, 0)], ..Facts::default() },
            _ => Facts { once: true, ..Facts::default() },
        })
    }

    fn numeric_class(&self, _: &str) -> Option<u32> {
        Some(0)
    }
}

/// 256 bytes.
pub fn vector() -> TensorType {
    TensorType::new(DType::F32, &[64u64][..])
}

/// `c = scale(x w) (x w)`, `g = c x`, `w := sgd(w, g)`: values x 0, lr 1, w 2, a 3, b 4, c 5, g 6, w' 7.
pub fn graph() -> Graph {
    let mut g = Graph::default();
    let x = g.add_input("x", vector(), InputRole::Data);
    let lr = g.add_input("lr", TensorType::new(DType::F32, &[] as &[u64]), InputRole::LearningRate);
    let w = g.add_state("layer.weight", vector(), StateKind::Parameter, Init::Weight("layer.weight".into()));
    let mut node = |name: &str, op: &str, attrs: Attrs, inputs: &[ValueId]| {
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        let n = g.add_node(name, op, attrs, inputs, vec![(name.into(), vector())]);
        g.node(n).outputs[0]
    };
    let a = node("a", "Mul", Attrs::new(), &[x, w]);
    let factors = Attrs::new().with("factor", 1e-7).with("axes", vec![-1i64, 2]).with("mode", "a \"b\"\n");
    let b = node("a long name, with a comma", "Scale", factors, &[a]);
    let c = node("c", "Mul", Attrs::new(), &[b, a]);
    let grad = node("grad", "Mul", Attrs::new(), &[c, x]);
    let new = node("layer.weight:new", "Sgd", Attrs::new(), &[w, grad, lr]);
    g.states[0].output = Some(new);
    g.outputs.push(c);
    g
}

/// One run of a node.
pub fn run(node: u32, place: Place, implementation: u8, workspace: Option<u64>, drops: &[u32]) -> Step {
    let drops = drops.iter().map(|v| ValueId(*v)).collect();
    let outputs = vec![place];
    Step::Run(Run { node: NodeId(node), implementation, queue: 0, time_ns: 1500, outputs, workspace, drops })
}

/// At this offset.
pub fn at(offset: u64) -> Place {
    Place::New { space: 0, offset }
}

/// A plan of one program over a state section of 256 bytes.
pub fn plan(g: Graph, inputs: Vec<u64>, steps: Vec<Step>, live_peak: u64, arena: u64) -> Plan {
    let state = g.states.iter().map(|s| StateEntry {
        name: s.name.clone(),
        kind: s.kind,
        ty: g.ty(s.input).clone(),
        offset: 0,
        init: s.init.clone(),
        hash: Some([0xab; 32]),
    });
    let certificate = Certificate {
        live_peak,
        arena,
        keep_all: 2048,
        naive_peak: 2304,
        time_ns: 1500 * steps.len() as u64,
        base_time_ns: 7500,
        lower_bound_ns: (steps.len() > 5).then_some(500),
        strategy: "by hand".to_owned(),
        stop_reason: "done".to_owned(),
    };
    Plan {
        model: "toy".to_owned(),
        device: Device::Cpu,
        budget: 2048,
        arena,
        numerics: numerics(Device::Cpu, 1, [(ProgramKind::Train, &g, None)], &Toy),
        provenance: "by hand".to_owned(),
        state: state.collect(),
        state_bytes: 256,
        slot_bytes: 0,
        accumulate: 1,
        programs: vec![Program {
            kind: ProgramKind::Train,
            guard: Guard::default(),
            graph: g,
            inputs,
            steps,
            certificate,
            dynamic: None,
        }],
    }
}

/// Keeps all: the scale runs fast, with a workspace.
pub fn keep_all() -> Plan {
    let steps = vec![
        run(0, at(768), 0, None, &[]),
        run(1, at(1024), 0, Some(1280), &[]),
        run(2, at(1280), 0, None, &[3, 4]),
        run(3, at(768), 0, None, &[0]),
        run(4, Place::Commit { input: 0 }, 0, None, &[1, 6, 7]),
    ];
    plan(graph(), vec![256, 512], steps, 1792, 1792)
}

/// Overwrites `a` with its scale and makes it again.
pub fn recomputing() -> Plan {
    let steps = vec![
        run(0, at(768), 0, None, &[]),
        run(1, Place::Overwrite { input: 0 }, 1, None, &[3]),
        run(0, at(1024), 0, None, &[]),
        run(2, Place::Overwrite { input: 0 }, 0, None, &[3, 4]),
        run(3, at(1024), 0, None, &[0]),
        run(4, Place::Commit { input: 0 }, 0, None, &[1, 6, 7]),
    ];
    plan(graph(), vec![256, 512], steps, 1280, 1280)
}
