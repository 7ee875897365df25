//! Models that are lawful and unusual: inputs that nothing reads, graphs without nodes, outputs that are inputs; and places to write that
//! are no files.

use crate::support::{
    self, command, dtrc, floats, generated, initializer, mlp_data, model, scores_model, write,
};
use onnx_protobuf::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};
use runtime::data::npz::Npz;
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// The model of [`support::scores_model`], changed.
fn scores(dir: &Path, name: &str, change: impl Fn(&mut GraphProto)) -> String {
    let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 };
    generated(dir, name, |common| {
        let mut model = mlp.build(common);
        change(model.graph.mut_or_insert_default());
        model
    })
}

fn renamed(info: &ValueInfoProto, name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.to_owned(), ..info.clone() }
}

#[test]
fn inputs_that_nothing_reads_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let plain = scores_model(dir.path());
    let more = scores(dir.path(), "more.onnx", |g| {
        let mask = renamed(&g.input[0], "mask");
        g.input.insert(0, mask);
    });
    let data = mlp_data(dir.path(), 3);
    let train = |model: &str, more: &[&str]| {
        let args = ["--json", "train", model, "--budget", "100%", "--loss", "cross-entropy", "--data", &data];
        dtrc(&[&args[..], more].concat()).ok()
    };
    let out = train(&more, &[]);
    assert!(out.stderr.contains("nothing reads") && out.stderr.contains("mask"), "{}", out.stderr);
    assert_eq!(out.losses(), train(&plain, &[]).losses());
    // A loss on one of two outputs leaves the other's inputs unread.
    let two = scores(dir.path(), "two.onnx", |g| {
        let z = renamed(&g.input[0], "z");
        g.input.push(z);
        let (input, output) = (vec!["z".to_owned()], vec!["w".to_owned()]);
        g.node.push(NodeProto { op_type: "Relu".to_owned(), input, output, ..Default::default() });
        let w = renamed(&g.input[0], "w");
        g.output.push(w);
    });
    let out = train(&two, &["--loss-output", "y"]);
    assert_eq!(out.losses(), train(&plain, &[]).losses());
}

#[test]
fn an_output_may_be_listed_again() {
    let dir = tempfile::tempdir().unwrap();
    let plain = scores_model(dir.path());
    let again = scores(dir.path(), "again.onnx", |g| g.output.push(g.output[0].clone()));
    let data = mlp_data(dir.path(), 3);
    let train = |model: &str| {
        let args = ["--json", "train", model, "--budget", "100%", "--loss", "cross-entropy", "--data", &data];
        dtrc(&args).ok().losses()
    };
    assert_eq!(train(&again), train(&plain));
}

#[test]
fn a_graph_without_nodes_is_a_program() {
    let dir = tempfile::tempdir().unwrap();
    // Dropout outside of training is no node: the output is the input, twice under other names.
    let identity = scores(dir.path(), "identity.onnx", |g| {
        g.node.clear();
        g.initializer.clear();
        let op = |op: &str, output: &str| NodeProto {
            op_type: op.to_owned(),
            input: vec!["x".to_owned()],
            output: vec![output.to_owned()],
            ..Default::default()
        };
        g.node.extend([op("Dropout", "a"), op("Identity", "b")]);
        g.output = ["a", "x", "b"].map(|n| renamed(&g.input[0], n)).into();
    });
    let plan = dir.path().join("m.dtrc").display().to_string();
    dtrc(&["compile", &identity, "--budget", "1M", "-o", &plan]).ok();
    let x = floats(16 * 32, 3);
    let data = write(&dir.path().join("x.npz"), (&[16, 32], &x), (&[16], &[0; 16]));
    let out = dir.path().join("out.npz");
    dtrc(&["run", &plan, "--weights", &identity, "--data", &data, "-o", &out.display().to_string()]).ok();
    let mut given = Npz::open(Path::new(&data)).unwrap();
    let mut found = Npz::open(&out).unwrap();
    let x = given.read("x").unwrap();
    let mut names = found.names();
    names.sort();
    assert_eq!(names, ["a", "b", "x"]);
    for name in ["a", "b", "x"] {
        assert_eq!(found.read(name).unwrap().bytes(), x.bytes(), "{name}");
    }
    for command in [&["estimate"][..], &["min-budget"], &["sweep"], &["show"]] {
        let target = if command == ["show"] { &plan } else { &identity };
        dtrc(&[command, &[target]].concat()).ok();
    }
}

#[test]
fn outputs_may_all_be_constants() {
    let dir = tempfile::tempdir().unwrap();
    let constant = scores(dir.path(), "constant.onnx", |g| {
        g.initializer.clear();
        let (input, output) = (vec!["x".to_owned()], vec!["y".to_owned()]);
        g.node = vec![NodeProto { op_type: "Shape".to_owned(), input, output, ..Default::default() }];
        let type_ = g.output[0].type_.as_mut().unwrap();
        let Some(onnx_protobuf::type_proto::Value::TensorType(t)) = &mut type_.value else { panic!() };
        (t.elem_type, t.shape) = (7, None.into());
    });
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (plan, out) = (at("m.dtrc"), at("out.npz"));
    dtrc(&["compile", &constant, "--budget", "100%", "-o", &plan]).ok();
    dtrc(&["check", &plan]).ok();
    dtrc(&["run", &plan, "--weights", &constant, "--synthetic", "-o", &out]).ok();
    let found = Npz::open(Path::new(&out)).unwrap().read("y").unwrap();
    assert_eq!(found.to_ints().unwrap(), [16, 32]);
}

#[test]
fn a_tensor_beyond_any_memory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let huge = scores(dir.path(), "huge.onnx", |g| {
        g.initializer.clear();
        let (input, output) = (vec!["x".to_owned()], vec!["y".to_owned()]);
        g.node = vec![NodeProto { op_type: "Relu".to_owned(), input, output, ..Default::default() }];
        (g.input[0], g.output[0]) =
            (shaped(&g.input[0], "x", &[1 << 60]), shaped(&g.output[0], "y", &[1 << 60]));
    });
    let plan = dir.path().join("m.dtrc").display().to_string();
    dtrc(&["compile", &huge, "--budget", "100%", "-o", &plan]).fails(65, &["x", "more than any memory has"]);
}

#[test]
fn a_factor_of_one_element_is_trained_if_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let scaled = scores(dir.path(), "scaled.onnx", |g| {
        let mut factor = g.initializer.iter().find(|t| t.data_type == 1).unwrap().clone();
        (factor.name, factor.dims) = ("logit_scale".to_owned(), Vec::new());
        factor.raw_data = 2.0f32.to_le_bytes().to_vec();
        g.initializer.push(factor);
        let last = g.node.last_mut().unwrap();
        let y = std::mem::replace(&mut last.output[0], "unscaled".to_owned());
        let input = vec!["unscaled".to_owned(), "logit_scale".to_owned()];
        g.node.push(NodeProto { op_type: "Mul".to_owned(), input, output: vec![y], ..Default::default() });
    });
    let data = mlp_data(dir.path(), 3);
    let saved = dir.path().join("saved.onnx").display().to_string();
    let train = |more: &[&str]| {
        let args = [
            "train",
            &scaled,
            "--budget",
            "100%",
            "--loss",
            "cross-entropy",
            "--data",
            &data,
            "--save",
            &saved,
        ];
        dtrc(&[&args[..], more].concat())
    };
    let factor = || initializer(Path::new(&saved), "logit_scale")[0];
    train(&[]).ok();
    assert_eq!(factor(), 2.0);
    train(&["--train", "logit_scale"]).ok();
    assert_ne!(factor(), 2.0);
    train(&["--train", "logit_scales"]).fails(64, &["--train logit_scales"]);
}

/// A bound that is trained is not what it was before the first step: a Clip with it does what a Min does, step for step.
#[test]
fn a_bound_that_is_trained_is_read_anew_at_every_step() {
    let dir = tempfile::tempdir().unwrap();
    let bounded = |op: &str| {
        scores(dir.path(), &format!("{op}.onnx"), |g| {
            let mut bound = g.initializer.iter().find(|t| t.data_type == 1).unwrap().clone();
            (bound.name, bound.dims) = ("bound".to_owned(), Vec::new());
            bound.raw_data = 0.05f32.to_le_bytes().to_vec();
            g.initializer.push(bound);
            let last = g.node.last_mut().unwrap();
            let y = std::mem::replace(&mut last.output[0], "unbounded".to_owned());
            let input = match op {
                "Clip" => vec!["unbounded".to_owned(), String::new(), "bound".to_owned()],
                _ => vec!["unbounded".to_owned(), "bound".to_owned()],
            };
            g.node.push(NodeProto { op_type: op.to_owned(), input, output: vec![y], ..Default::default() });
        })
    };
    let data = mlp_data(dir.path(), 4);
    let [clip, least] = ["Clip", "Min"].map(|op| {
        let (model, saved) = (bounded(op), dir.path().join(format!("saved.{op}.onnx")).display().to_string());
        let args =
            ["--json", "train", &model, "--budget", "100%", "--loss", "cross-entropy", "--data", &data];
        let more = ["--lr", "0.5", "--train", "*weight*", "--train", "bound", "--save", &saved];
        let lines = dtrc(&[&args[..], &more].concat()).ok().objects();
        let losses: Vec<f64> = lines.iter().filter_map(|l| l["loss"].as_f64()).collect();
        (losses, initializer(Path::new(&saved), "bound")[0])
    });
    assert!(clip.0.len() >= 4 && (clip.1 - 0.05).abs() > 0.01, "{clip:?}");
    assert_eq!(clip, least);
}

/// ONNX's code of float16.
const FLOAT16: i32 = 10;

/// A product's weights as 16-bit floats, cast to what the product takes.
fn halve(g: &mut GraphProto, product: usize) -> String {
    let node = g.node.iter().enumerate().filter(|(_, n)| n.op_type == "Gemm").nth(product).unwrap().0;
    let name = g.node[node].input[1].clone();
    let weight = g.initializer.iter_mut().find(|t| t.name == name).unwrap();
    let floats = weight.raw_data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    weight.raw_data = floats.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect();
    weight.data_type = FLOAT16;
    let wide = format!("{name} as float32");
    g.node[node].input[1].clone_from(&wide);
    let to = AttributeProto {
        name: "to".to_owned(),
        type_: onnx_protobuf::attribute_proto::AttributeType::INT.into(),
        i: 1,
        ..Default::default()
    };
    let (input, output) = (vec![name.clone()], vec![wide]);
    let cast =
        NodeProto { op_type: "Cast".to_owned(), input, output, attribute: vec![to], ..Default::default() };
    g.node.insert(node, cast);
    name
}

#[test]
fn weights_of_16_bits_stay_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let name = std::cell::RefCell::new(String::new());
    let mixed = scores(dir.path(), "mixed.onnx", |g| *name.borrow_mut() = halve(g, 1));
    let (data, name) = (mlp_data(dir.path(), 3), name.take());
    let saved = dir.path().join("saved.onnx").display().to_string();
    let loss = ["--loss", "cross-entropy"];
    let train =
        [&["train", &mixed, "--budget", "100%", "--data", &data, "--save", &saved][..], &loss].concat();
    let told = dtrc(&train).ok();
    assert!(told.stderr.contains("1 16-bit float weights stay as they are"), "{}", told.stderr);
    let raw = |path: &str| {
        let weight = support::stored(Path::new(path), &name);
        (weight.data_type, weight.raw_data)
    };
    assert_eq!(raw(&saved), raw(&mixed));
    let listed = dtrc(&[&["compile", &mixed, "--list-trainable"][..], &loss].concat()).ok();
    assert!(!listed.stdout.contains(&name) && listed.stderr.contains("16-bit"), "{}", listed.stdout);
    dtrc(&[&train[..], &["--train", &name]].concat()).fails(64, &["no float32 or float64 tensor"]);
    let all = scores(dir.path(), "all.onnx", |g| {
        for product in 0..3 {
            halve(g, product);
        }
        // Whatever else is trained.
        g.initializer.retain(|t| t.data_type == FLOAT16);
        for node in g.node.iter_mut().filter(|n| n.op_type == "Gemm") {
            node.input.truncate(2);
        }
    });
    dtrc(&[&["train", &all, "--budget", "100%", "--data", &data][..], &loss].concat())
        .fails(65, &["16-bit floats", "convert"]);
}

#[test]
fn a_folder_of_archives_holds_no_array_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let model = scores_model(dir.path());
    let folder = dir.path().join("data");
    fs::create_dir(&folder).unwrap();
    fs::copy(mlp_data(dir.path(), 3), folder.join("a.npz")).unwrap();
    let given = folder.display().to_string();
    let args = ["train", &model, "--budget", "100%", "--loss", "cross-entropy", "--data", &given];
    dtrc(&args).ok();
    fs::write(folder.join("notes.npy"), "nobody reads this").unwrap();
    dtrc(&args).ok();
    fs::write(folder.join("x.npy"), "an older x").unwrap();
    dtrc(&args).fails(65, &["x.npy lies beside a.npz"]);
}

#[test]
fn what_is_no_file_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let train = ["train", &model("mlp_tiny"), "--budget", "100%", "--synthetic", "--steps", "1"];
    for flag in ["--save", "--save-inference"] {
        for place in [at("pipe"), "/dev/null".to_owned()] {
            dtrc(&[&train[..], &[flag, &place]].concat()).fails(64, &[&place, "not a regular file"]);
        }
    }
    // A link is followed, and stays a link.
    std::os::unix::fs::symlink("real.onnx", dir.path().join("link.onnx")).unwrap();
    dtrc(&[&train[..], &["--save", &at("link.onnx")]].concat()).ok();
    assert!(dir.path().join("link.onnx").is_symlink() && dir.path().join("real.onnx").is_file());
}

#[test]
fn a_full_disk_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("m.dtrc").display().to_string();
    let step = dir.path().join("s.onnx").display().to_string();
    let compile = ["compile", &model("mlp_tiny"), "--budget", "100%", "-o", &plan, "--emit-onnx", &step];
    // A limit on the size of files is the nearest to a full disk that needs no rights.
    let limited = format!("trap '' XFSZ; ulimit -f 8; exec {} \"$@\"", env!("CARGO_BIN_EXE_dtrc"));
    let out = Command::new("bash").args(["-c", &limited, "dtrc"]).args(compile).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(74), "{stderr}");
    assert!(stderr.contains("s.onnx") && !stderr.contains("panicked"), "{stderr}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn a_signal_ends_what_waits_for_data() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe").display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let args = ["train", &model("mlp_tiny"), "--budget", "100%", "--data", &pipe];
        let mut child = command(&args).spawn().unwrap();
        // The plan is announced before the data are opened; there is no other sign that it waits.
        let mut heard = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("budget") {
            assert!(std::io::BufRead::read_line(&mut heard, &mut line).unwrap() > 0, "{line}");
        }
        std::thread::sleep(Duration::from_millis(300));
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                panic!("{signal} does not end it");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(code));
    }
}

/// Binds the extents of a graph's input or output.
fn shaped(info: &ValueInfoProto, name: &str, extents: &[i64]) -> ValueInfoProto {
    let mut info = renamed(info, name);
    let tensor = info.type_.mut_or_insert_default().mut_tensor_type();
    let axes = &mut tensor.shape.mut_or_insert_default().dim;
    *axes = extents
        .iter()
        .map(|n| {
            let mut d = onnx_protobuf::tensor_shape_proto::Dimension::default();
            d.set_dim_value(*n);
            d
        })
        .collect();
    info
}

#[test]
fn the_class_axis_follows_from_the_labels() {
    let dir = tempfile::tempdir().unwrap();
    // Scores [2, 5, 4]: five classes of four points, where the usual axis of three would be the last.
    let points = scores(dir.path(), "points.onnx", |g| {
        let mut w = g.initializer.iter().find(|t| t.data_type == 1).unwrap().clone();
        (w.name, w.dims) = ("w".to_owned(), vec![5, 4]);
        w.raw_data.truncate(80);
        g.initializer = vec![w];
        let (input, output) = (vec!["x".to_owned(), "w".to_owned()], vec!["y".to_owned()]);
        g.node = vec![NodeProto { op_type: "Mul".to_owned(), input, output, ..Default::default() }];
        (g.input[0], g.output[0]) =
            (shaped(&g.input[0], "x", &[2, 5, 4]), shaped(&g.output[0], "y", &[2, 5, 4]));
    });
    let labels = [4i64, 0, 1, 3, 2, 2, 0, 1];
    let data = write(&dir.path().join("p.npz"), (&[2, 5, 4], &floats(40, 1)), (&[2, 4], &labels));
    let train = |data: &str, more: &[&str]| {
        let args =
            ["--json", "train", &points, "--budget", "100%", "--loss", "cross-entropy", "--steps", "3"];
        dtrc(&[&args[..], &["--train", "w", "--data", data], more].concat())
    };
    let expected = train(&data, &["--class-axis", "1"]).ok().losses();
    assert_eq!(train(&data, &[]).ok().losses(), expected);
    train(&data, &["--class-axis", "7"]).fails(64, &["--class-axis 7", "3 axes", "-3 to 2"]);
    train(&data, &["--class-axis", "2"]).fails(65, &["[2, 4] does not fit", "--class-axis"]);
    // One-hot along the classes' axis.
    let hot = |classes: usize| -> Vec<f32> {
        let at = |i: usize| (i / (classes * 4) * 4 + i % 4, i / 4 % classes);
        (0..2 * classes * 4).map(at).map(|(row, c)| f32::from(labels[row] == c as i64)).collect()
    };
    let one_hot = |classes: usize| {
        let path = dir.path().join(format!("hot{classes}.npz"));
        let bytes = |x: &[f32]| x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let (x, target) = (bytes(&floats(40, 1)), bytes(&hot(classes)));
        let arrays: [(&str, graph::DType, &[u64], &[u8]); 2] = [
            ("x", graph::DType::F32, &[2, 5, 4], &x),
            ("target", graph::DType::F32, &[2, classes as u64, 4], &target),
        ];
        runtime::data::npz::write(fs::File::create(&path).unwrap(), arrays).unwrap();
        path.display().to_string()
    };
    assert_eq!(train(&one_hot(5), &["--class-axis", "1"]).ok().losses(), expected);
    train(&one_hot(7), &["--class-axis", "1"]).fails(65, &["7 scores", "5 classes"]);
}

#[test]
fn the_batch_is_bound_by_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let open = {
        let common = onnx_models::Common { batch: 16, dynamic: true, loss: false, seed: 0 };
        let mlp = onnx_models::Mlp { inputs: 32, hidden: vec![64, 64], classes: 10 };
        let path = dir.path().join("open.onnx");
        fs::write(&path, onnx_models::to_bytes(&mlp.build(&common)).unwrap()).unwrap();
        path.display().to_string()
    };
    let data = mlp_data(dir.path(), 3);
    let train = |model: &str, more: &[&str]| {
        let args = ["--json", "train", model, "--budget", "100%", "--loss", "cross-entropy", "--data", &data];
        dtrc(&[&args[..], more].concat())
    };
    let fixed = scores_model(dir.path());
    let losses = train(&open, &["--batch", "16"]).ok().losses();
    assert_eq!(losses.len(), 3);
    assert_eq!(losses, train(&fixed, &["--batch", "16"]).ok().losses());
    assert_eq!(train(&open, &["--batch", "8"]).ok().losses().len(), 6);
    train(&open, &["--batch", "8", "--dim", "batch=16"]).fails(64, &["--batch 8", "--dim batch=16"]);
    train(&open, &["--batch", "8", "--dim", "x:0=16"]).fails(64, &["--batch 8", "--dim x:0=16"]);
    assert_eq!(train(&open, &["--batch", "8", "--dim", "batch=8"]).ok().losses().len(), 6);
    // A bound of the batch says no more than the batch, unless it lies below.
    for bound in ["batch<=8", "x:0<=8", "batch<=16"] {
        let bounded = train(&open, &["--batch", "8", "--dim", bound]).ok();
        assert_eq!(bounded.losses(), train(&open, &["--batch", "8"]).ok().losses(), "{bound}");
        assert!(!bounded.stderr.contains("dynamic"), "{}", bounded.stderr);
    }
    for sizes in ["batch<=4", "x:0<=4", "batch=8,16"] {
        train(&open, &["--batch", "8", "--dim", sizes]).fails(64, &["--batch 8", &format!("--dim {sizes} ")]);
    }
    train(&fixed, &["--batch", "8"]).fails(64, &["--batch 8", "input x", "16"]);
}

#[test]
fn a_trusted_model_may_take_more_memory_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let long = scores(dir.path(), "long.onnx", |g| {
        let names: Vec<String> =
            (0..60_000).map(|i| if i == 0 { "x".to_owned() } else { format!("h{i}") }).collect();
        let relu = |(from, to): (&String, &str)| NodeProto {
            op_type: "Relu".to_owned(),
            input: vec![from.clone()],
            output: vec![to.to_owned()],
            ..Default::default()
        };
        let after = names.iter().skip(1).map(String::as_str).chain(["y"]);
        g.node = names.iter().zip(after).map(relu).collect();
        g.initializer.clear();
        let mut y = g.input[0].clone();
        y.name = "y".to_owned();
        g.output = vec![y];
    });
    let estimate = ["estimate", &long, "--inference", "--work-limit", "1000"];
    dtrc(&estimate).fails(65, &["60000 nodes", "--import-memory"]);
    dtrc(&[&estimate[..], &["--import-memory", "1G"]].concat()).ok();
}

#[test]
fn flags_of_a_model_of_open_sizes_are_checked_before_a_plan_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let open = scores(dir.path(), "open.onnx", |g| {
        let shape = g.input[0].type_.mut_or_insert_default().mut_tensor_type().shape.mut_or_insert_default();
        shape.dim[0].set_dim_param("N".to_owned());
    });
    let plan = dir.path().join("open.dtrc").display().to_string();
    let compile = |more: &[&str]| {
        let fixed = ["compile", &open, "--budget", "1M", "-o", &plan];
        let out = dtrc(&[&fixed[..], more].concat());
        assert!(out.code == 0 || !Path::new(&plan).exists(), "{more:?}");
        out
    };
    compile(&["--loss", "output:nope"]).fails(64, &["no output \"nope\"", "it has"]);
    compile(&["--loss", "mse", "--loss-output", "nope"]).fails(64, &["no output \"nope\""]);
    compile(&["--loss", "mse", "--label", "x"]).fails(65, &["already has a tensor \"x\"", "--label"]);
    compile(&["--loss", "cross-entropy"]).ok();
    // Nobody can make up what has no size.
    for command in [&["train", "--steps", "1", "--loss", "cross-entropy"][..], &["run", "--inference"]] {
        dtrc(&[command, &[&open, "--budget", "1M", "--synthetic"]].concat())
            .fails(64, &["--synthetic needs sizes", "--dim"]);
    }
}

#[test]
fn nodes_that_lead_to_no_output_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let idle = scores(dir.path(), "idle.onnx", |g| {
        for (op, input) in [("NonZero", "x"), ("NobodyKnows", "x"), ("Relu", "NonZero/y")] {
            let (input, output) = (vec![input.to_owned()], vec![format!("{op}/y")]);
            g.node.insert(0, NodeProto { op_type: op.to_owned(), input, output, ..Default::default() });
        }
        g.node.swap(0, 2);
    });
    let data = mlp_data(dir.path(), 2);
    let train = |model: &str| {
        dtrc(&["--json", "train", model, "--budget", "100%", "--loss", "cross-entropy", "--data", &data]).ok()
    };
    let out = train(&idle);
    assert!(out.stderr.contains("nodes that lead to no output are left out: 3"), "{}", out.stderr);
    let plain = train(&scores_model(dir.path())).losses();
    assert_eq!(out.losses(), plain);
    // An input that only such a node reads decides nothing, and no data are asked for it.
    let unread = scores(dir.path(), "unread.onnx", |g| {
        let mut u = renamed(&g.input[0], "u");
        let shape = u.type_.mut_or_insert_default().mut_tensor_type().shape.mut_or_insert_default();
        shape.dim[0].set_dim_param("n".to_owned());
        g.input.push(u);
        let (input, output) = (vec!["u".to_owned()], vec!["u/y".to_owned()]);
        g.node.push(NodeProto { op_type: "Relu".to_owned(), input, output, ..Default::default() });
    });
    let out = train(&unread);
    assert!(out.stderr.contains("inputs that nothing reads are left out: u"), "{}", out.stderr);
    assert!(!out.stderr.contains("dynamic"), "{}", out.stderr);
    assert_eq!(out.losses(), plain);
}

#[test]
fn constant_nodes_among_what_is_trained_are_told() {
    let dir = tempfile::tempdir().unwrap();
    // The first weight as a Constant node.
    let model = scores(dir.path(), "constant.onnx", |g| {
        let weight = g.initializer.iter().position(|t| t.dims.len() == 2).unwrap();
        let weight = g.initializer.remove(weight);
        let output = vec![weight.name.clone()];
        let attribute = onnx_protobuf::AttributeProto {
            name: "value".to_owned(),
            type_: onnx_protobuf::attribute_proto::AttributeType::TENSOR.into(),
            t: protobuf::MessageField::some(weight),
            ..Default::default()
        };
        let node = NodeProto {
            op_type: "Constant".to_owned(),
            output,
            attribute: vec![attribute],
            ..Default::default()
        };
        g.node.insert(0, node);
    });
    let data = mlp_data(dir.path(), 2);
    let train = |model: &str| {
        dtrc(&["--json", "train", model, "--budget", "100%", "--loss", "cross-entropy", "--data", &data]).ok()
    };
    let out = train(&model);
    assert!(out.stderr.contains("1 of what can be trained are Constant nodes"), "{}", out.stderr);
    assert_eq!(out.losses(), train(&scores_model(dir.path())).losses());
}
