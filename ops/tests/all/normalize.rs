//! Normalisations against plain loops in float64, and how BatchNormalization is read.

use crate::support::{self, f32s, run, wavy};
use graph::{Attrs, DType, Graph, Init, InputRole, Literal, StateKind, TensorType};
use ops::{
    Builder,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};

fn close(got: &Literal, want: &[f64]) {
    support::close(got, want, 3e-6);
}

#[test]
fn batch_statistics_are_those_of_a_plain_loop() {
    for (shape, offset) in [([4usize, 3, 50], 0.0), ([300, 40, 1], 0.0), ([64, 2, 3], 1000.0)] {
        let [n, c, s] = shape;
        let x = f32s(&shape.map(|d| d as u64), |i| offset + wavy(i));
        let v = x.to_floats();
        let (scale, bias) = (f32s(&[c as u64], |i| 1.0 + i as f32), f32s(&[c as u64], |i| i as f32 / 8.0));
        let eps = Attrs::new().with("eps", 1e-3);
        let out = run("BatchNormTraining", eps.clone(), &[&x, &scale, &bias]);
        let (mut y, mut means, mut vars) = (vec![0.0; v.len()], Vec::new(), Vec::new());
        for k in 0..c {
            let at = |i: usize| (i / s * c + k) * s + i % s;
            let count = (n * s) as f64;
            let mean = (0..n * s).map(|i| v[at(i)]).sum::<f64>() / count;
            let var = (0..n * s).map(|i| (v[at(i)] - mean).powi(2)).sum::<f64>() / count;
            for i in 0..n * s {
                y[at(i)] = (v[at(i)] - mean) / (var + 1e-3).sqrt() * (1.0 + k as f64) + k as f64 / 8.0;
            }
            means.push(mean);
            vars.push(var);
        }
        close(&out[1], &means);
        close(&out[2], &vars);
        close(&out[3], &vars.iter().map(|v| 1.0 / (v + 1e-3).sqrt()).collect::<Vec<_>>());
        // A mean of 1000 costs three digits of x itself.
        let got = out[0].to_floats();
        let limit = if offset > 0.0 { 2e-4 } else { 1e-5 };
        assert!(got.iter().zip(&y).all(|(a, b)| (a - b).abs() < limit * (1.0 + b.abs())));
        let frozen = run("BatchNormInference", eps, &[&x, &scale, &bias, &out[1], &out[2]])[0].to_floats();
        assert!(frozen.iter().zip(&got).all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs())));
    }
}

/// The operators that a BatchNormalization over states becomes, the graph, and the remarks.
fn import(attrs: Attrs, opset: i64, outputs: usize, options: ImportOptions) -> (Vec<String>, Graph, usize) {
    let mut g = Graph::default();
    let x = g.add_input("x", TensorType::new(DType::F32, &vec![2usize, 3, 4]), InputRole::Data);
    let mut inputs = vec![Some(x)];
    for name in ["scale", "bias", "mean", "var"] {
        let ty = TensorType::new(DType::F32, &vec![3usize]);
        inputs.push(Some(g.add_state(name, ty, StateKind::Frozen, Init::Weight(name.into()))));
    }
    let used = vec![true; outputs];
    let mut b = Builder::new(&mut g);
    let mut cx = ImportCx {
        b: &mut b,
        options,
        op_type: "BatchNormalization",
        opset,
        attrs: &attrs,
        inputs: &inputs,
        used: &used,
        outputs: Vec::new(),
        remarks: Vec::new(),
    };
    (find_rule("", "BatchNormalization").unwrap().import)(&mut cx).unwrap();
    let (remarks, set) = (cx.remarks.len(), cx.outputs.iter().filter(|o| o.is_some()).count());
    assert!(set >= outputs, "{set} of {outputs} outputs are set");
    (g.nodes.iter().map(|n| n.op.to_string()).collect(), g, remarks)
}

#[test]
fn batchnorm_is_read_by_mode() {
    let auto = ImportOptions {
        training: true,
        batchnorm: BatchNormMode::Auto,
        dropout: DropoutMode::Auto,
        unbiased_running_variance: true,
    };
    let trained = Attrs::new().with("training_mode", 1i64).with("momentum", 0.75);
    let update = ["BatchNormTraining", "RunningUpdate", "RunningUpdate"];
    let (ops, g, remarks) = import(trained.clone(), 15, 3, auto);
    assert_eq!((ops, remarks), (update.map(String::from).to_vec(), 0));
    assert_eq!(g.states[2].kind, StateKind::Statistic);
    assert!(g.states[2].output.is_some() && g.states[3].output.is_some());
    // 8 elements a channel.
    assert_eq!(g.nodes[2].attrs.float_or("scale", 0.0).unwrap(), 8.0 / 7.0);
    assert_eq!(g.nodes[1].attrs.float_or("scale", 0.0).unwrap(), 1.0);
    // Older opsets train when the extra outputs are there.
    assert_eq!(import(Attrs::new(), 9, 5, auto).0, update);
    assert_eq!(import(Attrs::new(), 9, 1, auto).0, ["BatchNormInference"]);
    // An inference export inside a training step is worth a remark; a choice of the user is not.
    let frozen = ["BatchNormInference"];
    let (ops, g, remarks) = import(Attrs::new(), 15, 1, auto);
    assert_eq!((ops, remarks), (frozen.map(String::from).to_vec(), 1));
    assert!(g.states.iter().all(|s| s.output.is_none()));
    let choose = |batchnorm| ImportOptions { batchnorm, ..auto };
    let (ops, _, remarks) = import(trained.clone(), 15, 1, choose(BatchNormMode::Frozen));
    assert_eq!((ops, remarks), (frozen.map(String::from).to_vec(), 0));
    assert_eq!(import(Attrs::new(), 15, 1, choose(BatchNormMode::Train)).0, update);
    // Outside of a training step nothing trains.
    assert_eq!(import(trained, 15, 3, ImportOptions { training: false, ..auto }).0, frozen);
}

#[test]
fn rows_and_groups_are_those_of_a_plain_loop() {
    let (n, c, s) = (3usize, 6, 50);
    let x = f32s(&[3, 6, 50], wavy);
    let v = x.to_floats();
    // Statistics of each run of `len` elements.
    let normal = |len: usize| -> Vec<f64> {
        let runs = v.chunks(len).flat_map(|r| {
            let mean = r.iter().sum::<f64>() / len as f64;
            let var = r.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len as f64;
            r.iter().map(move |v| (v - mean) / (var + 1e-5).sqrt())
        });
        runs.collect()
    };
    let element = |i: usize| 0.5 + i as f32 / 8.0;
    let (scale, bias) = (f32s(&[50], element), f32s(&[50], |i| -element(i)));
    let attrs = Attrs::new().with("axis", 2i64);
    let want: Vec<f64> =
        normal(s).iter().enumerate().map(|(i, y)| (y - 1.0) * f64::from(element(i % s))).collect();
    close(&run("LayerNormalization", attrs.clone(), &[&x, &scale, &bias])[0], &want);
    let (scale, bias) = (f32s(&[6], element), f32s(&[6], |i| -element(i)));
    for groups in [1, 2, 6] {
        let channel = |i: usize| f64::from(element(i / s % c));
        let want: Vec<f64> =
            normal(c / groups * s).iter().enumerate().map(|(i, y)| (y - 1.0) * channel(i)).collect();
        let attrs = Attrs::new().with("groups", groups as i64);
        close(&run("GroupNormalization", attrs, &[&x, &scale, &bias])[0], &want);
    }
    let rms: Vec<f64> = v
        .chunks(s)
        .flat_map(|r| {
            let mean = r.iter().map(|v| v * v).sum::<f64>() / s as f64;
            r.iter().map(move |v| v / (mean + 1e-5).sqrt())
        })
        .collect();
    close(&run("RmsNormalization", attrs, &[&x, &f32s(&[50], |_| 1.0)])[0], &rms);
    assert_eq!(v.len(), n * c * s);
}

#[test]
fn vectors_of_length_one_and_neighbouring_channels() {
    let x = f32s(&[2, 2], |i| [3.0, 4.0, 0.0, 0.0][i]);
    let attrs = |p: i64| Attrs::new().with("axis", 1i64).with("p", p);
    let out = run("LpNormalization", attrs(2), &[&x]);
    close(&out[0], &[0.6, 0.8, 0.0, 0.0]);
    close(&out[1], &[5.0, 0.0]);
    close(&run("LpNormalization", attrs(1), &[&x])[0], &[3.0 / 7.0, 4.0 / 7.0, 0.0, 0.0]);

    let (c, s) = (7usize, 40usize);
    let x = f32s(&[1, c as u64, s as u64], wavy);
    let v = x.to_floats();
    // Size 4 reaches one channel down and two up.
    let attrs = Attrs::new().with("size", 4i64).with("alpha", 0.5).with("beta", 0.75).with("bias", 2.0);
    let want: Vec<f64> = (0..c * s)
        .map(|i| {
            let window = (i / s).saturating_sub(1)..=(i / s + 2).min(c - 1);
            let squares: f64 = window.map(|k| v[k * s + i % s].powi(2)).sum();
            v[i] / (2.0f64 + 0.5 / 4.0 * squares).powf(0.75)
        })
        .collect();
    close(&run("LRN", attrs, &[&x])[0], &want);
}
