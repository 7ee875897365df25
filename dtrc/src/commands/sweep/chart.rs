//! The curves of a sweep as an SVG: extra time over the budget, the proven bound below it, online runs above.

use std::fmt::Write;

/// One budget: shares of keep-all and of the step's time.
pub struct Point {
    /// Budget over keep-all.
    pub share: f64,
    /// Extra time of the plan; none where none was found.
    pub extra: Option<f64>,
    /// Proven bound; infinite where no plan can be.
    pub bound: f64,
    /// Extra time of the online runs, one per name.
    pub online: Vec<Option<f64>>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Colours of the online runs.
const ONLINE: [&str; 4] = ["#d5672b", "#b3324f", "#7a4fb0", "#3b8f6b"];

/// A step of 1, 2 or 5 times a power of ten that divides `range` into about five.
fn tick(range: f64) -> f64 {
    let raw = (range / 5.0).max(1e-6);
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|t| *t >= raw).unwrap_or(raw)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The picture; the same points give the same bytes.
pub fn svg(model: &str, keep_all: &str, online: &[String], points: &[Point]) -> String {
    let extras = points.iter().flat_map(|p| p.online.iter().chain([&p.extra])).filter_map(|e| *e);
    let bounds = points.iter().map(|p| p.bound).filter(|b| b.is_finite());
    let most = extras.chain(bounds).fold(0.0, f64::max) * 100.0;
    let step = tick(most.max(1.0));
    let top = (most.max(1.0) / step).ceil() * step;
    let widest = points.iter().map(|p| p.share).fold(1.0, f64::max);
    let x = |share: f64| LEFT + share / widest * (WIDTH - LEFT - RIGHT);
    let y = |percent: f64| HEIGHT - BOTTOM - percent / top * (HEIGHT - TOP - BOTTOM);
    let mut s = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}: extra time over memory (keep-all {})</text>",
        escaped(model),
        escaped(keep_all)
    );
    let lines = (top / step).round() as u32;
    for k in 0..=lines {
        let percent = f64::from(k) * step;
        let at = y(percent);
        let _ = writeln!(
            s,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">+{} %</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            (percent * 100.0).round() / 100.0
        );
    }
    let across = tick(widest);
    for k in 0..=(widest / across).floor() as u32 {
        let at = x(f64::from(k) * across);
        let _ = writeln!(
            s,
            "<path d=\"M{at:.1} {TOP}V{:.1}\" stroke=\"#eee\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0} %</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            f64::from(k) * across * 100.0
        );
    }
    let bound: Vec<(f64, f64)> =
        points.iter().filter(|p| p.bound.is_finite()).map(|p| (x(p.share), y(p.bound * 100.0))).collect();
    let plan: Vec<(f64, f64)> =
        points.iter().filter_map(|p| Some((x(p.share), y(p.extra? * 100.0)))).collect();
    let dashed = " stroke-dasharray=\"5 4\"";
    let mut curves = vec![(bound, "#888", dashed, "proven bound"), (plan, "#1668c4", "", "plan")];
    for (position, name) in online.iter().enumerate() {
        let of = |p: &Point| Some((x(p.share), y((*p.online.get(position)?)? * 100.0)));
        curves.push((points.iter().filter_map(of).collect(), ONLINE[position % ONLINE.len()], "", name));
    }
    for (row, (line, colour, dash, what)) in curves.iter().enumerate() {
        let text: Vec<String> = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            s,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            text.join(" ")
        );
        for (x, y) in line {
            let _ = writeln!(s, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let at = 34 + 14 * row;
        let _ = writeln!(
            s,
            "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"end\" fill=\"{colour}\">{what}</text>",
            WIDTH - RIGHT
        );
    }
    let _ = writeln!(
        s,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">budget, share of keep-all</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 16.0
    );
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_go_through_their_points() {
        let points = [
            Point { share: 1.0, extra: Some(0.0), bound: 0.0, online: vec![Some(0.0)] },
            Point { share: 0.5, extra: Some(0.1), bound: 0.05, online: vec![Some(0.08)] },
            Point { share: 0.1, extra: None, bound: f64::INFINITY, online: vec![None] },
        ];
        let text = svg("a<b", "1 MiB", &["lru".to_owned()], &points);
        assert!(text.contains("a&lt;b") && text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        // Two points each; the third budget has no plan, no bound and no online run.
        assert_eq!(text.matches("<circle").count(), 6);
        assert!(text.contains(">lru</text>"));
        assert!(text.contains("points=\"620.0,344.0 345.0,44.0\""), "{text}");
        assert!(!text.contains("inf") && !text.contains("NaN"));
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!((tick(1.0), tick(10.0), tick(37.0)), (0.2, 2.0, 10.0));
    }
}
