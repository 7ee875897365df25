//! scratch
use dtr::simrd::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let log = Log::parse(std::io::BufReader::new(std::fs::File::open(&a[1]).unwrap())).unwrap();
    let base = log.baseline().unwrap();
    for r in a[3].split(',') {
        let mut o = SimOptions::new(a[2].parse().unwrap(), Budget::Ratio(r.parse().unwrap()));
        if a.len() > 4 { o.order_remats = a[4].contains('o'); if a[4].contains('n') { o.overhead_limit = None; } }
        let reps = if a.len() > 5 { a[5].parse().unwrap() } else { 1 };
        let mut best = f64::MAX; let mut rep = None;
        for _ in 0..reps { let x = log.replay(base, &o).unwrap(); best = best.min(x.seconds); rep = Some(x); }
        let x = rep.unwrap();
        println!("{} {} {:?} overhead {:.4} remats {} evict {} scores {} {:.3} ms {:?}", a[2], r, x.status, x.overhead, x.remats, x.evictions - x.evictions_eager, x.scores, best*1e3, x.failure);
    }
}
