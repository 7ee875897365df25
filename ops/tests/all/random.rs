//! Distributions, masks that fit their dropouts, and how Dropout is read.

use crate::support;
use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType};
use ops::{
    Builder,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};

fn scalar(v: i64) -> Literal {
    Literal::ints(&[v]).reshaped(vec![]).unwrap()
}

fn run(op: &str, attrs: Attrs, inputs: &[&Literal]) -> Literal {
    support::run(op, attrs, inputs).remove(0)
}

fn moments(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    (mean, x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n)
}

/// More than one piece of parallel work, and a rest.
const N: u64 = 40_007;

#[test]
fn dropout_keeps_the_right_share_and_its_mask_says_which() {
    let ones = Literal::filled(DType::F32, vec![N], 1.0).unwrap();
    let (seed, step) = (scalar(1), scalar(2));
    let attrs = Attrs::new().with("ratio", 0.25).with("id", 7i64);
    let y = run("Dropout", attrs.clone(), &[&ones, &seed, &step]);
    let v = y.to_floats();
    let kept = v.iter().filter(|v| **v != 0.0).count() as f64 / N as f64;
    assert!((kept - 0.75).abs() < 0.01, "{kept} are kept");
    assert!(v.iter().all(|v| *v == 0.0 || *v == f64::from(4.0f32 / 3.0)));
    assert_eq!(run("DropoutGrad", attrs.clone(), &[&ones, &seed, &step]), y);
    let mask = run("DropoutMask", attrs.clone().with("shape", vec![N as i64]), &[&seed, &step]).to_floats();
    assert!(mask.iter().zip(&v).all(|(m, v)| (*m != 0.0) == (*v != 0.0)));
    assert_ne!(run("Dropout", attrs.clone(), &[&ones, &seed, &scalar(3)]), y);
    assert_ne!(run("Dropout", attrs.with("id", 8i64), &[&ones, &seed, &step]), y);
}

#[test]
fn generated_numbers_have_their_moments() {
    let (seed, step) = (scalar(1), scalar(2));
    for dtype in [DType::F32, DType::F64] {
        let attrs = Attrs::new().with("shape", vec![N as i64]).with("dtype", dtype).with("id", 3i64);
        let uniform = attrs.clone().with("low", -1.0).with("high", 3.0);
        let x = run("RandomUniform", uniform, &[&seed, &step]).to_floats();
        assert!(x.iter().all(|v| (-1.0..3.0).contains(v)));
        let (mean, var) = moments(&x);
        assert!((mean - 1.0).abs() < 0.03 && (var - 16.0 / 12.0).abs() < 0.03, "{mean} {var}");
        let x = run("RandomNormal", attrs.with("mean", 2.0).with("scale", 3.0), &[&seed, &step]).to_floats();
        let (mean, var) = moments(&x);
        assert!((mean - 2.0).abs() < 0.06 && (var - 9.0).abs() < 0.25, "{mean} {var}");
        let within = x.iter().filter(|v| (**v - 2.0).abs() < 3.0).count() as f64 / N as f64;
        assert!((within - 0.6827).abs() < 0.01, "{within} lie within one deviation");
    }
}

#[test]
fn choices_follow_their_probabilities() {
    let (seed, step) = (scalar(1), scalar(2));
    let p = Literal::filled(DType::F32, vec![N], 0.3).unwrap();
    let attrs = Attrs::new().with("dtype", DType::Bool).with("id", 3i64);
    let (share, _) = moments(&run("Bernoulli", attrs.clone(), &[&p, &seed, &step]).to_floats());
    assert!((share - 0.3).abs() < 0.01, "{share}");
    // Probabilities 1/7, 2/7, 4/7.
    let x: Vec<u8> = [0.0f64, 2f64.ln(), 4f64.ln()].iter().flat_map(|v| v.to_le_bytes()).collect();
    let x = Literal::new(DType::F64, vec![1, 3], x).unwrap();
    let attrs = attrs.with("dtype", DType::I64).with("samples", 20_000i64);
    let drawn = run("Multinomial", attrs, &[&x, &seed, &step]).to_floats();
    for (class, want) in [1.0, 2.0, 4.0].iter().enumerate() {
        let share = drawn.iter().filter(|d| **d == class as f64).count() as f64 / 20_000.0;
        assert!((share - want / 7.0).abs() < 0.02, "class {class}: {share}");
    }
}

fn import(opset: i64, training_mode: Option<f64>, options: ImportOptions) -> (Vec<String>, usize, Graph) {
    let mut g = Graph::default();
    let x = g.add_input("x", TensorType::new(DType::F32, &vec![2usize, 3]), InputRole::Data);
    let mut inputs = vec![Some(x)];
    if let Some(mode) = training_mode {
        inputs.push(Some(g.add_constant("ratio", Literal::scalar(DType::F32, 0.25))));
        inputs.push(Some(g.add_constant("mode", Literal::scalar(DType::Bool, mode))));
    }
    let mut b = Builder::new(&mut g);
    b.set_scope("block/drop");
    let attrs = Attrs::new();
    let mut cx = ImportCx {
        b: &mut b,
        options,
        op_type: "Dropout",
        opset,
        attrs: &attrs,
        inputs: &inputs,
        used: &[true],
        outputs: Vec::new(),
        remarks: Vec::new(),
    };
    let rule = find_rule("", "Dropout").unwrap();
    // Twice: two nodes never share their bits.
    (rule.import)(&mut cx).unwrap();
    (rule.import)(&mut cx).unwrap();
    let (remarks, out) = (cx.remarks.len(), cx.outputs[0]);
    if g.nodes.is_empty() {
        assert_eq!(out, Some(x), "dropout that is off is its input");
    }
    (g.nodes.iter().map(|n| n.op.to_string()).collect(), remarks, g)
}

#[test]
fn dropout_is_read_by_mode() {
    let auto = ImportOptions {
        training: true,
        batchnorm: BatchNormMode::Auto,
        dropout: DropoutMode::Auto,
        unbiased_running_variance: true,
    };
    let choose = |dropout| ImportOptions { dropout, ..auto };
    let (on, off) = (["Dropout", "Dropout"], Vec::<String>::new());
    let (ops, remarks, g) = import(13, Some(1.0), auto);
    assert_eq!((ops, remarks), (on.map(String::from).to_vec(), 0));
    assert_eq!(g.nodes[0].attrs.float_or("ratio", 0.0).unwrap(), 0.25);
    assert_ne!(g.nodes[0].attrs.int("id").unwrap(), g.nodes[1].attrs.int("id").unwrap());
    let roles: Vec<InputRole> = g.inputs.iter().map(|i| i.role).collect();
    assert_eq!(roles, [InputRole::Data, InputRole::Seed, InputRole::Step]);
    assert_eq!(import(10, None, auto).0, on);
    let (ops, remarks, _) = import(13, Some(0.0), auto);
    assert_eq!((ops, remarks), (off.clone(), 2));
    assert_eq!(import(13, None, choose(DropoutMode::On)).0, on);
    assert_eq!(import(13, Some(1.0), choose(DropoutMode::Off)).0, off);
    assert_eq!(import(10, None, ImportOptions { training: false, ..auto }).0, off);
}
