//! The report's own drawings: cost against p99, and rows of ranges (latencies, savings, swings).

use crate::plot::{COLOURS, HEIGHT, WIDTH, number, open, step_of};
use rackpool_stats::html::Escaped;
use std::fmt::Write;

/// A point of a scatter.
pub(super) struct Dot {
    pub name: String,
    pub x: f64,
    /// Up: low end, mean and high end.
    pub y: [f64; 3],
    pub group: usize,
    /// On the front: filled, named and joined.
    pub marked: bool,
}

/// What a scatter's axes show, with units.
#[derive(Clone, Copy)]
pub(super) struct Axes<'a> {
    pub across: &'a str,
    pub up: &'a str,
}

/// A range with marks within it.
pub(super) struct Range {
    /// Its name, to the left.
    pub name: String,
    pub ends: [f64; 2],
    pub marks: Vec<f64>,
    /// What is written behind it.
    pub text: String,
}

const LEFT: f64 = 72.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 54.0;
const BOTTOM: f64 = 42.0;
const NAMES: f64 = 230.0;
const TEXTS: f64 = 150.0;
const ROW: f64 = 22.0;

/// Dots over two axes that begin where the values do; groups are coloured and named.
pub(super) fn scatter(title: &str, axes: Axes<'_>, groups: &[String], dots: &[Dot]) -> String {
    let mut out = open(title, HEIGHT);
    names_of_groups(&mut out, groups);
    let xs = bounds(dots.iter().map(|dot| dot.x));
    let ys = bounds(dots.iter().flat_map(|dot| dot.y));
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x_of = |x: f64| LEFT + (x - xs[0]) / (xs[1] - xs[0]) * (right - LEFT);
    let y_of = |y: f64| bottom - (y - ys[0]) / (ys[1] - ys[0]) * (bottom - TOP);
    for value in ticks(ys) {
        let (y, text) = (y_of(value), number(value));
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for value in ticks(xs) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            x_of(value),
            bottom + 16.0,
            number(value)
        );
    }
    names_of_axes(&mut out, axes);
    let mut front: Vec<(f64, f64)> =
        dots.iter().filter(|dot| dot.marked).map(|dot| (x_of(dot.x), y_of(dot.y[1]))).collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let joined: Vec<String> = front.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let joined = joined.join(" ");
    let dashed = "fill=\"none\" stroke=\"#999\" stroke-dasharray=\"4 3\"";
    let _ = write!(out, "<polyline {dashed} points=\"{joined}\"/>");
    for dot in dots {
        let (x, colour) = (x_of(dot.x), COLOURS[dot.group % COLOURS.len()]);
        let [low, mean, high] = dot.y.map(y_of);
        let fill = if dot.marked { colour } else { "#fff" };
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" \
             stroke=\"{colour}\"/><circle cx=\"{x:.1}\" cy=\"{mean:.1}\" r=\"4\" fill=\"{fill}\" \
             stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
        if dot.marked {
            let name = Escaped(&dot.name);
            let _ = write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", x + 6.0, mean - 5.0);
        }
    }
    out.push_str("</svg>");
    out
}

fn names_of_axes(out: &mut String, axes: Axes<'_>) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let _ = write!(
        out,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\
         <text x=\"14\" y=\"{:.0}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {:.0})\">{}\
         </text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        Escaped(axes.across),
        (TOP + bottom) / 2.0,
        (TOP + bottom) / 2.0,
        Escaped(axes.up)
    );
}

fn names_of_groups(out: &mut String, groups: &[String]) {
    let mut x = LEFT;
    for (name, colour) in groups.iter().zip(COLOURS.iter().cycle()) {
        let _ = write!(
            out,
            "<circle cx=\"{:.0}\" cy=\"34\" r=\"5\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"38\">{}</text>",
            x + 5.0,
            x + 15.0,
            Escaped(name)
        );
        x += 30.0 + 7.0 * name.chars().count() as f64;
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

fn ticks([low, high]: [f64; 2]) -> impl Iterator<Item = f64> {
    let step = step_of(high - low);
    let first = (low / step).ceil();
    (0..20).map(move |number| (first + f64::from(number)) * step).take_while(move |it| *it <= high)
}

/// A row for each range, over an axis that holds all of them; a line at `base` if there is one.
pub(super) fn ranges(title: &str, unit: &str, rows: &[Range], base: Option<f64>) -> String {
    let height = TOP + rows.len() as f64 * ROW + BOTTOM;
    let mut out = open(title, height);
    let all = rows.iter().flat_map(|row| row.ends.iter().chain(&row.marks).copied());
    let axis = bounds(all.chain(base));
    let x_of = |x: f64| NAMES + (x - axis[0]) / (axis[1] - axis[0]) * (WIDTH - NAMES - TEXTS);
    let bottom = height - BOTTOM;
    for value in ticks(axis) {
        let x = x_of(value);
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            number(value)
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + index as f64 * ROW;
        let [a, b] = row.ends.map(x_of);
        let _ = write!(
            out,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            NAMES - 8.0,
            y + 15.0,
            Escaped(&row.name),
            a.min(b),
            y + 5.0,
            (a - b).abs().max(1.0),
            COLOURS[0],
            WIDTH - TEXTS + 8.0,
            y + 15.0,
            Escaped(&row.text)
        );
        for mark in &row.marks {
            let x = x_of(*mark);
            let (top, end) = (y + 3.0, y + 19.0);
            let _ = write!(
                out,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{end:.1}\" \
                 stroke=\"#000\" stroke-width=\"2\"/>"
            );
        }
    }
    if let Some(base) = base {
        let x = x_of(base);
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" stroke=\"#d1495b\"/>"
        );
    }
    let (middle, at) = ((NAMES + WIDTH - TEXTS) / 2.0, height - 8.0);
    let unit = Escaped(unit);
    let _ =
        write!(out, "<text x=\"{middle:.0}\" y=\"{at:.1}\" text-anchor=\"middle\">{unit}</text>");
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_have_only_numbers_also_of_nothing_and_of_equal_values() {
        let dot =
            |x: f64, marked| Dot { name: "<1>".into(), x, y: [5.0, 5.0, 5.0], group: 9, marked };
        let row = Range { name: "a".into(), ends: [2.0, 1.0], marks: vec![1.5], text: "&".into() };
        let groups = ["one".to_owned()];
        let axes = Axes { across: "x", up: "y" };
        for svg in [
            scatter("t", axes, &groups, &[]),
            scatter("t", axes, &groups, &[dot(1.0, true), dot(1.0, false)]),
            ranges("t", "ns", &[], None),
            ranges("t", "ns", &[row], Some(1.2)),
        ] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(!svg.contains("<1>") && !svg.contains("=\"-"), "{svg}");
        }
    }
}
