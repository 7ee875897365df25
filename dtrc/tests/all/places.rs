//! What a command writes lies never where it reads, and two results never in one file; nothing is lost where it is tried.

use crate::support::{self, dtrc, mlp_data, scores_model};
use std::{fs, path::Path};

#[test]
fn nothing_is_written_over_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = scores_model(dir.path());
    let data = mlp_data(dir.path(), 3);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (plan, inference) = (at("m.dtrc"), at("i.dtrc"));
    dtrc(&["compile", &model, "--budget", "100%", "--loss", "cross-entropy", "-o", &plan]).ok();
    dtrc(&["compile", &model, "--budget", "100%", "-o", &inference]).ok();
    let folder = at("arrays");
    fs::create_dir(&folder).unwrap();
    fs::copy(&data, Path::new(&folder).join("a.npz")).unwrap();
    // The same files by other names.
    let link = at("link.onnx");
    std::os::unix::fs::symlink(&model, &link).unwrap();
    let hard = at("hard.npz");
    fs::hard_link(&data, &hard).unwrap();
    let hard_model = at("hard.onnx");
    fs::hard_link(&model, &hard_model).unwrap();
    let detour = format!("{folder}/../{}", Path::new(&model).file_name().unwrap().display());
    let array = format!("{folder}/a.npz");

    let compile = ["compile", &model, "--budget", "100%", "--loss", "cross-entropy"];
    let train = ["train", &plan, "--weights", &model, "--data", &data];
    let over_folder = ["train", &plan, "--weights", &model, "--data", &folder];
    let run = ["run", &inference, "--weights", &model, "--data", &data];
    let beside = at("data.weights");
    fs::copy(&data, &beside).unwrap();
    let beside_data = ["train", &plan, "--weights", &model, "--data", &beside];
    let cases: [(&[&str], &[&str]); 18] = [
        (&compile, &["-o", &model]),
        (&compile, &["-o", &link]),
        (&compile, &["-o", &detour]),
        (&compile, &["-o", &at("n.dtrc"), "--emit-onnx", &model]),
        (&compile, &["-o", &at("n.dtrc"), "--emit-onnx", &at("n.dtrc")]),
        (&compile, &["-o", &at("n.micro.onnx"), "--emit-onnx", &at("n.onnx"), "--accumulate", "2"]),
        (&train, &["--save", &at("a.onnx"), "--log", &at("a.weights")]),
        (&beside_data, &["--save", &at("data.onnx")]),
        (&train, &["--log", &data]),
        (&train, &["--log", &hard]),
        (&train, &["--log", &plan]),
        (&train, &["--save", &plan]),
        (&train, &["--save", &data]),
        (&train, &["--save", &at("a.onnx"), "--log", &at("a.onnx")]),
        (&over_folder, &["--log", &array]),
        (&run, &["-o", &data]),
        (&run, &["-o", &model]),
        (&["profile", &model], &["-o", &model]),
    ];
    let files = [&model, &data, &plan, &inference, &array, &beside];
    let before: Vec<Vec<u8>> = files.iter().map(|f| fs::read(f).unwrap()).collect();
    for (command, more) in cases {
        dtrc(&[command, more].concat()).fails(64, &["choose", "name"]);
        for (file, bytes) in files.iter().zip(&before) {
            assert!(fs::read(file).unwrap() == *bytes, "{command:?} {more:?} changed {file}");
        }
    }
    // A log of a recorded run is what `simulate` reads, and its trace goes elsewhere.
    let log = at("run.log");
    fs::write(&log, "x").unwrap();
    dtrc(&["simulate", &log, "--budget-ratio", "0.5", "--trace", &log]).fails(64, &["--trace would replace"]);
    // The model that a plan finds by itself.
    let (own, log) = (at("own.dtrc"), at("log.csv"));
    dtrc(&[&compile[..], &["-o", &own]].concat()).ok();
    let beside_plan = at("scores.onnx");
    assert_eq!(model, beside_plan, "a plan reads the model of its name");
    std::os::unix::fs::symlink(&model, &log).unwrap();
    for over in [&model, &log, &hard_model] {
        dtrc(&["train", &own, "--data", &data, "--steps", "1", "--log", over]).fails(64, &["would replace"]);
        dtrc(&["run", &inference, "--data", &data, "-o", over]).fails(64, &["would replace"]);
        assert!(fs::read(&model).unwrap() == before[0], "{over}");
    }
    // Only accumulation writes a second program.
    let odd = at("n.micro.onnx");
    fs::copy(&model, &odd).unwrap();
    let odd = ["compile", &odd, "--budget", "100%", "--loss", "cross-entropy", "-o", &at("odd.dtrc")];
    let emit = ["--emit-onnx", &at("n.onnx")];
    dtrc(&[&odd[..], &emit].concat()).ok();
    dtrc(&[&odd[..], &emit, &["--accumulate", "2"]].concat()).fails(64, &["would replace"]);
    // What holds nothing may be named twice.
    dtrc(&[&train[..], &["--steps", "1", "--log", "/dev/null"]].concat()).ok();
}

#[test]
fn a_plan_beside_its_model_of_the_same_stem_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("odd.dtrc");
    fs::rename(scores_model(dir.path()), &model).unwrap();
    let before = fs::read(&model).unwrap();
    // The default name of the plan is the model's own.
    let mut command = support::command(&["compile", "odd.dtrc", "--budget", "100%"]);
    let out = command.current_dir(dir.path()).output().unwrap();
    assert_eq!(out.status.code(), Some(64), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(fs::read(&model).unwrap() == before);
}

#[test]
fn external_data_of_the_model_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let model = scores_model(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    // One weight goes beside the model.
    let mut m: onnx_models::ModelProto =
        protobuf::Message::parse_from_bytes(&fs::read(&model).unwrap()).unwrap();
    let g = m.graph.mut_or_insert_default();
    let weight = g.initializer.iter_mut().find(|t| t.data_type == 1 && t.dims.len() == 2).unwrap();
    let elements = std::mem::take(&mut weight.raw_data);
    fs::write(at("beside.bin"), &elements).unwrap();
    let (key, value) = ("location".to_owned(), "beside.bin".to_owned());
    weight.external_data.push(onnx_protobuf::StringStringEntryProto { key, value, ..Default::default() });
    weight.data_location = onnx_protobuf::tensor_proto::DataLocation::EXTERNAL.into();
    fs::write(&model, onnx_models::to_bytes(&m).unwrap()).unwrap();

    let (data, beside, plan, inference) =
        (mlp_data(dir.path(), 2), at("beside.bin"), at("m.dtrc"), at("i.dtrc"));
    let of_model = [&model[..], "--budget", "100%", "--loss", "cross-entropy"];
    dtrc(&[&["compile"], &of_model[..], &["-o", &plan]].concat()).ok();
    dtrc(&["compile", &model, "--budget", "100%", "-o", &inference]).ok();
    let fed = ["--data", &data[..]];
    let cases: [Vec<&str>; 7] = [
        [&["compile"], &of_model[..], &["-o", &beside]].concat(),
        [&["compile"], &of_model[..], &["-o", &plan, "--emit-onnx", &beside]].concat(),
        [&["train"], &of_model[..], &fed, &["--log", &beside]].concat(),
        [&["train", &plan, "--weights", &model], &fed[..], &["--log", &beside]].concat(),
        [&["run", &inference, "--weights", &model], &fed[..], &["-o", &beside]].concat(),
        vec!["profile", &model, "-o", &beside],
        vec!["sweep", &model, "--csv", &beside],
    ];
    for command in cases {
        dtrc(&command).fails(64, &["would replace a file", "beside.bin"]);
        assert!(fs::read(&beside).unwrap() == elements, "{command:?}");
    }
    // The default name of a plan is a name, too.
    let mut same = support::command(&[&["compile"], &of_model[..], &["--emit-onnx", "scores.dtrc"]].concat());
    let stem = Path::new(&model).file_stem().unwrap().display();
    assert_eq!(stem.to_string(), "scores");
    let out = same.current_dir(dir.path()).output().unwrap();
    assert_eq!(out.status.code(), Some(64), "{}", String::from_utf8_lossy(&out.stderr));
    // External data under names that follow from others.
    let derived: [(&str, &[&str]); 3] = [
        ("scores.dtrc", &[]),
        ("e.micro.onnx", &["-o", "p.dtrc", "--accumulate", "2", "--emit-onnx", "e.onnx"]),
        ("e.onnx.weights", &["-o", "p.dtrc", "--emit-onnx", "e.onnx"]),
    ];
    for (name, more) in derived {
        let external = &mut m.graph.mut_or_insert_default().initializer.iter_mut();
        external.find(|t| !t.external_data.is_empty()).unwrap().external_data[0].value = name.to_owned();
        fs::write(&model, onnx_models::to_bytes(&m).unwrap()).unwrap();
        fs::write(at(name), &elements).unwrap();
        let mut command = support::command(&[&["compile"], &of_model[..], more].concat());
        let out = command.current_dir(dir.path()).output().unwrap();
        assert_eq!(out.status.code(), Some(64), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(fs::read(at(name)).unwrap() == elements, "{name}");
    }
}
