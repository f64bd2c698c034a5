//! Plots as SVG text that needs nothing else: lines over time with marks, and stacked bars.

use rackpool_stats::html::Escaped;
use std::fmt::Write;

/// Colours of series, told apart also without hue.
pub(crate) const COLOURS: [&str; 7] =
    ["#1f5fa8", "#d1495b", "#2e8b57", "#e09f3e", "#7b4fa3", "#5c6773", "#17a2a2"];

pub(crate) const WIDTH: f64 = 760.0;
pub(crate) const HEIGHT: f64 = 320.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 54.0;
const BOTTOM: f64 = 42.0;

#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// A point to mark in black.
    pub mark: Option<(f64, f64)>,
}

/// Lines over a common axis.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub title: String,
    /// What goes to the right, with unit.
    pub across: String,
    /// What goes up, with unit.
    pub up: String,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, Default)]
pub struct Stacks {
    pub title: String,
    pub unit: String,
    pub parts: Vec<String>,
    /// Each bar's name and its parts.
    pub bars: Vec<(String, Vec<f64>)>,
}

pub(crate) fn open(title: &str, height: f64) -> String {
    let title = Escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{title}</text>"
    )
}

fn legend(out: &mut String, names: &[&str]) {
    let mut x = LEFT;
    for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
        let _ = write!(
            out,
            "<rect x=\"{x:.0}\" y=\"28\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"38\">{}</text>",
            x + 15.0,
            Escaped(name)
        );
        x += 30.0 + 7.0 * name.chars().count() as f64;
    }
}

/// A step of 1, 2 or 5 times a power of ten, so that some five fit.
pub(crate) fn step_of(most: f64) -> f64 {
    let raw = (most / 5.0).max(f64::MIN_POSITIVE);
    let decade = 10f64.powf(raw.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * decade >= raw).unwrap_or(10.0);
    times * decade
}

pub(crate) fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e4 => format!("{} k", v / 1e3),
        v if v < 10.0 && v.fract() != 0.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

impl Lines {
    pub fn svg(&self) -> String {
        let mut out = open(&self.title, HEIGHT);
        legend(&mut out, &self.lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>());
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max).max(1e-9);
        let (x_most, y_most) = (most(|point| point.0), most(|point| point.1));
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x_of = |x: f64| LEFT + x / x_most * (right - LEFT);
        let y_of = |y: f64| bottom - y / y_most * (bottom - TOP);
        let (x_step, y_step) = (step_of(x_most), step_of(y_most));
        for tick in 0..=(y_most / y_step) as u32 {
            let value = f64::from(tick) * y_step;
            let (y, text) = (y_of(value), number(value));
            let _ = write!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        for tick in 0..=(x_most / x_step) as u32 {
            let value = f64::from(tick) * x_step;
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                x_of(value),
                bottom + 16.0,
                number(value)
            );
        }
        let _ = write!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\
             <text x=\"14\" y=\"{:.0}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 14 {:.0})\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            Escaped(&self.across),
            (TOP + bottom) / 2.0,
            (TOP + bottom) / 2.0,
            Escaped(&self.up)
        );
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let point = |(x, y): &(f64, f64)| format!("{:.1},{:.1}", x_of(*x), y_of(*y));
            let points: Vec<String> = line.points.iter().map(point).collect();
            let points = points.join(" ");
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                 points=\"{points}\"/>"
            );
            if let Some((x, y)) = line.mark {
                let (x, y) = (x_of(x), y_of(y));
                let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"#000\"/>");
            }
        }
        out.push_str("</svg>");
        out
    }
}

impl Stacks {
    pub fn svg(&self) -> String {
        const BAR: f64 = 24.0;
        const NAMES: f64 = 210.0;
        let height = TOP + self.bars.len() as f64 * BAR + 12.0;
        let mut out = open(&self.title, height);
        legend(&mut out, &self.parts.iter().map(String::as_str).collect::<Vec<_>>());
        let sum = |parts: &[f64]| parts.iter().sum::<f64>();
        let most = self.bars.iter().map(|bar| sum(&bar.1)).fold(0.0, f64::max).max(1e-9);
        let scale = (WIDTH - NAMES - 90.0) / most;
        for (index, (name, parts)) in self.bars.iter().enumerate() {
            let y = TOP + index as f64 * BAR;
            let _ = write!(
                out,
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                NAMES - 6.0,
                y + 15.0,
                Escaped(name)
            );
            let mut x = NAMES;
            for (part, colour) in parts.iter().zip(COLOURS.iter().cycle()) {
                let width = part * scale;
                let _ = write!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.0}\" \
                     fill=\"{colour}\"/>",
                    y + 2.0,
                    BAR - 5.0
                );
                x += width;
            }
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
                x + 5.0,
                y + 15.0,
                number(sum(parts)),
                Escaped(&self.unit)
            );
        }
        out.push_str("</svg>");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_are_closed_escaped_and_within_their_frame() {
        let line = |name: &str, most: f64| Line {
            name: name.into(),
            points: (0..10).map(|x| (f64::from(x), most * f64::from(x) / 9.0)).collect(),
            mark: Some((4.0, 1.0)),
        };
        let lines = Lines {
            title: "a < b & c".into(),
            across: "us".into(),
            up: "ns".into(),
            lines: vec![line("one", 37.0), line("two", 12_000.0), Line::default()],
        };
        let stacks = Stacks {
            title: "parts".into(),
            unit: "<n>".into(),
            parts: vec!["x".into(), "y".into()],
            bars: vec![("bar \"1\"".into(), vec![1.0, 2.0]), ("none".into(), vec![0.0, 0.0])],
        };
        for svg in [lines.svg(), stacks.svg(), Lines::default().svg(), Stacks::default().svg()] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let svg = lines.svg();
        assert!(svg.contains("a &lt; b &amp; c"));
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches("<circle").count(), 2);
        let svg = stacks.svg();
        assert!(svg.contains("bar &quot;1&quot;") && svg.contains("3 &lt;n&gt;"), "{svg}");
    }

    #[test]
    fn ticks_are_round_numbers() {
        for (most, step) in [(10.0, 2.0), (37.0, 10.0), (12_000.0, 5_000.0), (0.9, 0.2)] {
            assert!((step_of(most) / step - 1.0).abs() < 1e-9, "{most}: {}", step_of(most));
        }
    }
}
