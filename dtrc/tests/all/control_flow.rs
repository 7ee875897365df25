//! What bodies of control flow hand out, collect and carry, from the command line.

use crate::support::{
    self, dtrc, floats,
    onnx::{body, graph, int, ints, node, weight, write},
};
use graph::{DType, Literal};
use runtime::data::npz::{self, Npz};
use std::path::Path;

/// An array of the data: name, extents, elements.
type Floats<'a> = (&'a str, &'a [u64], &'a [f32]);

/// Writes arrays of floats, and of integers.
fn arrays(path: &Path, floats: &[Floats<'_>], ints: &[(&str, &[u64], &[i64])]) -> String {
    let bytes: Vec<Vec<u8>> =
        floats.iter().map(|(_, _, v)| v.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let numbers: Vec<Vec<u8>> =
        ints.iter().map(|(_, _, v)| v.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let floats = floats.iter().zip(&bytes).map(|((n, s, _), b)| (*n, DType::F32, *s, b.as_slice()));
    let ints = ints.iter().zip(&numbers).map(|((n, s, _), b)| (*n, DType::I64, *s, b.as_slice()));
    npz::write(std::fs::File::create(path).expect("a file"), floats.chain(ints)).expect("written");
    path.display().to_string()
}

/// What a run wrote.
struct Results(Npz);

impl Results {
    fn get(&mut self, name: &str) -> Literal {
        self.0.read(name).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Extents and elements.
    fn floats(&mut self, name: &str) -> (Vec<u64>, Vec<f64>) {
        let l = self.get(name);
        (l.shape().to_vec(), l.to_floats())
    }
}

/// One run of a model.
fn run(model: &str, data: &str, more: &[&str]) -> Results {
    let out = format!("{model}.out");
    let fixed = ["run", model, "--data", data, "--budget", "1M", "-o", &out];
    dtrc(&[&fixed[..], more].concat()).ok();
    Results(Npz::open(Path::new(&out)).expect("an archive"))
}

/// One training step on the model's own `loss`.
fn step(model: &str, data: &str) -> Results {
    run(model, data, &["--loss", "output:loss", "--lr", "1", "--state"])
}

/// `loss`: the mean square of `y`.
fn mean_square(y: &str) -> Vec<onnx_protobuf::NodeProto> {
    vec![
        node("Mul", &format!("{y} {y}"), "square", vec![]),
        node("ReduceMean", "square", "loss", vec![int("keepdims", 0)]),
    ]
}

#[test]
fn weights_that_branches_hand_out_are_trained() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = [1, 2].map(|seed| floats(16, seed));
    let branch = |name: &str, from: &str, own: bool| {
        let inner = if own { vec![weight("own", &[4, 4], &b)] } else { vec![] };
        let (nodes, out) = match own {
            true => (vec![], "own".to_owned()),
            false => (vec![node("Identity", from, &format!("{name}.out"), vec![])], format!("{name}.out")),
        };
        body(name, graph("", nodes, &out, inner))
    };
    let chosen = |name: &str, own: bool| {
        let sides = vec![branch("then_branch", "a", false), branch("else_branch", "b", own)];
        let mut nodes = vec![
            node("ReduceSum", "x", "sum", vec![int("keepdims", 0)]),
            node("Greater", "sum zero", "positive", vec![]),
            node("If", "positive", "w", sides),
            node("MatMul", "x w", "y", vec![]),
        ];
        nodes.extend(mean_square("y"));
        let mut weights = vec![weight("a", &[4, 4], &a), weight("zero", &[], &[0.0])];
        if !own {
            weights.push(weight("b", &[4, 4], &b));
        }
        write(dir.path(), name, 17, graph("x[N,4]", nodes, "loss[]", weights))
    };
    let plain = |w: &[f32]| {
        let nodes = [vec![node("MatMul", "x w", "y", vec![])], mean_square("y")].concat();
        write(dir.path(), "plain.onnx", 17, graph("x[N,4]", nodes, "loss[]", vec![weight("w", &[4, 4], w)]))
    };
    let x: Vec<f32> = (0..12).map(|i| 0.5 + i as f32 / 8.0).collect();
    let minus: Vec<f32> = x.iter().map(|v| -v).collect();
    let first = arrays(&dir.path().join("first.npz"), &[("x", &[3, 4], &x)], &[]);
    let second = arrays(&dir.path().join("second.npz"), &[("x", &[3, 4], &minus)], &[]);
    for own in [false, true] {
        let model = chosen("chosen.onnx", own);
        let other = if own { "own" } else { "b" };
        let listed = dtrc(&["train", &model, "--loss", "output:loss", "--list-trainable"]).ok().stdout;
        for name in ["a", other] {
            assert!(listed.lines().any(|l| l.ends_with(&format!(" {name}"))), "{name}: {listed}");
        }
        for (data, taken, before, left, untouched) in
            [(&first, "a", &a, other, &b), (&second, other, &b, "a", &a)]
        {
            let mut stepped = step(&model, data);
            assert_eq!(stepped.get(taken).bytes(), step(&plain(before), data).get("w").bytes(), "{taken}");
            assert_eq!(stepped.floats(left).1, untouched.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_loop_that_never_ran_has_collected_nothing_of_its_bodys_shape() {
    let dir = tempfile::tempdir().unwrap();
    let w = floats(16, 1);
    let x: Vec<f32> = floats(12, 2);
    // What is collected is not declared, in part, or by a rule that sees nothing but the body; of the inner loop nothing is ever run.
    for (declared, inner) in [("row", false), ("row[3,D]", false), ("row", true)] {
        let mut nodes = vec![
            node("Identity", "go", "on", vec![]),
            node("MatMul", "h w", "next", vec![]),
            node("Concat", "next next", "row", vec![int("axis", 1)]),
        ];
        let row = if inner {
            let copies = graph(
                "j:int64[] go_on:bool[] g",
                vec![node("Identity", "go_on", "still", vec![]), node("Tanh", "g", "tanh", vec![])],
                "still:bool[] tanh tanh",
                vec![],
            );
            nodes.push(node("Loop", "i _ next", "last copies", vec![body("body", copies)]));
            "copies"
        } else {
            declared
        };
        let steps = graph("i:int64[] go:bool[] h[3,D]", nodes, &format!("on:bool[] next {row}"), vec![]);
        let mut nodes = vec![node("Loop", "m _ x", "y rows", vec![body("body", steps)])];
        nodes.extend(mean_square("y"));
        let whole = graph("x[3,4] m:int64[]", nodes, "loss[] y rows", vec![weight("w", &[4, 4], &w)]);
        let model = write(dir.path(), "m.onnx", 17, whole);
        let data = |m: i64| arrays(&dir.path().join("m.npz"), &[("x", &[3, 4], &x)], &[("m", &[], &[m])]);
        let rest: &[u64] = if inner { &[0, 3, 4] } else { &[3, 8] };
        let mut none = run(&model, &data(0), &["--inference"]);
        assert_eq!(none.floats("rows"), ([&[0], rest].concat(), vec![]), "{declared} {inner}");
        assert_eq!(none.floats("y").1, x.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let once = run(&model, &data(1), &["--inference"]).floats("rows").0;
        assert_eq!(once, [&[1], rest].concat(), "{declared} {inner}");
        // The weight is off the way; a step is one all the same.
        let trained = step(&model, &data(0)).get("w");
        assert_eq!(trained.to_floats(), w.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
    }
    // Data decide in the body, and the file says what it collects in sizes of the inputs.
    let branch = |op: &str, o: &str| graph("", vec![node(op, "next", o, vec![])], o, vec![]);
    let steps = graph(
        "i:int64[] go:bool[] h[N,4]",
        vec![
            node("Identity", "go", "on", vec![]),
            node("MatMul", "h w", "next", vec![]),
            node("ReduceSum", "next", "sum", vec![int("keepdims", 0)]),
            node("Greater", "sum zero", "more", vec![]),
            node(
                "If",
                "more",
                "row",
                vec![body("then_branch", branch("Tanh", "t")), body("else_branch", branch("Neg", "u"))],
            ),
        ],
        "on:bool[] next[N,4] row[N,4]",
        vec![],
    );
    let mut nodes = vec![node("Loop", "m _ x", "y rows", vec![body("body", steps)])];
    nodes.extend(mean_square("y"));
    let weights = vec![weight("w", &[4, 4], &w), weight("zero", &[], &[0.0])];
    let model = write(dir.path(), "i.onnx", 17, graph("x[N,4] m:int64[]", nodes, "loss[] y rows", weights));
    for m in [0, 2] {
        let data = arrays(&dir.path().join("i.npz"), &[("x", &[3, 4], &x)], &[("m", &[], &[m])]);
        assert_eq!(run(&model, &data, &["--inference"]).floats("rows").0, [m as u64, 3, 4]);
        step(&model, &data);
    }
    // What only data could tell is said to be so.
    let counted = graph(
        "i:int64[] go:bool[] h",
        vec![node("Identity", "go", "on", vec![]), node("NonZero", "h", "row", vec![])],
        "on:bool[] h row:int64",
        vec![],
    );
    let nodes = vec![node("Loop", "m _ x", "y rows", vec![body("body", counted)])];
    let model = write(dir.path(), "n.onnx", 17, graph("x[3,4] m:int64[]", nodes, "y rows:int64", vec![]));
    let data = arrays(&dir.path().join("n.npz"), &[("x", &[3, 4], &x)], &[("m", &[], &[0])]);
    let refused = dtrc(&["run", &model, "--inference", "--data", &data, "--budget", "1M"]);
    refused.fails(65, &["no iteration ran", "NonZero", "known only at run time"]);
}

#[test]
fn a_scan_over_nothing_has_collected_nothing_along_its_axis() {
    let dir = tempfile::tempdir().unwrap();
    let w = floats(16, 1);
    let elements = |n: u64| floats(2 * 4 * n as usize, 3);
    for (axis, at) in [(0, 0), (1, 1), (2, 2), (-1, 2), (-2, 1), (-3, 0)] {
        for declared in ["o", "o[2,4]"] {
            let steps = graph(
                "s[2,4] r[2,4]",
                vec![
                    node("MatMul", "s w", "p", vec![]),
                    node("Add", "p r", "t", vec![]),
                    node("Tanh", "t", "o", vec![]),
                ],
                &format!("t[2,4] {declared}"),
                vec![],
            );
            let how = vec![
                body("body", steps),
                int("num_scan_inputs", 1),
                ints("scan_input_axes", &[1]),
                ints("scan_output_axes", &[axis]),
            ];
            let nodes = [vec![node("Scan", "s0 x", "t0 o0", how)], mean_square("t0")].concat();
            let weights = vec![weight("w", &[4, 4], &w), weight("s0", &[2, 4], &floats(8, 4))];
            let model = write(dir.path(), "s.onnx", 17, graph("x[2,L,4]", nodes, "loss[] o0", weights));
            for n in [0, 1, 3] {
                let data = arrays(&dir.path().join("s.npz"), &[("x", &[2, n, 4], &elements(n))], &[]);
                let mut expected = vec![2, 4];
                expected.insert(at, n);
                let shape = run(&model, &data, &["--inference"]).floats("o0").0;
                assert_eq!(shape, expected, "axis {axis}, {n} steps, {declared}");
            }
        }
    }
    // An axis that the body's output has not is refused, whether anything runs or not.
    let steps = graph("s[2] r[2]", vec![node("Add", "s r", "t", vec![])], "t t", vec![]);
    let how = vec![body("body", steps), int("num_scan_inputs", 1), ints("scan_output_axes", &[2])];
    let nodes = vec![node("Scan", "s0 x", "t0 o0", how)];
    let model = write(dir.path(), "a.onnx", 17, graph("x[L,2] s0[2]", nodes, "o0", vec![]));
    for n in [0, 2] {
        let rows = vec![1.0; 2 * n as usize];
        let data =
            arrays(&dir.path().join("a.npz"), &[("x", &[n, 2], &rows), ("s0", &[2], &[1.0, 2.0])], &[]);
        let refused = dtrc(&["run", &model, "--inference", "--data", &data, "--budget", "1M"]);
        refused.fails(65, &["Scan", "axis 2"]);
    }
}

#[test]
fn outputs_that_are_sequences_are_left_out_beside_others() {
    let dir = tempfile::tempdir().unwrap();
    let w = floats(16, 1);
    let model = |outputs: &str| {
        let steps = graph(
            "i:int64[] go:bool[] h all:sequence",
            vec![
                node("Identity", "go", "on", vec![]),
                node("MatMul", "h w", "next", vec![]),
                node("SequenceInsert", "all next", "more", vec![]),
            ],
            "on:bool[] next more:sequence",
            vec![],
        );
        let mut nodes = vec![
            node("SequenceEmpty", "", "none", vec![]),
            node("Loop", "m _ x none", "y rows", vec![body("body", steps)]),
        ];
        nodes.extend(mean_square("y"));
        let inputs = "x[3,4] m:int64[]";
        write(dir.path(), "m.onnx", 17, graph(inputs, nodes, outputs, vec![weight("w", &[4, 4], &w)]))
    };
    let x = floats(12, 2);
    let data = arrays(&dir.path().join("m.npz"), &[("x", &[3, 4], &x)], &[("m", &[], &[2])]);
    let plain = step(&model("loss[]"), &data).get("w");
    let both = model("rows:sequence loss[]");
    assert_eq!(step(&both, &data).get("w").bytes(), plain.bytes());
    let inference = ["run", &both, "--inference", "--data", &data, "--budget", "1M"];
    let said = dtrc(&inference).ok().stderr;
    assert!(said.contains("outputs that are no tensors are left out: rows"), "{said}");
    let alone = model("rows:sequence");
    let inference = ["run", &alone, "--inference", "--data", &data, "--budget", "1M"];
    dtrc(&inference).fails(65, &["output rows is no tensor"]);
}

/// Sums over the sequence, last step first, times a weight: what a Scan of opset 8 gives, by hand. The states, what is collected, the loss
/// and the weight's gradient.
fn scanned(x: &[f32], s0: &[f32], w: &[f32], lengths: &[usize], steps: usize) -> [Vec<f64>; 4] {
    let (mut states, mut rows) = (vec![0.0; lengths.len() * 2], vec![0.0; lengths.len() * steps * 2]);
    let (mut loss, mut gradient) = (0.0, vec![0.0; 2]);
    let n = rows.len() as f64;
    for (b, length) in lengths.iter().enumerate() {
        for d in 0..2 {
            let mut sum = f64::from(s0[b * 2 + d]);
            for k in 0..*length {
                sum += f64::from(x[(b * steps + length - 1 - k) * 2 + d]);
                let w = f64::from(w[d]);
                rows[(b * steps + k) * 2 + d] = sum * w;
                loss += sum * sum * w * w / n;
                gradient[d] += 2.0 * sum * sum * w / n;
            }
            states[b * 2 + d] = sum;
        }
    }
    [states, rows, vec![loss], gradient]
}

#[test]
fn a_scan_of_opset_8_has_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (x, s0, w) = (floats(20, 1), floats(4, 2), [0.5, -1.5]);
    let model = |lengths: &str, extents: &str| {
        let steps = graph(
            "s r",
            vec![node("Add", "s r", "sum", vec![]), node("Mul", "sum w", "row", vec![])],
            "sum row",
            vec![],
        );
        let how = vec![body("body", steps), int("num_scan_inputs", 1), ints("directions", &[1])];
        let name = lengths.split([':', '[']).next().unwrap();
        let nodes =
            [vec![node("Scan", &format!("{name} s0 x"), "last rows", how)], mean_square("rows")].concat();
        let inputs = format!("x[{extents},2] s0[B,2] {}", if lengths == "_" { "" } else { lengths });
        write(dir.path(), "s.onnx", 8, graph(&inputs, nodes, "loss[] last rows", vec![weight("w", &[2], &w)]))
    };
    let near = |(_, got): (Vec<u64>, Vec<f64>), expected: &[f64], what: &str| {
        assert_eq!(got.len(), expected.len(), "{what}");
        for (a, b) in got.iter().zip(expected) {
            assert!((a - b).abs() < 1e-5, "{what}: {a} for {b}");
        }
    };
    let given: &[Floats<'_>] = &[("x", &[2, 5, 2], &x), ("s0", &[2, 2], &s0)];
    for lengths in [None, Some([3, 5]), Some([5, 0])] {
        let model = model(lengths.map_or("_", |_| "lengths:int64[2]"), "2,5");
        let numbers: Vec<i64> = lengths.into_iter().flatten().collect();
        let whole = ("lengths", &[2u64][..], numbers.as_slice());
        let also: &[(&str, &[u64], &[i64])] = if lengths.is_some() { &[whole] } else { &[] };
        let data = arrays(&dir.path().join("s.npz"), given, also);
        let steps = lengths.unwrap_or([5, 5]).map(|n| n as usize);
        let [states, rows, loss, gradient] = scanned(&x, &s0, &w, &steps, 5);
        let mut out = run(&model, &data, &["--inference"]);
        near(out.floats("last"), &states, "states");
        near(out.floats("rows"), &rows, "rows");
        near(out.floats("loss"), &loss, "loss");
        let after: Vec<f64> = w.iter().zip(&gradient).map(|(w, g)| f64::from(*w) - g).collect();
        near(step(&model, &data).floats("w"), &after, "weight after a step");
    }
    // Nothing along either axis.
    for (batch, steps) in [(2, 0), (0, 5), (0, 0)] {
        let given: &[Floats<'_>] = &[
            ("x", &[batch, steps, 2], &x[..(batch * steps * 2) as usize]),
            ("s0", &[batch, 2], &s0[..(batch * 2) as usize]),
        ];
        let data = arrays(&dir.path().join("s.npz"), given, &[]);
        let mut out = run(&model("_", "B,L"), &data, &["--inference"]);
        assert_eq!(out.floats("rows").0, [batch, steps, 2]);
        let unmoved = s0[..(batch * 2) as usize].iter().map(|v| f64::from(*v)).collect();
        assert_eq!(out.floats("last"), (vec![batch, 2], unmoved));
    }
    let data = arrays(&dir.path().join("s.npz"), given, &[("lengths", &[2], &[3, 6])]);
    let refused =
        dtrc(&["run", &model("lengths:int64[2]", "2,5"), "--inference", "--data", &data, "--budget", "1M"]);
    refused.fails(65, &["sequence_lens", "between 0 and 5"]);
}

#[test]
fn what_data_decide_is_not_said_to_wait_for_a_size() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = vec![node("NonZero", "x", "at", vec![]), node("Cast", "at", "y", vec![int("to", 1)])];
    let model = write(dir.path(), "n.onnx", 17, graph("x[N,4]", nodes, "y", vec![]));
    let data = arrays(&dir.path().join("n.npz"), &[("x", &[1, 4], &[0.0, 1.0, 0.0, 2.0])], &[]);
    let run = ["run", &model, "--inference", "--data", &data, "--budget", "1M"];
    let said = dtrc(&run).ok().stderr;
    assert!(said.contains("NonZero") && said.contains("it depends on data"), "{said}");
    assert!(!said.contains("--dim"), "{said}");
    let estimate = dtrc(&["estimate", &model, "--inference"]);
    estimate.fails(65, &["data decide", "its program is made anew"]);
    assert!(!estimate.stderr.contains("--dim") && !estimate.stderr.contains("  "), "{}", estimate.stderr);
    // A size alone is bound.
    let nodes = vec![node("Shape", "x", "s", vec![]), node("ConstantOfShape", "s", "y", vec![])];
    let sized = write(dir.path(), "s.onnx", 17, graph("x[N,4]", nodes, "y", vec![]));
    dtrc(&["estimate", &sized, "--inference"]).fails(65, &["--dim N=N"]);
}

#[test]
fn pools_that_are_too_small_or_too_large_are_said_to_be_so() {
    let dir = tempfile::tempdir().unwrap();
    let sides = ["then_branch", "else_branch"].map(|name| {
        let inner = vec![
            node("MatMul", "x a", &format!("{name}.1"), vec![]),
            node("Tanh", &format!("{name}.1"), &format!("{name}.2"), vec![]),
        ];
        body(name, graph("", inner, &format!("{name}.2"), vec![]))
    });
    let mut nodes = vec![
        node("ReduceSum", "x", "sum", vec![int("keepdims", 0)]),
        node("Greater", "sum zero", "positive", vec![]),
        node("If", "positive", "v0", sides.to_vec()),
    ];
    for i in 0..4 {
        nodes.push(node("MatMul", &format!("v{i} up"), &format!("u{i}"), vec![]));
        nodes.push(node("Tanh", &format!("u{i}"), &format!("t{i}"), vec![]));
        nodes.push(node("Sin", &format!("t{i}"), &format!("s{i}"), vec![]));
        nodes.push(node("MatMul", &format!("s{i} down"), &format!("v{}", i + 1), vec![]));
    }
    nodes.extend(mean_square("v4"));
    let weights = vec![
        weight("a", &[16, 16], &floats(256, 1)),
        weight("up", &[16, 128], &floats(2048, 2)),
        weight("down", &[128, 16], &floats(2048, 3)),
        weight("zero", &[], &[0.0]),
    ];
    let model = write(dir.path(), "m.onnx", 17, graph("x[64,16]", nodes, "loss[]", weights));
    let data = arrays(&dir.path().join("m.npz"), &[("x", &[64, 16], &floats(1024, 4))], &[]);
    let run = |budget: &str, more: &[&str]| {
        let fixed = ["run", &model, "--data", &data, "--budget", budget, "--loss", "output:loss"];
        dtrc(&[&fixed[..], more].concat())
    };
    // Whatever the reason, the node is one that needs what is said.
    let mut refused = 0;
    for kib in (96..136).step_by(2) {
        let out = run(&format!("{kib}K"), &[]);
        if out.code != 0 {
            out.fails(71, &["out of memory at"]);
            let at = out.stderr.split("out of memory at ").nth(1).unwrap();
            assert!(!at.starts_with("Input"), "{kib}K: {at}");
            refused += 1;
        }
    }
    assert!(refused > 0);
    run("300K", &["--dynamic-pool", "1"]).fails(64, &["--dynamic-pool", "256 bytes"]);
    let clipped = run("300K", &["--dynamic-pool", "1G"]).ok().stderr;
    assert!(clipped.contains("--dynamic-pool 1.00 GiB: the state leaves 28"), "{clipped}");
    let whole = run("300K", &["--dynamic-pool", "200K"]).ok().stderr;
    assert!(!whole.contains("the state leaves"), "{whole}");
}

#[test]
fn a_loop_that_ends_by_its_trip_count_at_the_latest_may_take_long_in_a_small_pool() {
    let dir = tempfile::tempdir().unwrap();
    // 16 nodes an iteration, 131,072 of which a loop without a trip count may make in so little.
    let mut nodes: Vec<_> = (0..14)
        .map(|k| {
            let from = if k == 0 { "h".to_owned() } else { format!("h{k}") };
            node("Neg", &from, &format!("h{}", k + 1), vec![])
        })
        .collect();
    nodes.push(node("Less", "i enough", "on", vec![]));
    // What nobody reads need not be known.
    nodes.push(node("NobodyKnows", "h", "idle", vec![]));
    let steps = graph("i:int64[] go:bool[] h[2]", nodes, "on:bool[] h14[2]", vec![]);
    let with = |most: &str, trips: i64| {
        let most_trips = support::onnx::numbers("most", &[], &[trips]);
        let call = format!("{most} yes x");
        let yes = node("Equal", "enough enough", "yes", vec![]);
        let all = vec![yes, node("Loop", &call, "y", vec![body("body", steps.clone())])];
        let all = graph("x[2] enough:int64[]", all, "y[2]", vec![most_trips]);
        write(dir.path(), &format!("{most}{trips}.onnx"), 17, all)
    };
    let model = with("most", 20_000);
    let x: &[f32] = &[1.5, -2.0];
    let data = arrays(&dir.path().join("l.npz"), &[("x", &[2], x)], &[("enough", &[], &[9_000])]);
    let mut done = run(&model, &data, &["--inference"]);
    assert_eq!(done.floats("y").1, [1.5, -2.0]);
    // What may take longer is told the way out that it has.
    let counted = "and its trip count, 200000, allows more; give a larger budget, or a smaller trip count";
    for (model, way_out) in
        [(with("most", 200_000), counted), (with("_", 0), "; give a larger budget, or a trip count")]
    {
        let refused = dtrc(&["run", &model, "--inference", "--data", &data, "--budget", "1M"]);
        refused.fails(65, &["still going on after 131072 nodes", way_out]);
    }
}

/// A body that collects what a branch on data makes: no walk of it tells the shape, the file does.
fn collects(loops: &str, inner: Vec<onnx_protobuf::NodeProto>) -> onnx_protobuf::NodeProto {
    let side = |name: &str, op: &str| {
        body(name, graph("", vec![node(op, "a", op, vec![])], &format!("{op}[N,3]"), vec![]))
    };
    let mut nodes = inner;
    nodes.extend([
        node("Identity", "g2", "go2", vec![]),
        node("ReduceSum", "a", "sum", vec![int("keepdims", 0)]),
        node("Greater", "sum zero", "positive", vec![]),
        node("If", "positive", "row", vec![side("then_branch", "Tanh"), side("else_branch", "Sin")]),
    ]);
    let (given, carried, out) = match loops.split_once("_ ") {
        Some((_, carried)) if !carried.is_empty() => (" k[N,3]", " a[N,3]", "last rows"),
        _ => ("", "", "rows"),
    };
    let inner = graph(
        &format!("j:int64[] g2:bool[]{given}"),
        nodes,
        &format!("go2:bool[]{carried} row[N,3]"),
        vec![],
    );
    node("Loop", loops, out, vec![body("body", inner)])
}

#[test]
fn the_files_word_on_what_was_never_collected_holds_for_sizes_that_are_bound() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = vec![
        collects("m _ x", vec![node("MatMul", "k w", "a", vec![])]),
        node("ReduceSum", "rows zeroth", "total", vec![int("keepdims", 0)]),
        node("MatMul", "last w", "u", vec![]),
        node("Add", "total u", "y", vec![]),
    ];
    nodes.extend(mean_square("y"));
    let weights = vec![
        weight("w", &[3, 3], &floats(9, 1)),
        weight("zero", &[], &[0.0]),
        support::onnx::numbers("zeroth", &[1], &[0]),
    ];
    let model = write(dir.path(), "never.onnx", 17, graph("x[N,3] m:int64[]", nodes, "loss[]", weights));
    let x = floats(12, 2);
    for trips in [0, 2] {
        let data = arrays(&dir.path().join("data.npz"), &[("x", &[4, 3], &x)], &[("m", &[], &[trips])]);
        let trained = |sizes: &[&str]| {
            let fixed = ["train", &model, "--data", &data, "--budget", "1M", "--steps", "2", "--json"];
            dtrc(&[&fixed[..], sizes].concat()).ok().losses()
        };
        let open = trained(&[]);
        assert_eq!(open.len(), 2);
        for sizes in [["--dim", "N=4"], ["--dim", "N<=4"], ["--dim", "N=2,4"], ["--batch", "4"]] {
            assert_eq!(trained(&sizes), open, "{trips} iterations, {sizes:?}");
        }
    }
}

#[test]
fn what_was_never_collected_waits_for_open_sizes() {
    let dir = tempfile::tempdir().unwrap();
    // The inner loop runs as often as the outer one has: never at first, which is known without a batch. Its extents are not.
    let model = |rows: &str| {
        let outer = graph(
            &format!("i:int64[] g:bool[] h[{rows},3]"),
            vec![
                node("Identity", "g", "go", vec![]),
                collects("i _ ", vec![node("MatMul", "h w", "a", vec![])]),
                node("ReduceSum", "rows zeroth", "total", vec![int("keepdims", 0)]),
                node("MatMul", "h w", "u", vec![]),
                node("Add", "total u", "n", vec![]),
            ],
            &format!("go:bool[] n[{rows},3]"),
            vec![],
        );
        let mut nodes = vec![node("Loop", "two _ x", "y", vec![body("body", outer)])];
        nodes.extend(mean_square("y"));
        let weights = vec![
            weight("w", &[3, 3], &floats(9, 1)),
            weight("zero", &[], &[0.0]),
            support::onnx::numbers("two", &[], &[2]),
            support::onnx::numbers("zeroth", &[1], &[0]),
        ];
        write(dir.path(), "waits.onnx", 17, graph(&format!("x[{rows},3]"), nodes, "loss[]", weights))
    };
    let x = floats(12, 2);
    let data = arrays(&dir.path().join("data.npz"), &[("x", &[4, 3], &x)], &[]);
    let bound =
        run(&model("N"), &data, &["--dim", "N=4", "--loss", "output:loss", "--lr", "1", "--state"]).get("w");
    assert_eq!(step(&model("N"), &data).get("w").bytes(), bound.bytes());
    // A name that no input has never gets a size.
    let text = dtrc(&["run", &model("K"), "--data", &data, "--budget", "1M"]);
    assert_eq!(text.code, 65, "{}", text.stderr);
}

/// What a decision was computed from in float32 is made again in halves: the step's product is another one of the same name.
#[test]
fn decisions_behind_products_train_in_halves() {
    let dir = tempfile::tempdir().unwrap();
    let branch = |name: &str, op: &str| {
        body(
            name,
            graph("", vec![node(op, "a k", &format!("{name}.out"), vec![])], &format!("{name}.out"), vec![]),
        )
    };
    let mut nodes = vec![
        node("MatMul", "x w", "a", vec![]),
        node("ReduceSum", "a", "s", vec![int("keepdims", 0)]),
        node("Greater", "s zero", "c", vec![]),
        node("If", "c", "y", vec![branch("then_branch", "Mul"), branch("else_branch", "Add")]),
    ];
    nodes.extend(mean_square("y"));
    let inner = vec![
        weight("w", &[4, 4], &floats(16, 1)),
        weight("k", &[4], &floats(4, 2)),
        weight("zero", &[], &[0.0]),
    ];
    let path = write(dir.path(), "m.onnx", 17, graph("x[3,4]", nodes, "loss[]", inner));
    for sign in [1.0, -1.0] {
        let x: Vec<f32> = floats(12, 3).iter().map(|v| v * sign).collect();
        let data = arrays(&dir.path().join("d.npz"), &[("x", &[3, 4], &x)], &[]);
        let step = |more: &[&str]| {
            let fixed = ["--loss", "output:loss", "--lr", "0.1", "--state"];
            let mut r = run(&path, &data, &[&fixed[..], more].concat());
            (r.floats("loss").1[0], r.floats("w").1, r.floats("k").1)
        };
        let plain = step(&[]);
        for amp in ["bf16", "fp16"] {
            let halves = step(&["--amp", amp]);
            let near =
                |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-2 * (1.0 + b.abs()));
            assert!(halves != plain, "{amp}: nothing was rounded");
            assert!(
                near(&[halves.0], &[plain.0]) && near(&halves.1, &plain.1) && near(&halves.2, &plain.2),
                "{halves:?} {plain:?}"
            );
            for pool in ["2304", "3072", "4096"] {
                assert!(step(&["--amp", amp, "--dynamic-pool", pool]) == halves, "{amp} in {pool} bytes");
            }
        }
    }
}
