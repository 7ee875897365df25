//! Placements against the validator, exhaustive search, and the given instances.

use proptest::prelude::*;

use super::*;

fn buffer(start: u64, end: u64, size: u64) -> Buffer {
    Buffer { start, end, size }
}

fn data(folder: &str) -> Option<std::path::PathBuf> {
    test_support::data(folder)
}

/// Least height over every placement in which each buffer rests on the floor or on another one.
fn least_height(buffers: &[Buffer]) -> u64 {
    fn go(buffers: &[Buffer], placed: &mut Vec<(usize, u64)>, height: u64, best: &mut u64) {
        if height >= *best {
            return;
        }
        if placed.len() == buffers.len() {
            *best = height;
            return;
        }
        for i in (0..buffers.len()).filter(|i| !placed.iter().any(|p| p.0 == *i)).collect::<Vec<_>>() {
            let below: Vec<(u64, u64)> = placed
                .iter()
                .filter(|p| buffers[p.0].overlaps(&buffers[i]))
                .map(|p| (p.1, p.1 + buffers[p.0].size))
                .collect();
            for at in below.iter().map(|b| b.1).chain([0]).collect::<Vec<_>>() {
                if below.iter().all(|b| b.0 >= at + buffers[i].size || b.1 <= at) {
                    placed.push((i, at));
                    go(buffers, placed, height.max(at + buffers[i].size), best);
                    placed.pop();
                }
            }
        }
    }
    let mut best = u64::MAX;
    go(buffers, &mut Vec::new(), 0, &mut best);
    best
}

fn instances(most: usize) -> impl Strategy<Value = Vec<Buffer>> {
    let one =
        (0u64..12, 1u64..7, 1u64..9).prop_map(|(start, width, size)| buffer(start, start + width, size));
    prop::collection::vec(one, 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn search_agrees_with_exhaustive_search(buffers in instances(6)) {
        let least = least_height(&buffers);
        prop_assert!(matches!(search::fit(&buffers, least, 10_000_000), search::Outcome::Found(_)));
        if let search::Outcome::Found(offsets) = search::fit(&buffers, least, 10_000_000) {
            prop_assert_eq!(check::validate(&buffers, &offsets, least), Ok(()));
        }
        prop_assert!(matches!(search::fit(&buffers, least - 1, 10_000_000), search::Outcome::Impossible));
    }

    #[test]
    fn placements_are_valid_and_deterministic(buffers in instances(60), capacity in prop::option::of(1u64..80)) {
        let limits = Limits { greedy: 1_000_000, repair: 100_000, search: 2_000_000 };
        let placed = place(&buffers, capacity, limits);
        prop_assert_eq!(check::validate(&buffers, &placed.offsets, placed.height), Ok(()));
        prop_assert!(placed.height >= placed.lower_bound);
        match placed.stop {
            StopReason::Optimal => prop_assert_eq!(placed.height, placed.lower_bound),
            StopReason::Fits => prop_assert!(placed.height <= capacity.unwrap()),
            StopReason::Infeasible => prop_assert!(placed.height > capacity.unwrap()),
            StopReason::WorkLimit => prop_assert!(capacity.is_none_or(|c| placed.height > c)),
        }
        prop_assert_eq!(place(&buffers, capacity, limits), placed);
    }
}

#[test]
fn validator_finds_each_fault() {
    let buffers = [buffer(0, 2, 4), buffer(1, 3, 4)];
    assert_eq!(check::validate(&buffers, &[0, 4], 8), Ok(()));
    assert_eq!(check::validate(&buffers, &[0, 3], 8), Err(check::Fault::Overlap { a: 0, b: 1 }));
    assert_eq!(check::validate(&buffers, &[0, 4], 7), Err(check::Fault::TooHigh { buffer: 1, height: 7 }));
    assert_eq!(check::validate(&buffers, &[0], 8), Err(check::Fault::Count { buffers: 2, offsets: 1 }));
    assert_eq!(
        check::validate(&buffers, &[0, u64::MAX], 8),
        Err(check::Fault::TooHigh { buffer: 1, height: 8 })
    );
}

#[test]
fn nothing_to_place() {
    let placed = place(&[], Some(0), Limits::default());
    assert_eq!((placed.height, placed.lower_bound, placed.stop), (0, 0, StopReason::Optimal));
    let placed = place(&[buffer(3, 3, 9), buffer(0, 5, 0)], None, Limits::default());
    assert_eq!((placed.height, placed.offsets.as_slice()), (0, [0, 0].as_slice()));
}

#[test]
fn capacity_below_the_live_maximum_is_proved_infeasible() {
    let solved =
        csv::solve_csv("id,lower,upper,size\na,0,3,4\nb,1,9,4\n", Some(7), Limits::default()).unwrap();
    assert_eq!(solved.status, csv::Status::InfeasibleProved);
    assert_eq!((solved.placement.lower_bound, solved.placement.height), (8, 8));
}

#[test]
fn gap_between_live_maximum_and_height_is_proved() {
    // At most 8 bytes are live at once, but 9 are needed: found by drawing 200,000 instances.
    let buffers = [
        buffer(1, 2, 1),
        buffer(2, 5, 3),
        buffer(1, 2, 3),
        buffer(3, 4, 1),
        buffer(0, 1, 4),
        buffer(5, 8, 4),
        buffer(0, 3, 4),
        buffer(2, 6, 1),
        buffer(6, 8, 4),
        buffer(3, 6, 3),
    ];
    let live = live_max(&buffers);
    assert_eq!((live, least_height(&buffers)), (8, 9));
    assert_eq!(place(&buffers, Some(live), Limits::default()).stop, StopReason::Infeasible);
}

#[test]
fn csv_takes_columns_in_any_order() {
    let instance = csv::parse("size, id ,note,upper,lower\n\n 4,a,x,3,0\n5,b,,9,3\n").unwrap();
    assert_eq!(instance.ids, ["a", "b"]);
    assert_eq!(instance.buffers, [buffer(0, 3, 4), buffer(3, 9, 5)]);
}

#[test]
fn csv_errors_name_line_and_column() {
    let cases = [
        ("", "the file is empty; expected a header line id,lower,upper,size"),
        ("id,lower,size\n", "line 1: the header has no column \"upper\""),
        ("id,lower,upper,size,id\n", "line 1: the header names column \"id\" twice"),
        ("id,lower,upper,size\na,0,1\n", "line 2: no field for column \"size\""),
        (
            "id,lower,upper,size\n\na,0,-1,4\n",
            "line 3: column \"upper\" is \"-1\", not an unsigned 64-bit number",
        ),
        ("id,lower,upper,size\na,5,1,4\n", "line 2: lower 5 is above upper 1"),
        (
            "id,lower,upper,size\na,0,1,18446744073709551615\nb,0,1,1\n",
            "line 2: the sizes up to here reach 2^64 - 1 bytes together, where addresses end",
        ),
        (
            "id,lower,upper,size\na,0,1,9223372036854775807\nb,0,1,9223372036854775807\nc,0,1,1\n",
            "line 4: the sizes up to here reach 2^64 - 1 bytes together, where addresses end",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(csv::parse(text).unwrap_err().to_string(), message, "{text:?}");
    }
}

#[test]
fn five_thousand_buffers() {
    // Lifetimes like a training step's: kept activations, local temporaries.
    let mut seed = 1u64;
    let mut next = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let mut buffers = Vec::new();
    for i in 0..2500u64 {
        let size = 256 * (1 + next(4000));
        buffers.push(buffer(i, 5001 - i, size));
        buffers.push(buffer(i * 2, i * 2 + 1 + next(6), 256 * (1 + next(4000))));
    }
    let placed = place(&buffers, None, Limits::quick());
    assert_eq!(check::validate(&buffers, &placed.offsets, placed.height), Ok(()));
    assert!(
        placed.height as f64 <= placed.lower_bound as f64 * 1.01,
        "{} over {}",
        placed.height,
        placed.lower_bound
    );
}

#[test]
fn given_instances_fit_their_capacity() {
    let Some(folder) = data("offsets") else { return };
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut seen = 0;
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(capacity) =
            name.strip_suffix(".csv").and_then(|n| n.rsplit('.').next()?.parse::<u64>().ok())
        else {
            continue;
        };
        let started = std::time::Instant::now();
        let solved =
            csv::solve_csv(&std::fs::read_to_string(&path).unwrap(), Some(capacity), Limits::default())
                .unwrap();
        let placed = &solved.placement;
        println!(
            "{name}: {} buffers, {} height {} live {} {:.3} s",
            solved.instance.buffers.len(),
            placed.stop.as_str(),
            placed.height,
            placed.lower_bound,
            started.elapsed().as_secs_f64()
        );
        assert_eq!(check::validate(&solved.instance.buffers, &placed.offsets, placed.height), Ok(()));
        assert_eq!(solved.status, csv::Status::Ok, "{name}");
        assert!(placed.height <= capacity);
        seen += 1;
    }
    assert!(seen >= 16);
}
