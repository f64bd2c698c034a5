//! Plots as SVG text that needs nothing else: lines over time with marks, stacked bars, dots over
//! two axes, and rows of ranges.

use crate::html::Escaped;
use std::fmt::Write;

/// Colours of series, told apart also without hue.
const COLOURS: [&str; 7] =
    ["#1f5fa8", "#d1495b", "#2e8b57", "#e09f3e", "#7b4fa3", "#5c6773", "#17a2a2"];

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 54.0;
const BOTTOM: f64 = 42.0;
/// Height of a stacked bar with its gap.
const BAR: f64 = 24.0;
/// Room for the names of stacked bars.
const BAR_NAMES: f64 = 210.0;
/// Height of a range, and room for its name and for the text behind it.
const ROW: f64 = 22.0;
const ROW_NAMES: f64 = 230.0;
const ROW_TEXTS: f64 = 150.0;

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

/// A point of a [`Scatter`].
pub struct Dot {
    pub name: String,
    pub x: f64,
    /// Up: low end, mean and high end.
    pub y: [f64; 3],
    pub group: usize,
    /// On the front: filled, named and joined.
    pub marked: bool,
}

/// Dots over two axes that begin where the values do; groups are coloured and named.
pub struct Scatter<'a> {
    pub title: &'a str,
    /// What goes to the right, with unit.
    pub across: &'a str,
    /// What goes up, with unit.
    pub up: &'a str,
    pub groups: &'a [String],
    pub dots: &'a [Dot],
}

/// A range with marks within it.
pub struct Range {
    /// Its name, to the left.
    pub name: String,
    pub ends: [f64; 2],
    pub marks: Vec<f64>,
    /// What is written behind it.
    pub text: String,
}

/// A row for each range, over an axis that holds all of them.
pub struct Ranges<'a> {
    pub title: &'a str,
    pub unit: &'a str,
    pub rows: &'a [Range],
    /// Where to draw a line through all of them.
    pub base: Option<f64>,
}

/// Appends formatted text: every text argument must be [`Escaped`] or ours.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        let _ = write!($out, $($arg)*);
    };
}

/// Text at a place; `anchor` is `start`, `middle` or `end`.
fn text(out: &mut String, [x, y]: [f64; 2], anchor: &str, text: &str) {
    let text = Escaped(text);
    put!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn line(out: &mut String, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], stroke: &str) {
    put!(out, "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" {stroke}/>");
}

const GRID: &str = "stroke=\"#ddd\"";

fn open(title: &str, height: f64) -> String {
    let title = Escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{title}</text>"
    )
}

fn legend<'a>(out: &mut String, names: impl Iterator<Item = &'a String>) {
    let mut x = LEFT;
    for (name, colour) in names.zip(COLOURS.iter().cycle()) {
        put!(out, "<rect x=\"{x:.0}\" y=\"28\" width=\"11\" height=\"11\" fill=\"{colour}\"/>");
        text(out, [x + 15.0, 38.0], "start", name);
        x += 30.0 + 7.0 * name.chars().count() as f64;
    }
}

/// A step of 1, 2 or 5 times a power of ten, so that some five fit.
pub fn step_of(most: f64) -> f64 {
    let raw = (most / 5.0).max(f64::MIN_POSITIVE);
    let decade = 10f64.powf(raw.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * decade >= raw).unwrap_or(10.0);
    times * decade
}

fn ticks([low, high]: [f64; 2]) -> impl Iterator<Item = f64> {
    let step = step_of(high - low);
    let first = (low / step).ceil();
    (0..20).map(move |number| (first + f64::from(number)) * step).take_while(move |it| *it <= high)
}

fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e4 => format!("{} k", v / 1e3),
        v if v < 10.0 && v.fract() != 0.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Least and most with some room around; never equal.
fn bounds(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return [0.0, 1.0];
    }
    let room = ((high - low) * 0.08).max(high.abs() * 1e-3).max(1e-9);
    [low - room, high + room]
}

/// Two axes, as low and high ends.
struct Axes {
    x: [f64; 2],
    y: [f64; 2],
}

impl Axes {
    fn x(&self, x: f64) -> f64 {
        LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - RIGHT - LEFT)
    }

    fn y(&self, y: f64) -> f64 {
        let bottom = HEIGHT - BOTTOM;
        bottom - (y - self.y[0]) / (self.y[1] - self.y[0]) * (bottom - TOP)
    }

    /// Grid, numbers, and what the axes show.
    fn draw(&self, out: &mut String, across: &str, up: &str) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for value in ticks(self.y) {
            let y = self.y(value);
            line(out, [LEFT, y], [right, y], GRID);
            text(out, [LEFT - 6.0, y + 4.0], "end", &number(value));
        }
        for value in ticks(self.x) {
            text(out, [self.x(value), bottom + 16.0], "middle", &number(value));
        }
        text(out, [(LEFT + right) / 2.0, HEIGHT - 8.0], "middle", across);
        let (middle, up) = ((TOP + bottom) / 2.0, Escaped(up));
        put!(
            out,
            "<text x=\"14\" y=\"{middle:.0}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 14 {middle:.0})\">{up}</text>"
        );
    }
}

fn polyline(out: &mut String, points: impl Iterator<Item = (f64, f64)>, stroke: &str) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    put!(out, "<polyline fill=\"none\" {stroke} points=\"{}\"/>", points.join(" "));
}

impl Lines {
    pub fn svg(&self) -> String {
        let mut out = open(&self.title, HEIGHT);
        legend(&mut out, self.lines.iter().map(|line| &line.name));
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max).max(1e-9);
        let axes = Axes { x: [0.0, most(|point| point.0)], y: [0.0, most(|point| point.1)] };
        axes.draw(&mut out, &self.across, &self.up);
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points = line.points.iter().map(|(x, y)| (axes.x(*x), axes.y(*y)));
            polyline(&mut out, points, &format!("stroke=\"{colour}\" stroke-width=\"2\""));
            if let Some((x, y)) = line.mark {
                let (x, y) = (axes.x(x), axes.y(y));
                put!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"#000\"/>");
            }
        }
        out + "</svg>"
    }
}

impl Stacks {
    pub fn svg(&self) -> String {
        let height = TOP + self.bars.len() as f64 * BAR + 12.0;
        let mut out = open(&self.title, height);
        legend(&mut out, self.parts.iter());
        let sum = |parts: &[f64]| parts.iter().sum::<f64>();
        let most = self.bars.iter().map(|bar| sum(&bar.1)).fold(0.0, f64::max).max(1e-9);
        let scale = (WIDTH - BAR_NAMES - 90.0) / most;
        for (index, (name, parts)) in self.bars.iter().enumerate() {
            let y = TOP + index as f64 * BAR;
            text(&mut out, [BAR_NAMES - 6.0, y + 15.0], "end", name);
            let mut x = BAR_NAMES;
            for (part, colour) in parts.iter().zip(COLOURS.iter().cycle()) {
                let (width, top, height) = (part * scale, y + 2.0, BAR - 5.0);
                put!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                     height=\"{height:.0}\" fill=\"{colour}\"/>"
                );
                x += width;
            }
            let total = format!("{} {}", number(sum(parts)), self.unit);
            text(&mut out, [x + 5.0, y + 15.0], "start", &total);
        }
        out + "</svg>"
    }
}

impl Scatter<'_> {
    pub fn svg(&self) -> String {
        let mut out = open(self.title, HEIGHT);
        legend(&mut out, self.groups.iter());
        let axes = Axes {
            x: bounds(self.dots.iter().map(|dot| dot.x)),
            y: bounds(self.dots.iter().flat_map(|dot| dot.y)),
        };
        axes.draw(&mut out, self.across, self.up);
        let marked = self.dots.iter().filter(|dot| dot.marked);
        let mut front: Vec<_> = marked.map(|dot| (axes.x(dot.x), axes.y(dot.y[1]))).collect();
        front.sort_by(|a, b| a.0.total_cmp(&b.0));
        polyline(&mut out, front.into_iter(), "stroke=\"#999\" stroke-dasharray=\"4 3\"");
        for dot in self.dots {
            let (x, colour) = (axes.x(dot.x), COLOURS[dot.group % COLOURS.len()]);
            let [low, mean, high] = dot.y.map(|y| axes.y(y));
            let fill = if dot.marked { colour } else { "#fff" };
            line(&mut out, [x, low], [x, high], &format!("stroke=\"{colour}\""));
            put!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{mean:.1}\" r=\"4\" fill=\"{fill}\" \
                 stroke=\"{colour}\" stroke-width=\"1.5\"/>"
            );
            if dot.marked {
                text(&mut out, [x + 6.0, mean - 5.0], "start", &dot.name);
            }
        }
        out + "</svg>"
    }
}

impl Ranges<'_> {
    pub fn svg(&self) -> String {
        let height = TOP + self.rows.len() as f64 * ROW + BOTTOM;
        let mut out = open(self.title, height);
        let all = self.rows.iter().flat_map(|row| row.ends.iter().chain(&row.marks).copied());
        let axis = bounds(all.chain(self.base));
        let room = WIDTH - ROW_NAMES - ROW_TEXTS;
        let x_of = |x: f64| ROW_NAMES + (x - axis[0]) / (axis[1] - axis[0]) * room;
        let bottom = height - BOTTOM;
        for value in ticks(axis) {
            let x = x_of(value);
            line(&mut out, [x, TOP], [x, bottom], GRID);
            text(&mut out, [x, bottom + 16.0], "middle", &number(value));
        }
        for (index, row) in self.rows.iter().enumerate() {
            let y = TOP + index as f64 * ROW;
            let [a, b] = row.ends.map(x_of);
            text(&mut out, [ROW_NAMES - 8.0, y + 15.0], "end", &row.name);
            let (x, top, width) = (a.min(b), y + 5.0, (a - b).abs().max(1.0));
            put!(
                out,
                "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"12\" \
                 fill=\"{}\"/>",
                COLOURS[0]
            );
            text(&mut out, [WIDTH - ROW_TEXTS + 8.0, y + 15.0], "start", &row.text);
            for x in row.marks.iter().map(|mark| x_of(*mark)) {
                let black = "stroke=\"#000\" stroke-width=\"2\"";
                line(&mut out, [x, y + 3.0], [x, y + 19.0], black);
            }
        }
        if let Some(x) = self.base.map(x_of) {
            line(&mut out, [x, TOP], [x, bottom], "stroke=\"#d1495b\"");
        }
        text(&mut out, [ROW_NAMES + room / 2.0, height - 8.0], "middle", self.unit);
        out + "</svg>"
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
    fn drawings_have_only_numbers_also_of_nothing_and_of_equal_values() {
        let dot =
            |x: f64, marked| Dot { name: "<1>".into(), x, y: [5.0, 5.0, 5.0], group: 9, marked };
        let row = Range { name: "a".into(), ends: [2.0, 1.0], marks: vec![1.5], text: "&".into() };
        let groups = ["one".to_owned()];
        let scatter = |dots: &[Dot]| {
            Scatter { title: "t", across: "x", up: "y", groups: &groups, dots }.svg()
        };
        let ranges = |rows: &[Range], base| Ranges { title: "t", unit: "ns", rows, base }.svg();
        for svg in [
            scatter(&[]),
            scatter(&[dot(1.0, true), dot(1.0, false)]),
            ranges(&[], None),
            ranges(&[row], Some(1.2)),
        ] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(!svg.contains("<1>") && !svg.contains("=\"-"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_numbers() {
        for (most, step) in [(10.0, 2.0), (37.0, 10.0), (12_000.0, 5_000.0), (0.9, 0.2)] {
            assert!((step_of(most) / step - 1.0).abs() < 1e-9, "{most}: {}", step_of(most));
        }
    }
}
