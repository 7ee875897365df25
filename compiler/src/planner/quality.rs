//! A slice of the table of plans: what published planners reach on their graphs is reached here, and logs on which online runs fail are
//! planned. `bench`'s `plan_quality` runs the whole table.

use super::import_json;
use super::import_log;
use super::outcome::{Options, StopReason};
use super::plan;
use super::replay::replay;

/// References are printed with six decimals.
const TOLERANCE: f64 = 1e-4;

#[test]
fn published_results_are_reached_in_the_given_order() {
    let Some(folder) = test_support::data("plans") else { return };
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a table");
    let (bounds, results) = (read("bounds.csv"), read("results.csv"));
    let results: Vec<Vec<&str>> = results.lines().map(|l| l.split(',').collect()).collect();
    let mut rows = 0;
    for line in bounds.lines().skip(1) {
        let [name, nodes, fraction, _, _, best, ..] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        if !["chain8", "chain16", "vgg16_coarse", "gpt_l2_coarse", "unet_coarse", "resnet18_coarse"]
            .contains(&name)
        {
            continue;
        }
        let row = results.iter().find(|r| r[0] == name && r[2] == fraction).expect("a result");
        let budget: u64 = row[3].parse().expect("bytes");
        let graph = read(&format!("graphs/{name}.json"));
        let problem = import_json::import(&graph).expect("a graph").problem;
        let options = Options { keep_order: true, live_bytes_only: true, ..Options::default() };
        let found = plan(&problem, budget, &options).unwrap_or_else(|e| panic!("{name} at {fraction}: {e}"));
        assert!(replay(&problem, &found.schedule).expect("lawful").peak <= budget);
        let best: f64 = best.parse().expect("a fraction");
        assert!(
            found.extra_fraction() <= best + TOLERANCE,
            "{name} at {fraction}: {} against {best}",
            found.extra_fraction()
        );
        // Small graphs are solved.
        assert!(nodes.parse::<usize>().expect("a number") > 60 || found.stop != StopReason::WorkLimit);
        rows += 1;
    }
    assert_eq!(rows, 29);
}

#[test]
fn logs_are_planned_where_online_runs_fail() {
    let Some(folder) = test_support::data("simrd/logs") else { return };
    let log = std::fs::read_dir(folder)
        .expect("logs")
        .filter_map(|e| Some(e.ok()?.path()))
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("unet-")))
        .expect("the log");
    let log = import_log::import(&std::fs::read_to_string(log).expect("text")).expect("a log");
    for (ratio, most) in [(0.4, 0.16), (0.3, 0.34)] {
        let budget = log.budget(ratio).expect("a ratio");
        let options = Options { live_bytes_only: true, ..Options::default() };
        let found = plan(&log.problem, budget, &options).unwrap_or_else(|e| panic!("at {ratio}: {e}"));
        assert!(replay(&log.problem, &found.schedule).expect("lawful").peak <= budget);
        assert!(found.extra_fraction() <= most, "at {ratio}: {}", found.extra_fraction());
    }
}
