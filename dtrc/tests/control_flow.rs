//! What bodies of control flow hand out, collect and carry, from the command line.

mod support;

use graph::{DType, Literal};
use runtime::data::npz::{self, Npz};
use std::path::Path;
use support::{
    dtrc, floats,
    onnx::{body, graph, int, node, weight, write},
};

/// An array of the data: name, extents, elements.
type Floats<'a> = (&'a str, &'a [u64], &'a [f32]);

/// Writes float arrays, and numbers that are single.
fn arrays(path: &Path, given: &[Floats<'_>], single: &[(&str, i64)]) -> String {
    let bytes: Vec<Vec<u8>> =
        given.iter().map(|(_, _, v)| v.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let numbers: Vec<[u8; 8]> = single.iter().map(|(_, v)| v.to_le_bytes()).collect();
    let float = given.iter().zip(&bytes).map(|((n, s, _), b)| (*n, DType::F32, *s, b.as_slice()));
    let single = single.iter().zip(&numbers).map(|((n, _), b)| (*n, DType::I64, &[][..], b.as_slice()));
    npz::write(std::fs::File::create(path).expect("a file"), float.chain(single)).expect("written");
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
    let out = format!("{data}.out");
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
