//! A picture of runs: live bytes against time, as SVG.

use crate::units::bytes;
use std::fmt::Write;

/// One call of a run.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Nanoseconds it took.
    pub ns: u64,
    /// Bytes live while it ran.
    pub live: u64,
    /// The node had run before.
    pub recompute: bool,
}

/// A run to be drawn.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Shown in the legend.
    pub name: String,
    /// Its calls in order.
    pub moments: Vec<Moment>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 84.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 40.0;
const COLORS: [&str; 2] = ["#9aa5b1", "#1f6feb"];

/// Draws runs over one another with a line at the budget.
pub fn draw(title: &str, budget: u64, curves: &[Curve]) -> String {
    let total = |c: &Curve| c.moments.iter().map(|m| m.ns).sum::<u64>();
    let most_time = curves.iter().map(total).max().unwrap_or(1).max(1) as f64;
    let most =
        curves.iter().flat_map(|c| &c.moments).map(|m| m.live).fold(budget, u64::max).max(1) as f64 * 1.05;
    let x = |ns: u64| LEFT + ns as f64 / most_time * (WIDTH - LEFT - 20.0);
    let y = |b: u64| HEIGHT - BOTTOM - b as f64 / most * (HEIGHT - BOTTOM - TOP);
    let mut s = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        escape(title)
    );
    for k in 0..=4u64 {
        let b = (most / 1.05 * k as f64 / 4.0) as u64;
        let _ = writeln!(
            s,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e7eb\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - 20.0,
            LEFT - 6.0,
            y(b) + 4.0,
            bytes(b),
            y = y(b)
        );
    }
    for (i, c) in curves.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let (mut t, mut path, mut marks) = (0u64, format!("M{LEFT:.1} {:.1}", y(0)), String::new());
        for m in &c.moments {
            let _ = write!(path, "L{:.1} {:.1}", x(t), y(m.live));
            if m.recompute {
                let _ = write!(
                    marks,
                    "<rect x=\"{:.2}\" width=\"{:.2}\" y=\"{:.1}\" height=\"6\" fill=\"#d97706\"/>",
                    x(t),
                    (x(t + m.ns) - x(t)).max(0.5),
                    HEIGHT - BOTTOM + 2.0
                );
            }
            t += m.ns;
            let _ = write!(path, "L{:.1} {:.1}", x(t), y(m.live));
        }
        let _ =
            writeln!(s, "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\"/>{marks}");
        let _ = writeln!(
            s,
            "<text x=\"{}\" y=\"{}\" fill=\"{color}\" text-anchor=\"end\">{}: {:.1} ms</text>",
            WIDTH - 24.0,
            20.0 + 16.0 * i as f64,
            escape(&c.name),
            t as f64 / 1e6
        );
    }
    let _ = writeln!(
        s,
        "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{b:.1}\" y2=\"{b:.1}\" stroke=\"#dc2626\" stroke-dasharray=\"6 4\"/>\
         <text x=\"{}\" y=\"{:.1}\" fill=\"#dc2626\">budget {}</text>",
        WIDTH - 20.0,
        LEFT + 6.0,
        y(budget) - 4.0,
        bytes(budget),
        b = y(budget)
    );
    let _ = writeln!(
        s,
        "<text x=\"{LEFT}\" y=\"{}\">time of one step; orange: recomputation</text>\n</svg>",
        HEIGHT - 12.0
    );
    s
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_every_curve_and_the_budget() {
        let moments =
            vec![Moment { ns: 5, live: 10, recompute: false }, Moment { ns: 7, live: 20, recompute: true }];
        let curves = [
            Curve { name: "a<b".to_owned(), moments: moments.clone() },
            Curve { name: "c".to_owned(), moments },
        ];
        let svg = draw("t", 15, &curves);
        assert_eq!(svg.matches("<path").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.contains("budget 15 B") && svg.ends_with("</svg>\n"));
    }
}
