//! Convolutions against the definition, and their gradients as its adjoints.

use crate::support::run;
use graph::{Attrs, DType, Graph, InputRole, Literal, TensorType};
use ops::{
    Builder,
    onnx::{BatchNormMode, DropoutMode, ImportCx, ImportOptions, find_rule},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

fn random(dtype: DType, shape: &[usize], rng: &mut StdRng) -> Literal {
    let n: usize = shape.iter().product();
    let bytes: Vec<u8> =
        (0..n).flat_map(|_| Literal::scalar(dtype, rng.random_range(-1.0..1.0)).bytes().to_vec()).collect();
    Literal::new(dtype, shape.iter().map(|d| *d as u64).collect(), bytes).unwrap()
}

fn apply(op: &str, attrs: &Attrs, inputs: &[&Literal]) -> Literal {
    run(op, attrs.clone(), inputs).remove(0)
}

fn dot(a: &Literal, b: &Literal) -> f64 {
    assert_eq!(a.shape(), b.shape());
    a.to_floats().iter().zip(b.to_floats()).map(|(x, y)| x * y).sum()
}

struct Geometry {
    images: usize,
    group: usize,
    features: usize,
    channels: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pads: [usize; 4],
}

impl Geometry {
    fn attrs(&self) -> Attrs {
        let ints = |v: &[usize]| v.iter().map(|x| *x as i64).collect::<Vec<_>>();
        Attrs::new()
            .with("strides", ints(&self.stride))
            .with("dilations", ints(&self.dilation))
            .with("pads", ints(&self.pads))
            .with("group", self.group as i64)
    }

    /// The convolution by its definition.
    fn naive(&self, x: &[f64], w: &[f64], b: &[f64], out: [usize; 2]) -> Vec<f64> {
        let [h, wd] = self.input;
        let [kh, kw] = self.kernel;
        let mut y = Vec::new();
        for n in 0..self.images {
            for f in 0..self.group * self.features {
                for p in 0..out[0] {
                    for q in 0..out[1] {
                        let mut sum = b[f];
                        for c in 0..self.channels {
                            for k in 0..kh * kw {
                                let (i, j) = (k / kw, k % kw);
                                let row = (p * self.stride[0] + i * self.dilation[0]) as isize
                                    - self.pads[0] as isize;
                                let col = (q * self.stride[1] + j * self.dilation[1]) as isize
                                    - self.pads[1] as isize;
                                if row < 0 || col < 0 || row >= h as isize || col >= wd as isize {
                                    continue;
                                }
                                let channel = f / self.features * self.channels + c;
                                let at = (n * self.group * self.channels + channel) * h * wd;
                                sum += x[at + row as usize * wd + col as usize]
                                    * w[(f * self.channels + c) * kh * kw + k];
                            }
                        }
                        y.push(sum);
                    }
                }
            }
        }
        y
    }

    fn check(&self, dtype: DType, rng: &mut StdRng) {
        let (g, attrs) = (self.group, self.attrs());
        let x = random(dtype, &[self.images, g * self.channels, self.input[0], self.input[1]], rng);
        let w = random(dtype, &[g * self.features, self.channels, self.kernel[0], self.kernel[1]], rng);
        let b = random(dtype, &[g * self.features], rng);
        let y = apply("Conv", &attrs, &[&x, &w, &b]);
        let out = [y.shape()[2] as usize, y.shape()[3] as usize];
        let want = self.naive(&x.to_floats(), &w.to_floats(), &b.to_floats(), out);
        let tolerance = if dtype == DType::F32 { 1e-4 } else { 1e-11 };
        for (i, (got, want)) in y.to_floats().iter().zip(&want).enumerate() {
            assert!((got - want).abs() < tolerance, "element {i} of {}: {got} {want}", want_name(self));
        }
        // <dy, conv(x, w)> = <conv^T(dy, w), x> = <dw(x, dy), w>.
        let linear = apply("Conv", &attrs, &[&x, &w]);
        let shape: Vec<usize> = linear.shape().iter().map(|d| *d as usize).collect();
        let dy = random(dtype, &shape, rng);
        let extra: Vec<i64> = (0..2)
            .map(|i| {
                let reach = self.dilation[i] * (self.kernel[i] - 1) + 1;
                ((self.input[i] + self.pads[i] + self.pads[i + 2] - reach) % self.stride[i]) as i64
            })
            .collect();
        let dx = apply("ConvTranspose", &attrs.clone().with("output_padding", extra), &[&dy, &w]);
        let kernel: Vec<i64> = self.kernel.iter().map(|k| *k as i64).collect();
        let dw = apply("ConvGradWeight", &attrs.with("kernel", kernel), &[&x, &dy]);
        let (a, b, c) = (dot(&dy, &linear), dot(&dx, &x), dot(&dw, &w));
        let scale = tolerance * (1.0 + dot(&linear, &linear).sqrt() * dot(&dy, &dy).sqrt());
        assert!((a - b).abs() < scale && (a - c).abs() < scale, "{}: {a} {b} {c}", want_name(self));
    }
}

fn want_name(g: &Geometry) -> String {
    format!("{:?} kernel {:?} stride {:?} group {}", g.input, g.kernel, g.stride, g.group)
}

#[test]
fn convolutions_equal_their_definition_and_gradients_their_adjoints() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut pick = |v: &[usize]| v[rng.random_range(0..v.len())];
    let mut list = Vec::new();
    for _ in 0..120 {
        let input = [pick(&[5, 7, 12, 20]), pick(&[5, 6, 9, 33, 40])];
        let kernel = [pick(&[1, 2, 3, 5]), pick(&[1, 3, 4])];
        let dilation = [pick(&[1, 1, 1, 2]), pick(&[1, 1, 2])];
        let pads = [pick(&[0, 1, 2]), pick(&[0, 1, 3]), pick(&[0, 1, 2]), pick(&[0, 2])];
        if (0..2).any(|i| input[i] + pads[i] + pads[i + 2] < dilation[i] * (kernel[i] - 1) + 1) {
            continue;
        }
        list.push(Geometry {
            images: pick(&[1, 2, 3]),
            group: pick(&[1, 1, 1, 2, 3]),
            features: pick(&[1, 3, 8, 13, 24]),
            channels: pick(&[1, 1, 2, 5]),
            input,
            kernel,
            stride: [pick(&[1, 1, 2, 3]), pick(&[1, 2, 2, 4])],
            dilation,
            pads,
        });
    }
    for g in &list {
        g.check(DType::F32, &mut rng);
        g.check(DType::F64, &mut rng);
    }
}

/// Long sums take several chains; many images share panels and cut the points of the weight gradient.
#[test]
fn deep_and_wide_convolutions() {
    let mut rng = StdRng::seed_from_u64(6);
    let base = Geometry {
        images: 3,
        group: 1,
        features: 16,
        channels: 130,
        input: [7, 7],
        kernel: [3, 3],
        stride: [1, 1],
        dilation: [1, 1],
        pads: [1, 1, 1, 1],
    };
    base.check(DType::F32, &mut rng);
    Geometry { images: 2, channels: 3, input: [40, 41], stride: [2, 2], features: 10, ..base }
        .check(DType::F64, &mut rng);
    Geometry { channels: 40, kernel: [1, 1], pads: [0; 4], input: [25, 25], ..base }
        .check(DType::F32, &mut rng);
}

/// Rows of several blocks, through the buffer and past it.
#[test]
fn depthwise_convolutions() {
    let mut rng = StdRng::seed_from_u64(8);
    for (stride, dilation, kernel) in [
        ([1, 1], 1, 3),
        ([2, 2], 1, 3),
        ([1, 1], 2, 5),
        ([2, 1], 1, 3),
        ([1, 3], 1, 3),
        ([1, 1], 40, 3),
        ([1, 2], 3, 4),
    ] {
        let g = Geometry {
            images: 2,
            group: 3,
            features: 1,
            channels: 1,
            input: [4, 150],
            kernel: [2, kernel],
            stride,
            dilation: [1, dilation],
            pads: [1, 2, 0, 1],
        };
        g.check(DType::F32, &mut rng);
        g.check(DType::F64, &mut rng);
    }
}

/// Imports one node and returns the shape and attributes of the operator it became.
fn import(op_type: &str, attrs: Attrs, shapes: &[&[usize]]) -> Result<(Vec<usize>, Attrs), String> {
    let mut graph = Graph::default();
    let inputs: Vec<_> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| {
            Some(graph.add_input(format!("x{i}"), TensorType::new(DType::F32, *s), InputRole::Data))
        })
        .collect();
    let mut b = Builder::new(&mut graph);
    let options = ImportOptions {
        training: true,
        batchnorm: BatchNormMode::Auto,
        dropout: DropoutMode::Auto,
        unbiased_running_variance: false,
    };
    let mut cx = ImportCx {
        b: &mut b,
        options,
        op_type,
        opset: 17,
        attrs: &attrs,
        inputs: &inputs,
        used: &[true],
        outputs: vec![],
        remarks: vec![],
    };
    (find_rule("", op_type).unwrap().import)(&mut cx).map_err(|e| e.to_string())?;
    let y = cx.outputs[0].unwrap();
    let shape = graph.ty(y).shape.fixed().unwrap();
    Ok((shape, graph.nodes.last().unwrap().attrs.clone()))
}

#[test]
fn padding_modes_become_pads() {
    let a = |auto: &str, stride: i64| Attrs::new().with("auto_pad", auto).with("strides", vec![stride; 2]);
    let (x, w): (&[usize], &[usize]) = (&[1, 2, 5, 6], &[3, 2, 4, 3]);
    let pads = |r: (Vec<usize>, Attrs)| (r.0, r.1.ints("pads").unwrap().to_vec());
    assert_eq!(
        pads(import("Conv", a("SAME_UPPER", 2), &[x, w]).unwrap()),
        (vec![1, 3, 3, 3], vec![1, 0, 2, 1])
    );
    assert_eq!(
        pads(import("Conv", a("SAME_LOWER", 2), &[x, w]).unwrap()),
        (vec![1, 3, 3, 3], vec![2, 1, 1, 0])
    );
    assert_eq!(pads(import("Conv", a("VALID", 1), &[x, w]).unwrap()), (vec![1, 3, 2, 4], vec![0; 4]));
    assert!(import("Conv", a("SAME", 1), &[x, w]).is_err());
    assert!(import("Conv", Attrs::new(), &[x, &[3, 2, 9, 3]]).unwrap_err().contains("covers 9"));
    assert!(import("Conv", Attrs::new(), &[x, &[3, 3, 2, 2]]).unwrap_err().contains("channels"));

    let (x, w): (&[usize], &[usize]) = (&[1, 2, 3, 3], &[2, 4, 3, 3]);
    let t = |attrs: Attrs| import("ConvTranspose", attrs.with("strides", vec![2i64, 2]), &[x, w]).unwrap();
    assert_eq!(t(Attrs::new()).0, [1, 4, 7, 7]);
    assert_eq!(t(Attrs::new().with("output_padding", vec![1i64, 0])).0, [1, 4, 8, 7]);
    assert_eq!(
        pads(t(Attrs::new().with("output_shape", vec![6i64, 8]))),
        (vec![1, 4, 6, 8], vec![1, 0, 0, 0])
    );
    let same = Attrs::new().with("auto_pad", "SAME_UPPER");
    assert_eq!(pads(t(same)), (vec![1, 4, 6, 6], vec![0, 0, 1, 1]));
}
