//! The exact text of searched plans gives the same bytes, at every budget and for every small model.

use ops::Registry;
use plan::{text, to_bytes, validate};
use tests::{
    reference::{adamw, sgd},
    tiny,
};

#[test]
fn plans_read_back_from_their_exact_text() {
    for file in tiny::TINY {
        let imported = tiny::imported(file);
        let optimizer = if file.starts_with("mlp") { adamw() } else { sgd() };
        let plans = tiny::plans(&imported, optimizer, &[1.0, 0.75, 0.5, 0.3]);
        for plan in &plans {
            let text = text::full(plan).unwrap_or_else(|e| panic!("{file}: {e}"));
            let parsed = text::parse(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(&parsed, plan, "{file} at {}", plan.budget);
            assert!(to_bytes(&parsed) == to_bytes(plan), "{file} at {}", plan.budget);
            assert_eq!(text::full(&parsed).as_ref(), Ok(&text));
            validate(&parsed, &Registry).unwrap_or_else(|e| panic!("{file}: {e}"));
            // One line a step, whatever stands in it.
            let runs = text.lines().filter(|l| l.starts_with("  run ")).count();
            assert_eq!(runs, plan.programs.iter().map(|p| p.steps.len()).sum::<usize>());
        }
        println!("{file}: {} plans", plans.len());
    }
}
