//! Loops that would never end, or end far too late, are refused in one sentence: by the compiler, and at run time where they get that far.
//!
//! One test, alone in its process, whose memory it measures.

use onnx_models::{Common, ModelProto, Springs};
use onnx_protobuf::{GraphProto, NodeProto, TensorProto};
use tests::written::{Array, floats, session, step};

/// More iterations than anybody waits for.
const TRIPS: i64 = 1 << 40;
/// What a refused step may add to the process: some 2 KB for each of the nodes that data may decide on in a small arena.
const MEMORY: u64 = 512 << 20;

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: op.to_owned(),
        name: output.to_owned(),
        input: inputs.iter().map(|i| (*i).to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// Springs whose number of steps is absurd, with other nodes in the body.
fn springs(nodes: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let springs = Springs { masses: 4, steps: 1 };
    let mut model = springs.build(&Common { batch: 1, dynamic: false, loss: true, seed: 3 });
    let graph = model.graph.as_mut().unwrap();
    let steps = graph.initializer.iter_mut().find(|t| t.name == "steps").unwrap();
    steps.raw_data = TRIPS.to_le_bytes().to_vec();
    let all = graph.node.iter_mut().find(|n| n.op_type == "Loop").unwrap();
    nodes(all.attribute.iter_mut().find_map(|a| a.g.as_mut()).unwrap());
    model
}

/// The most that this process had in memory, where the system tells.
fn most_resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[test]
fn loops_without_end_are_refused() {
    let idle = springs(|body| {
        let copies = [("go", "go_next"), ("x", "x_next"), ("v", "v_next")];
        body.node = copies.iter().map(|(from, to)| node("Identity", &[from], to)).collect();
    });
    let empty = springs(|body| {
        body.node.clear();
        for (output, input) in body.output.iter_mut().zip(["go", "x", "v"]) {
            output.name = input.to_owned();
        }
    });
    let growing = springs(|body| {
        // A sequence that is made anew in every iteration, and that no graph ever sees.
        body.node.insert(0, node("SequenceConstruct", &["x", "v", "x", "v"], "list"));
        body.node.insert(1, node("SequenceInsert", &["list", "x"], "longer"));
        body.node.retain(|n| n.op_type.starts_with("Sequence"));
        body.node.extend(
            [("go", "go_next"), ("x", "x_next"), ("v", "v_next")].map(|(f, t)| node("Identity", &[f], t)),
        );
    });
    let working = springs(|_| {});
    // Data decide after every step, and never decide to end.
    let mut deciding = springs(|body| {
        body.node.retain(|n| n.output != ["go_next"]);
        body.node.push(node("ReduceMax", &["x"], "far"));
        body.node.push(node("Equal", &["far", "far"], "same"));
        body.node.push(node("Squeeze", &["same"], "go_next"));
    });
    let graph = deciding.graph.as_mut().unwrap();
    let yes = TensorProto { name: "yes".into(), data_type: 9, raw_data: vec![1], ..TensorProto::default() };
    graph.initializer.push(yes);
    graph.node.iter_mut().find(|n| n.op_type == "Loop").unwrap().input[1] = "yes".into();
    let data: Vec<Array> = vec![("target", vec![1, 4], floats(4, 1))];
    let before = most_resident();
    for (name, model) in [("idle", idle), ("empty", empty), ("growing", growing), ("working", working)] {
        let bytes = onnx_models::to_bytes(&model).unwrap();
        let static_plan = compiler::import::import_bytes(name, bytes.into(), &Default::default());
        let e = static_plan.err().unwrap_or_else(|| panic!("{name} is static"));
        assert!(e.is_open() && e.to_string().contains("with its loops unrolled"), "{name}: {e}");
        let mut s = session(&model, 1 << 24);
        let start = std::time::Instant::now();
        let e = step(&mut s, &data, 1).unwrap_err();
        println!("{name}: {:?}, {:?} bytes: {e}", start.elapsed(), most_resident());
        assert!(e.contains("with its loops unrolled") && !e.contains('\n'), "{name}: {e}");
    }
    let mut s = session(&deciding, 1 << 24);
    let e = step(&mut s, &data, 1).unwrap_err();
    assert!(e.contains("still going on after") && e.contains("a larger budget") && !e.contains('\n'), "{e}");
    let (Some(before), Some(after)) = (before, most_resident()) else { return };
    assert!(after <= before + MEMORY, "{before} bytes before, {after} after");
}
