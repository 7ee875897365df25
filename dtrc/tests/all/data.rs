//! How arrays become batches: cut, shuffled and converted, with inputs and labels always side by side.

use crate::support::{self, Outcome, dtrc, floats, model, scores_model};
use graph::DType;
use runtime::data::npz;
use std::{
    fs::{self, File},
    path::Path,
};

/// An array of the data.
type Array<'a> = (&'a str, DType, &'a [u64], Vec<u8>);

fn file(dir: &Path, name: &str, arrays: &[Array<'_>]) -> String {
    let path = dir.join(name);
    let arrays = arrays.iter().map(|(n, ty, shape, bytes)| (*n, *ty, *shape, bytes.as_slice()));
    npz::write(File::create(&path).unwrap(), arrays).unwrap();
    path.display().to_string()
}

/// Inputs of `batches` batches.
fn x(batches: usize) -> Vec<u8> {
    floats(batches * 512, 1).iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn classes(batches: usize) -> Vec<i64> {
    (0..batches as i64 * 16).map(|i| (i * 7 + i / 16) % 10).collect()
}

fn ints(labels: &[i64]) -> Vec<u8> {
    labels.iter().flat_map(|l| l.to_le_bytes()).collect()
}

fn train(data: &str, more: &[&str]) -> Outcome {
    let fixed = ["--json", "train", &model("mlp_tiny"), "--budget", "100%", "--data", data];
    dtrc(&[&fixed, more].concat())
}

#[test]
fn shuffling_keeps_inputs_and_labels_together() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let labels = ints(&classes(6));
    let by_rows = |name, labels_shape: &[u64]| {
        file(
            d,
            name,
            &[("x", DType::F32, &[96, 32], x(6)), ("target", DType::I64, labels_shape, labels.clone())],
        )
    };
    let by_steps = |name, labels_shape: &[u64]| {
        let xs: Array = ("x", DType::F32, &[6, 16, 32], x(6));
        file(d, name, &[xs, ("target", DType::I64, labels_shape, labels.clone())])
    };
    let losses = |data: &str, more: &[&str]| train(data, &[&["--lr", "0"], more].concat()).ok().losses();
    let rows = by_rows("rows.npz", &[96]);
    let steps = by_steps("steps.npz", &[6, 16]);
    let mixed = [by_rows("mixed1.npz", &[6, 16]), by_steps("mixed2.npz", &[96])];
    let straight = losses(&rows, &[]);
    assert_eq!(straight.len(), 6);
    let seed = ["--shuffle", "3"];
    // Batches are shuffled where arrays are cut in different ways: the same batches in another order.
    let shuffled = losses(&steps, &seed);
    let sorted = |l: &[String]| {
        let mut l = l.to_vec();
        l.sort();
        l
    };
    assert!(shuffled != straight && sorted(&shuffled) == sorted(&straight), "{shuffled:?} {straight:?}");
    for data in &mixed {
        assert_eq!(losses(data, &[]), straight);
        assert_eq!(losses(data, &seed), shuffled);
    }
    // Rows are where they can be: other batches, of the same mean.
    let by_row = losses(&rows, &seed);
    let mean = |l: &[String]| l.iter().map(|x| x.parse::<f64>().unwrap()).sum::<f64>() / l.len() as f64;
    assert!(sorted(&by_row) != sorted(&straight));
    assert!((mean(&by_row) - mean(&straight)).abs() < 1e-6, "{by_row:?} {straight:?}");
    // Each epoch in another order, a seed in the same one again.
    let epochs = losses(&steps, &["--shuffle", "3", "--epochs", "2"]);
    assert!(epochs[..6] == shuffled && epochs[6..] != shuffled && sorted(&epochs[6..]) == sorted(&shuffled));
}

#[test]
fn labels_come_in_several_forms() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let classes = classes(2);
    let with = |name: &str, ty, shape: &[u64], bytes| {
        train(&file(d, name, &[("x", DType::F32, &[32, 32], x(2)), ("target", ty, shape, bytes)]), &[])
    };
    let expected = with("i64.npz", DType::I64, &[32], ints(&classes)).ok().losses();
    assert_eq!(expected.len(), 2);
    let narrow = classes.iter().flat_map(|l| (*l as i32).to_le_bytes()).collect();
    assert_eq!(with("i32.npz", DType::I32, &[32], narrow).ok().losses(), expected);
    let unsigned = |l: &i64| (*l as u64).to_le_bytes();
    let wide: Vec<u8> = classes.iter().flat_map(unsigned).collect();
    assert_eq!(with("u64.npz", DType::U64, &[32], wide.clone()).ok().losses(), expected);
    with("large.npz", DType::U64, &[32], [&wide[8..], &u64::MAX.to_le_bytes()].concat()).fails(65, &["2^63"]);
    // A last axis of one element is the label itself, no score.
    assert_eq!(with("column.npz", DType::I64, &[32, 1], ints(&classes)).ok().losses(), expected);
    let hot = |on: f32, off: f32| -> Vec<u8> {
        let row = |l: &i64| (0..10).map(|c| if c == *l { on } else { off }).collect::<Vec<_>>();
        classes.iter().flat_map(row).flat_map(f32::to_le_bytes).collect()
    };
    assert_eq!(with("hot.npz", DType::F32, &[32, 10], hot(1.0, 0.0)).ok().losses(), expected);
    let bytes = hot(1.0, 0.0).chunks_exact(4).map(|b| u8::from(b[3] != 0)).collect();
    assert_eq!(with("hot8.npz", DType::U8, &[32, 10], bytes).ok().losses(), expected);
    // Soft labels are no classes, and are not rounded to some.
    for (name, bytes) in
        [("soft.npz", hot(0.91, 0.01)), ("none.npz", hot(0.0, 0.0)), ("two.npz", hot(1.0, 1.0))]
    {
        with(name, DType::F32, &[32, 10], bytes).fails(65, &[name, "[target]", "row 0", "not one-hot"]);
    }
    // A label that a loss adds takes the same forms.
    let scores = scores_model(d);
    for name in ["i64.npz", "column.npz", "hot.npz"] {
        let path = d.join(name).display().to_string();
        let args =
            ["--json", "train", &scores, "--budget", "100%", "--loss", "cross-entropy", "--data", &path];
        assert_eq!(dtrc(&args).ok().losses(), expected, "{name}");
    }
    with("float.npz", DType::F32, &[32], vec![0; 128]).fails(65, &["float.npz[target]", "f32", "i64"]);
}

#[test]
fn damaged_archives_are_named_with_the_entry() {
    let dir = tempfile::tempdir().unwrap();
    let arrays: [Array; 2] =
        [("x", DType::F32, &[32, 32], x(2)), ("target", DType::I64, &[32], ints(&classes(2)))];
    let path = file(dir.path(), "d.npz", &arrays);
    let whole = fs::read(&path).unwrap();
    // One bit in the last element of each array.
    for (name, bytes) in [("x", &arrays[0].3), ("target", &arrays[1].3)] {
        let at = whole.windows(bytes.len()).position(|w| w == bytes).unwrap();
        let mut damaged = whole.clone();
        damaged[at + bytes.len() - 1] ^= 1;
        fs::write(&path, damaged).unwrap();
        train(&path, &[]).fails(65, &[&format!("d.npz[{name}]"), "damaged", "write the file anew"]);
    }
    fs::write(&path, whole).unwrap();
    train(&path, &[]).ok();
}

#[test]
fn arrays_of_different_lengths_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let xs = || -> Array { ("x", DType::F32, &[96, 32], x(6)) };
    // Fewer batches; and as many, with rows that belong to nothing.
    for (rows, words) in [(80u64, "[80] 5"), (100, "[100] 6")] {
        let labels = ints(&(0..rows as i64).map(|i| i % 10).collect::<Vec<_>>());
        let path = file(dir.path(), "d.npz", &[xs(), ("target", DType::I64, &[rows], labels)]);
        let e = train(&path, &[]);
        e.fails(65, &["d.npz: \"x\" of shape [96, 32] holds 6 batches", words, "as many rows of both"]);
    }
}

#[test]
fn batches_are_counted_one_by_one_in_steps_of_several() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = classes(5);
    wrong[3 * 16 + 4] = -7;
    let arrays: [Array; 2] =
        [("x", DType::F32, &[80, 32], x(5)), ("target", DType::I64, &[80], ints(&wrong))];
    let path = file(dir.path(), "d.npz", &arrays);
    let out = train(&path, &["--accumulate", "2"]);
    out.fails(
        65,
        &["epoch 0, batch 3", "label -7 at row 4", "the last 1 of 5 batches do not fill a step of 2"],
    );
    train(&path, &["--accumulate", "6"]).fails(65, &["5 batches", "--accumulate 6", "more data"]);
}

#[test]
fn whole_numbers_are_read_where_floats_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..2 * 512u32).map(|i| (i * 37 % 256) as u8).collect();
    let target = ("target", DType::I64, &[32][..], ints(&classes(2)));
    let floats = pixels.iter().flat_map(|p| f32::from(*p).to_le_bytes()).collect();
    let wide = file(dir.path(), "wide.npz", &[("x", DType::F32, &[32, 32], floats), target.clone()]);
    let narrow = file(dir.path(), "narrow.npz", &[("x", DType::U8, &[32, 32], pixels), target]);
    let of_bytes = train(&narrow, &[]).ok();
    assert_eq!(of_bytes.losses(), train(&wide, &[]).ok().losses());
    assert!(of_bytes.stderr.contains("is u8; it is converted to f32"), "{}", of_bytes.stderr);
    // Not the other way round.
    let half = [0.5f32; 32].iter().flat_map(|v| v.to_le_bytes()).collect();
    let bad = [("x", DType::F32, &[32, 32][..], x(2)), ("target", DType::F32, &[32], half)];
    train(&file(dir.path(), "bad.npz", &bad), &[]).fails(65, &["elements are f32", "takes i64"]);
}

#[test]
fn rows_are_cut_beside_open_sizes() {
    use crate::support::onnx::{graph, int, node, weight, write};
    let dir = tempfile::tempdir().unwrap();
    let nodes = vec![
        node("MatMul", "x w", "y", vec![]),
        node("ReduceMean", "y", "mean", vec![int("keepdims", 0), support::onnx::ints("axes", &[1])]),
        node("ReduceSum", "z", "sum", vec![int("keepdims", 1)]),
        node("Add", "mean sum", "scores", vec![]),
    ];
    let weights = vec![weight("w", &[3, 5], &floats(15, 1))];
    let model = write(dir.path(), "open.onnx", 12, graph("x[N,T,3] z[N,M]", nodes, "scores[N,5]", weights));
    let bytes =
        |n: usize, seed: u64| floats(n, seed).iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let data = |name: &str, batches: &[u64]| {
        let shape = |rest: &[u64]| [batches, rest].concat();
        let rows = batches.iter().product::<u64>() as usize;
        let arrays: [Array<'_>; 3] = [
            ("x", DType::F32, &shape(&[7, 3]), bytes(rows * 21, 2)),
            ("z", DType::F32, &shape(&[2]), bytes(rows * 2, 3)),
            (
                "target",
                DType::I64,
                &shape(&[]),
                ints(&(0..rows as i64).map(|i| i * 3 % 5).collect::<Vec<_>>()),
            ),
        ];
        file(dir.path(), name, &arrays)
    };
    let losses = |data: &str, more: &[&str]| {
        let fixed = ["--json", "train", &model, "--budget", "1M", "--loss", "cross-entropy", "--data", data];
        dtrc(&[&fixed, more].concat()).ok()
    };
    let apart = losses(&data("apart.npz", &[3, 4]), &["--batch", "4"]).losses();
    assert_eq!(apart.len(), 3);
    // The file of 14 rows has the same twelve in front, and two that fill no batch.
    for rows in [12, 14] {
        let cut = losses(&data("rows.npz", &[rows]), &["--batch", "4"]);
        assert_eq!(cut.losses().len(), 3, "{rows} rows");
        assert_eq!(cut.stderr.contains("the last 2 of 14 rows"), rows == 14, "{}", cut.stderr);
    }
    assert_eq!(losses(&data("rows.npz", &[12]), &["--batch", "4"]).losses(), apart);
    let short = ["train", &model, "--budget", "1M", "--loss", "cross-entropy", "--batch", "4", "--data"];
    let three = data("three.npz", &[3]);
    dtrc(&[&short[..], &[&three]].concat()).fails(65, &["[3, 7, 3]", "does not fit"]);
}

#[test]
fn an_input_may_be_called_as_another_is_marked() {
    use crate::support::onnx::{graph, int, node, write};
    let dir = tempfile::tempdir().unwrap();
    let nodes =
        vec![node("Sub", "x in:x", "d", vec![]), node("ReduceSum", "d", "y", vec![int("keepdims", 0)])];
    let mut g = graph("x[N] a[N]", nodes, "y[]", vec![]);
    g.input[1].name = "in:x".to_owned();
    let model = write(dir.path(), "marked.onnx", 12, g);
    let value = |v: f32| [v; 3].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let shape = [3];
    let run = |name: &str, arrays: &[(&str, f32)]| {
        let arrays: Vec<Array<'_>> =
            arrays.iter().map(|(n, v)| (*n, DType::F32, &shape[..], value(*v))).collect();
        let (data, out) = (file(dir.path(), name, &arrays), dir.path().join("y.npz").display().to_string());
        let done = dtrc(&["run", &model, "--inference", "--budget", "1M", "--data", &data, "-o", &out]);
        let y = || runtime::data::npz::Npz::open(Path::new(&out)).unwrap().read("y").unwrap().to_floats();
        (done.code == 0).then(y)
    };
    // In either order in the file, and with both marked.
    for arrays in [[("x", 5.0), ("in:x", 1.0)], [("in:x", 1.0), ("x", 5.0)], [("in:in:x", 1.0), ("x", 5.0)]] {
        assert_eq!(run("two.npz", &arrays), Some(vec![12.0]), "{arrays:?}");
    }
    assert_eq!(run("one.npz", &[("in:x", 1.0)]), None);
}
