//! Models of which something is known only at run time, from the command line.

use crate::support::{self, dtrc, initializer};
use tests::data;

#[test]
fn commands_that_need_a_static_model_say_how_to_get_one() {
    let Some(root) = data("models") else { return };
    let file = |n: &str| root.join("small").join(n).display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("c.json").display().to_string();
    for command in [&["sweep"][..], &["min-budget"], &["profile", "-o", &costs]] {
        let run = |model: &str| dtrc(&[command, &[model]].concat());
        run(&file("mlp.ts_loss.onnx")).fails(65, &["needs a static model", "--dim batch=N"]);
        run(&file("bert.ts_loss.onnx")).fails(65, &["needs a static model", "--dim batch=N --dim seq=N"]);
        run(&file("ifnet_pos.ts_loss.onnx")).fails(65, &["data decide", "the condition", "compile --budget"]);
    }
    let max = ["estimate", &file("mlp.ts_loss.onnx"), "--max", "batch", "--budget", "1M"];
    dtrc(&[&max[..], &["--dim", "batch=8"]].concat()).fails(64, &["--dim batch", "leave", "--fits"]);
}

#[test]
fn a_model_with_a_loop_trains_in_its_pool() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| root.join("small").join(n).display().to_string();
    let io = |n: &str| root.join("reference").join(format!("{n}.io.npz")).display().to_string();
    let (model, batch) = (file("lstm_loop.ts_dyn.onnx"), io("lstm_loop"));
    let train = |budget: &str, more: &[&str]| {
        let fixed =
            ["--json", "train", &model, "--loss", "cross-entropy", "--budget", budget, "--data", &batch];
        dtrc(&[&fixed, more].concat())
    };
    let roomy = train("1M", &["--steps", "4", "--check-recompute"]).ok();
    assert_eq!(roomy.losses().len(), 4);
    let tight = train("40K", &["--steps", "4", "--check-recompute"]).ok();
    assert_eq!(tight.losses(), roomy.losses());
    // Too little: the exit code of out of memory, and what would do.
    let out = train("16K", &["--steps", "1"]);
    assert_eq!(out.code, 71, "{}", out.stderr);
    let least = tests::written::least(&out.stderr).unwrap_or_else(|| panic!("{}", out.stderr));
    let pool = least.to_string();
    let once = train("1M", &["--steps", "4", "--check-recompute", "--dynamic-pool", &pool]).ok();
    assert_eq!(once.losses(), roomy.losses());
    // Before anybody knows how long the loop is, too.
    let unknown = train("1M", &["--steps", "1", "--dynamic-pool", "256"]);
    unknown.fails(71, &["a pool of", "would do for this batch", "with the state"]);
    // A share of what nobody knows.
    let out = train("50%", &["--steps", "1"]);
    assert_eq!(out.code, 64, "{}", out.stderr);
    assert!(out.stderr.contains("in bytes"), "{}", out.stderr);
    let out = train("1M", &["--steps", "1", "--strict-static"]);
    assert_eq!(out.code, 65, "{}", out.stderr);
    // The plan in a file, its text, and a run that goes on from a checkpoint.
    let plan = dir.path().join("loop.dtrc").display().to_string();
    let compile = ["compile", &model, "--loss", "cross-entropy", "--budget", "40K", "-o", &plan];
    dtrc(&compile).ok();
    assert!(dtrc(&["show", &plan]).ok().stdout.contains("dynamic region"));
    dtrc(&["check", &plan]).ok();
    let folder = dir.path().join("checkpoints").display().to_string();
    let steps = |n: &str, more: &[&str]| {
        let fixed = [
            "--json",
            "train",
            &plan,
            "--weights",
            &model,
            "--data",
            &batch,
            "--checkpoint",
            &folder,
            "--steps",
            n,
        ];
        dtrc(&[&fixed, more].concat()).ok().losses()
    };
    let mut losses = steps("2", &[]);
    losses.extend(steps("4", &["--resume"]));
    assert_eq!(losses, roomy.losses());
}

#[test]
fn branches_are_evaluated_and_saved() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let model = root.join("small").join("ifnet_pos.ts_dyn.onnx").display().to_string();
    let io = root.join("reference").join("ifnet_pos.io.npz").display().to_string();
    let saved = dir.path().join("trained.onnx").display().to_string();
    let fixed = [
        "--json",
        "train",
        &model,
        "--loss",
        "cross-entropy",
        "--budget",
        "1M",
        "--data",
        &io,
        "--lr",
        "0.1",
    ];
    let more = [
        "--steps",
        "6",
        "--eval-data",
        &io,
        "--metric",
        "loss,accuracy",
        "--eval-every",
        "3",
        "--save",
        &saved,
    ];
    let out = dtrc(&[&fixed[..], &more].concat()).ok();
    let evals: Vec<f64> =
        out.objects().iter().filter_map(|o| o["eval"]["loss"].as_f64().or(o["loss"].as_f64())).collect();
    assert!(evals.len() >= 6, "{}", out.stdout);
    // The saved model goes on where training ended.
    let last: f64 = out.losses().last().unwrap().parse().unwrap();
    let on = [&fixed[..1], &["train", &saved], &fixed[3..], &["--steps", "1"]].concat();
    let next: f64 = dtrc(&on).ok().losses()[0].parse().unwrap();
    assert!(next < last, "{next} after {last}");
}

#[test]
fn what_would_be_trained_is_listed_and_nothing_else_is_done() {
    let Some(root) = data("models") else { return };
    let model = root.join("small/ifnet_pos.ts_loss.onnx").display().to_string();
    let listed = dtrc(&["compile", &model, "--list-trainable"]).ok().stdout;
    assert!(listed.lines().count() > 2 && listed.contains("f32["), "{listed}");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.dtrc").display().to_string();
    let nothing = ["compile", &model, "--budget", "1M", "-o", &out, "--freeze", "*"];
    dtrc(&nothing).fails(65, &["no parameter is trainable", "--list-trainable"]);
    for command in ["train", "run"] {
        assert_eq!(dtrc(&[command, &model, "--list-trainable"]).ok().stdout, listed, "{command}");
    }
}

#[test]
fn steps_in_parts_are_those_of_a_static_plan() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved.onnx");
    let out = saved.display().to_string();
    // Running statistics and a loop among them.
    for (model, dims) in [
        ("mlp.ts_dyn", &["batch=8"][..]),
        ("resnet18.ts_dyn", &["batch=4"]),
        ("lstm_loop.ts_dyn", &["seq=12", "batch=4"]),
    ] {
        let file = root.join("small").join(format!("{model}.onnx")).display().to_string();
        let io = root.join("reference").join(format!("{}.io.npz", model.split('.').next().unwrap()));
        let folder = dir.path().join(model);
        std::fs::create_dir(&folder).unwrap();
        for i in 0..6 {
            std::fs::copy(&io, folder.join(format!("{i}.npz"))).unwrap();
        }
        let io = folder.display().to_string();
        let train = |more: &[&str]| {
            let fixed = ["--json", "train", &file, "--loss", "cross-entropy", "--data", &io];
            let how = ["--budget", "64M", "--accumulate", "3", "--optimizer", "adamw", "--clip-norm", "1"];
            let run = dtrc(&[&fixed[..], &how, &["--save", &out], more].concat()).ok();
            (run.losses(), std::fs::read(&saved).unwrap())
        };
        let dims: Vec<&str> = dims.iter().flat_map(|d| ["--dim", d]).collect();
        assert!(train(&[]) == train(&dims), "{model}");
    }
}

#[test]
fn a_branch_that_is_not_taken_gives_gradients_of_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let common = onnx_models::Common { batch: 4, dynamic: false, loss: false, seed: 5 };
    let mut model = onnx_models::BranchFirst { depth: 2, wide: 0 }.build(&common);
    let graph = model.graph.as_mut().unwrap();
    // The other branch has a weight of its own.
    let mut own = graph.initializer.iter().find(|t| t.name == "branch.weight").unwrap().clone();
    own.name = "other.weight".to_owned();
    graph.initializer.push(own);
    let branch = graph.node.iter_mut().find(|n| n.op_type == "If").unwrap();
    let side = branch.attribute.iter_mut().find(|a| a.name == "else_branch").unwrap();
    for node in &mut side.g.as_mut().unwrap().node {
        node.input.iter_mut().filter(|i| *i == "branch.weight").for_each(|i| *i = "other.weight".to_owned());
    }
    let path = dir.path().join("model.onnx");
    std::fs::write(&path, onnx_models::to_bytes(&model).unwrap()).unwrap();
    let before = initializer(&path, "other.weight");
    let (name, out) = (path.display().to_string(), dir.path().join("out.onnx"));
    let data = |sign: f32, file: &str| {
        let x: Vec<f32> = (0..64).map(|i| sign * (1.0 + i as f32) / 64.0).collect();
        support::write(&dir.path().join(file), (&[4, 16], &x), (&[4], &[0, 1, 2, 3]))
    };
    let taken = data(1.0, "taken.npz");
    let train = |data: &str, more: &[&str]| {
        let fixed =
            ["train", &name, "--loss", "cross-entropy", "--budget", "1M", "--data", data, "--lr", "0.1"];
        dtrc(&[&fixed[..], &["--save", &out.display().to_string()], more].concat()).ok();
    };
    // Decay goes on, whatever the optimizer: of AdamW nothing else, since its moments are zeros.
    for how in [&["--weight-decay", "0.5"][..], &["--optimizer", "adamw", "--weight-decay", "0.5"]] {
        train(&taken, &[how, &["--steps", "1"]].concat());
        for (a, b) in initializer(&out, "other.weight").iter().zip(&before) {
            assert!((a - b * 0.95).abs() <= 1e-6 * b.abs(), "{how:?}: {a} from {b}");
        }
        assert_ne!(initializer(&out, "branch.weight"), initializer(&path, "branch.weight"));
    }
    // Without decay and memory a gradient of zeros moves nothing.
    train(&taken, &["--steps", "3"]);
    assert_eq!(initializer(&out, "other.weight"), before);
    // In a step of two parts, of which only the first takes the other branch, its gradient counts.
    let folder = dir.path().join("both");
    std::fs::create_dir(&folder).unwrap();
    std::fs::rename(data(-1.0, "other.npz"), folder.join("a.npz")).unwrap();
    std::fs::rename(&taken, folder.join("b.npz")).unwrap();
    train(&folder.display().to_string(), &["--accumulate", "2"]);
    assert_ne!(initializer(&out, "other.weight"), before);
}

/// Whichever branch is taken and however long the loop goes on, upper bounds of the sizes say what pool is enough.
#[test]
fn bounds_size_the_pool_of_what_data_decide() {
    let Some(root) = data("models") else { return };
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("bounded.dtrc").display().to_string();
    for (name, ways) in [("ifnet_pos", "whichever of 4 ways"), ("act_while", "whichever of 13 ways")] {
        let file = root.join("small").join(format!("{name}.ts_dyn.onnx")).display().to_string();
        let io = root.join("reference").join(format!("{name}.io.npz")).display().to_string();
        let compile = |dims: &[&str], more: &[&str]| {
            let budget: &[&str] = if dims.contains(&"--budget") { &[] } else { &["--budget", "1M"] };
            let head = ["--json", "compile", &file, "--loss", "cross-entropy", "-o", &plan];
            let out = dtrc(&[&head[..], budget, dims, more].concat()).ok();
            (out.objects()[0]["arena_bytes"].as_u64().unwrap(), out.stderr)
        };
        let train = || {
            let run = ["--json", "train", &plan, "--weights", &file, "--data", &io, "--steps", "3"];
            dtrc(&run).ok().losses()
        };
        let (whole, _) = compile(&[], &[]);
        assert_eq!(whole, 1 << 20, "what the state leaves");
        let free = train();
        let (small, _) = compile(&["--dim", "batch<=4"], &[]);
        let (large, noted) = compile(&["--dim", "batch<=64"], &[]);
        assert!(small < large && large < whole, "{name}: {small} {large} {whole}");
        assert!(noted.contains(ways), "{noted}");
        assert_eq!(train(), free, "{name}");
        // A pool that is smaller than the budget leaves: more budget is no remedy.
        compile(&["--dim", "batch<=1"], &["--dynamic-pool", "1K"]);
        let run = ["train", &plan, "--weights", &file, "--data", &io, "--steps", "1"];
        let refused = dtrc(&run);
        refused
            .fails(71, &["with the state); the budget is 1048576", "give larger bounds (--dim NAME<=N) or"]);
        let named = tests::written::least(&refused.stderr).unwrap_or_else(|| panic!("{}", refused.stderr));
        compile(&["--dim", "batch<=1"], &["--dynamic-pool", &named.to_string()]);
        assert_eq!(train(), free, "{name} in {named}");
        compile(&["--dim", "batch<=64"], &[]);
        // One program for several budgets.
        let (arena, noted) = compile(&["--budget", "512K,64K", "--dim", "batch<=64"], &[]);
        assert!(arena == large && noted.contains("runs in any of the budgets"), "{arena}: {noted}");
        // The least pool that show tells does, at the greatest batch and at this one.
        let shown = dtrc(&["--json", "show", &plan, "--least", "--dim", "batch=64"]).ok().objects().remove(0);
        let least = shown["least_pool_bytes"].as_u64().unwrap();
        assert!(least < shown["roomy_pool_bytes"].as_u64().unwrap(), "{shown}");
        compile(&["--dim", "batch<=64"], &["--dynamic-pool", &least.to_string()]);
        assert_eq!(train(), free, "{name}");
        dtrc(&["show", &plan, "--least"]).fails(64, &["no figure follows", "least pool of its batch"]);
        dtrc(&["show", &plan, "--least", "--dim", "bath=4"]).fails(64, &["bath", "open sizes: batch"]);
        // What is said stands above what follows.
        let (given, noted) = compile(&["--dim", "batch<=64"], &["--dynamic-pool", "512K"]);
        assert!(given > large && !noted.contains("ways"), "{name}: {given}: {noted}");
    }
}

/// A file of arrays of floats and of integers.
fn arrays(
    dir: &std::path::Path,
    floats: &[(&str, &[u64], &[f32])],
    ints: &[(&str, &[u64], &[i64])],
) -> String {
    use graph::DType;
    let path = dir.join("arrays.npz");
    let bytes: Vec<Vec<u8>> =
        floats.iter().map(|(.., v)| v.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let numbers: Vec<Vec<u8>> =
        ints.iter().map(|(.., v)| v.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let floats = floats.iter().zip(&bytes).map(|((n, s, _), b)| (*n, DType::F32, *s, b.as_slice()));
    let ints = ints.iter().zip(&numbers).map(|((n, s, _), b)| (*n, DType::I64, *s, b.as_slice()));
    runtime::data::npz::write(std::fs::File::create(&path).unwrap(), floats.chain(ints)).unwrap();
    path.display().to_string()
}

#[test]
fn what_no_gradient_reaches_is_said_whether_data_decide_or_not() {
    use crate::support::onnx::{graph, int, node, weight, write};
    let dir = tempfile::tempdir().unwrap();
    // The bound of a Range, what a branch is chosen by, and what is rounded; `w` is in a product.
    let made = |dynamic: bool| {
        let side = |name: &str, op: &str| {
            support::onnx::body(
                name,
                graph("", vec![node(op, "p", op, vec![])], &format!("{op}[N,2]"), vec![]),
            )
        };
        let mut nodes = vec![
            node("MatMul", "x w", "p", vec![]),
            node("MatMul", "r r", "rounded", vec![]),
            node("Floor", "rounded", "floor", vec![]),
        ];
        if dynamic {
            nodes.extend([
                node("MatMul", "u u", "limit", vec![]),
                node("Range", "zero limit one", "range", vec![]),
                node("ReduceSum", "range", "sum", vec![int("keepdims", 0)]),
                node("MatMul", "c c", "chosen", vec![]),
                node("Greater", "chosen one", "positive", vec![]),
                node("If", "positive", "y", vec![side("then_branch", "Tanh"), side("else_branch", "Sin")]),
                node("Mul", "y sum", "q", vec![]),
            ]);
        } else {
            nodes.push(node("Tanh", "p", "q", vec![]));
        }
        nodes.extend([
            node("Add", "q floor", "o", vec![]),
            node("Mul", "o o", "square", vec![]),
            node("ReduceMean", "square", "loss", vec![int("keepdims", 0)]),
        ]);
        let v = |name: &str| weight(name, &[2], &[1.0, 1.5]);
        let weights = vec![
            weight("w", &[2, 2], &[0.1, 0.2, 0.3, 0.4]),
            v("u"),
            v("c"),
            v("r"),
            weight("zero", &[], &[0.0]),
            weight("one", &[], &[1.0]),
        ];
        write(dir.path(), "reached.onnx", 12, graph("x[N,2]", nodes, "loss[]", weights))
    };
    let data = arrays(dir.path(), &[("x", &[3, 2], &[0.5; 6])], &[]);
    let told = |dynamic: bool, more: &[&str]| {
        let model = made(dynamic);
        dtrc(&[&["train", &model, "--data", &data, "--budget", "1M", "--steps", "1"], more].concat())
            .ok()
            .stderr
    };
    let alone = ["--train", "w", "--train", "r"];
    for (dynamic, sizes) in
        [(true, &[][..]), (true, &["--dim", "N=3"]), (false, &["--dim", "N=3"]), (false, &[])]
    {
        let text = told(dynamic, &[&alone, sizes].concat());
        let said = "the loss does not depend on trainable tensor \"r\" by any differentiable way";
        assert_eq!(text.matches(said).count(), 1, "{text}");
        assert!(!told(dynamic, &[&["--train", "w"], sizes].concat()).contains("differentiable way"));
    }
    let all = told(true, &["--train", "w", "--train", "u", "--train", "c", "--train", "r"]);
    assert!(all.contains("does not depend on 3 trainable tensors, "), "{all}");
}

#[test]
fn nothing_resized_to_nothing_is_nothing() {
    use crate::support::onnx::{graph, node, write};
    let dir = tempfile::tempdir().unwrap();
    let resize = node("Resize", "x _ _ s", "y", vec![]);
    let model =
        write(dir.path(), "resize.onnx", 17, graph("x[1,1,H,W] s:int64[4]", vec![resize], "y", vec![]));
    let out = dir.path().join("out.npz").display().to_string();
    let run = |height: i64, rows: u64| {
        let x = vec![1.0; 4 * rows as usize];
        let data = arrays(dir.path(), &[("x", &[1, 1, rows, 4], &x)], &[("s", &[4], &[1, 1, height, 3])]);
        dtrc(&["run", &model, "--data", &data, "--budget", "1M", "--inference", "-o", &out])
    };
    run(0, 0).ok();
    let mut made = runtime::data::npz::Npz::open(std::path::Path::new(&out)).unwrap();
    assert_eq!(made.read("y").unwrap().shape(), [1, 1, 0, 3]);
    run(2, 0).fails(65, &["axis 2 is empty", "2 elements"]);
    run(2, 1).ok();
}

#[test]
fn where_data_decide_no_size_is_asked_for() {
    use crate::support::onnx::{body, graph, int, node, weight, write};
    let dir = tempfile::tempdir().unwrap();
    let side = |name: &str, op: &str| body(name, graph("", vec![node(op, "p", op, vec![])], op, vec![]));
    let nodes = vec![
        node("MatMul", "x w", "p", vec![]),
        node("ReduceSum", "p", "sum", vec![int("keepdims", 0)]),
        node("Greater", "sum zero", "positive", vec![]),
        node("If", "positive", "y", vec![side("then_branch", "Tanh"), side("else_branch", "Sin")]),
        node("ReduceMean", "y", "loss", vec![int("keepdims", 0)]),
    ];
    let weights = || vec![weight("w", &[2, 2], &[0.1, 0.2, 0.3, 0.4]), weight("zero", &[], &[0.0])];
    let decided = write(dir.path(), "decided.onnx", 12, graph("x[N,2]", nodes, "loss[]", weights()));
    let nodes =
        vec![node("MatMul", "x w", "p", vec![]), node("ReduceMean", "p", "loss", vec![int("keepdims", 0)])];
    let sized = write(dir.path(), "sized.onnx", 12, graph("x[N,2]", nodes, "loss[]", weights()));
    let file = |name: &str| dir.path().join(name).display().to_string();
    let emit = |model: &str, more: &[&str]| {
        let (plan, onnx) = (file("plan.dtrc"), file("step.onnx"));
        dtrc(&[&["compile", model, "--budget", "1M", "-o", &plan, "--emit-onnx", &onnx], more].concat())
    };
    for sizes in [&[][..], &["--dim", "N=3"], &["--dim", "N<=3"]] {
        let refused = emit(&decided, sizes);
        refused.fails(64, &["--emit-onnx", "whatever is bound", "the condition"]);
        assert!(!refused.stderr.contains("--dim NAME=N"), "{}", refused.stderr);
    }
    emit(&sized, &[]).fails(64, &["--emit-onnx", "bind its sizes with --dim NAME=N"]);
    emit(&sized, &["--dim", "N=3"]).ok();
    // A budget in bytes is there; what is compared with it is not.
    let data = arrays(dir.path(), &[("x", &[3, 2], &[0.5; 6])], &[]);
    let refused = dtrc(&["train", &decided, "--data", &data, "--budget", "1M", "--steps", "1", "--compare"]);
    refused.fails(64, &["--compare", "keep-all", "--dynamic-pool"]);
    assert!(!refused.stderr.contains("in bytes"), "{}", refused.stderr);
}
