//! The text forms of two small plans: for people, exact, side by side.

use crate::common::{Toy, keep_all, recomputing};
use graph::{Attr, Init, Literal, ValueDef};
use plan::{Plan, Step, diff, show, text, to_bytes, validate};

fn shown(plan: &Plan) -> String {
    show(plan, &validate(plan, &Toy).unwrap())
}

#[test]
fn people_see_the_verdict_first_and_one_step_a_line() {
    insta::assert_snapshot!("keep_all", shown(&keep_all()));
    insta::assert_snapshot!("recomputing", shown(&recomputing()));
}

#[test]
fn two_plans_side_by_side() {
    let (a, b) = (keep_all(), recomputing());
    let (ra, rb) = (validate(&a, &Toy).unwrap(), validate(&b, &Toy).unwrap());
    let d = diff((&a, &ra), (&b, &rb));
    assert!(d.same_numerics && d.same_state);
    insta::assert_snapshot!("diff", d.to_string());
    let same = diff((&b, &rb), (&b, &rb));
    assert!(same.programs[0].only_first.is_empty() && same.programs[0].both == 1);
}

#[test]
fn the_exact_text_reads_well() {
    let mut plan = recomputing();
    // The hash depends on the version of dtrc.
    plan.numerics = [7; 32];
    insta::assert_snapshot!("full", text::full(&plan).unwrap());
}

#[test]
fn the_exact_text_gives_the_same_bytes() {
    let mut odd = recomputing();
    odd.model = "# a\nmodel [1] \"x\" ünï".to_owned();
    odd.provenance = String::new();
    odd.state[0].hash = None;
    let p = &mut odd.programs[0];
    p.guard.dims.push(("past \"n\" + 1".into(), 1, u64::MAX));
    let nan = f64::from_bits(0x7ff8_0000_dead_beef);
    let attrs = &mut p.graph.nodes[0].attrs.0;
    let floats = vec![nan, -0.0, f64::NEG_INFINITY, f64::MIN_POSITIVE / 3.0, 0.1 + 0.2, 1e300];
    attrs.insert("floats".to_owned(), Attr::Floats(floats));
    for (name, empty) in [("i", Attr::Ints(vec![])), ("f", Attr::Floats(vec![])), ("s", Attr::Strs(vec![]))] {
        attrs.insert(name.to_owned(), empty);
    }
    attrs.insert("min".to_owned(), Attr::Int(i64::MIN));
    attrs.insert("strs".to_owned(), Attr::Strs(vec!["~".into(), "".into(), "->".into()]));
    attrs.insert("t".to_owned(), Attr::Tensor(Literal::ints(&[i64::MIN, 0, i64::MAX])));
    attrs.insert("h".to_owned(), Attr::Tensor(Literal::scalar(graph::DType::F16, 0.1)));
    p.graph.add_constant("~", Literal::ints(&[]));
    p.graph.states[0].init = Init::Literal(Literal::scalar(graph::DType::Bool, 1.0));
    p.steps.push(Step::Wait { queue: 255, on: 1 });
    p.steps.push(Step::Copy { value: graph::ValueId(2), space: 1, offset: u64::MAX, queue: 3 });
    for plan in [keep_all(), recomputing(), odd] {
        let text = text::full(&plan).unwrap();
        let parsed = text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(to_bytes(&parsed), to_bytes(&plan), "{text}");
        assert_eq!(text::full(&parsed).unwrap(), text);
    }
}

#[test]
fn what_names_cannot_say_is_an_error() {
    let mut twice = keep_all();
    twice.programs[0].graph.values[0].name = "c".into();
    assert!(text::full(&twice).is_err());
    let mut beyond = keep_all();
    if let Step::Run(r) = &mut beyond.programs[0].steps[0] {
        r.node = graph::NodeId(77);
    }
    assert!(text::full(&beyond).is_err());
}

#[test]
fn errors_name_the_line() {
    let text = text::full(&recomputing()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let at = |prefix: &str| lines.iter().position(|l| l.trim_start().starts_with(prefix)).unwrap();
    let cases = [
        ("dtrc-plan 5", "dtrc-plan 6", "reads version 5"),
        ("budget", "budget 99999999999999999999", "a number of bytes expected"),
        ("numerics", "numerics abc", "hexadecimal"),
        ("entry", "entry x parameter f32[64 @ 0 init zeros", "a bracket is not closed"),
        ("value c", "value cc f32[64]", "no value \"c\""),
        ("value c", "value a f32[64]", "two values have the name"),
        ("node c", "node c = Mul(c, z) -> c", "there is no value \"z\""),
        ("node grad", "node grad = Mul(c, x) -> c", "defined twice"),
        ("run c", "run d impl 0 queue 0", "there is no node \"d\""),
        ("run c", "run c impl 300 queue 0", "a number expected"),
        ("drop a", "drop \"a", "a quote is not closed"),
        ("state ", "state w parameter layer.weight init ones", "weight, zeros or literal expected"),
        ("end", "# the end", "the text ends"),
    ];
    for (prefix, replacement, what) in cases {
        let mut broken = lines.clone();
        broken[at(prefix)] = replacement;
        let e = text::parse(&broken.join("\n")).unwrap_err();
        assert!(e.what.contains(what), "{replacement}: {e}");
        // A missing value is noticed where it is used, a missing end at the last line, all else where it stands.
        if replacement != "value cc f32[64]" && prefix != "end" {
            assert_eq!(e.line, at(prefix) + 1, "{replacement}: {e}");
        }
    }
    let undefined = text.replace("  node grad = Mul(c, x) -> grad\n", "");
    assert!(text::parse(&undefined).is_err());
    let values = recomputing().programs[0].graph.values.len();
    assert!(matches!(recomputing().programs[0].graph.values[values - 1].def, ValueDef::Node { .. }));
}
