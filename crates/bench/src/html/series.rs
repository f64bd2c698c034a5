//! Lines over percentiles: how the tail of a latency looks.
//!
//! Across, each further nine of the percentile takes the same room; up, each decade of the value
//! does. Lines are named at their right end, pushed apart where they would overlap.

use super::bars::tick_text;
use super::model::{Series, SeriesChart};
use super::{Escaped, put};

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Room for the last point, quantile 1, which lies infinitely far to the right.
const BEYOND_LAST_NINE: f64 = 0.35;
const LABEL_GAP: f64 = 19.0;
const DECADES_MAX: i32 = 20;

struct Frame {
    nines: f64,
    low_decade: i32,
    high_decade: i32,
}

pub(super) fn draw(out: &mut String, chart: &SeriesChart) {
    let points = || chart.series.iter().flat_map(|series| series.points.iter().copied());
    let Some(frame) = Frame::around(points()) else {
        return;
    };
    out.push_str("<figure class=\"series\">");
    if !chart.title.is_empty() {
        put!(out, "<figcaption>{}</figcaption>", Escaped(&chart.title));
    }
    put!(
        out,
        "<div class=\"scroll\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">",
        Escaped(&chart.title)
    );
    grid(out, chart, &frame);
    let mut ends: Vec<(f64, &Series)> = Vec::new();
    for series in &chart.series {
        if let Some(end) = line(out, chart, series, &frame) {
            ends.push((end, series));
        }
    }
    labels(out, ends);
    out.push_str("</svg></div></figure>");
}

fn grid(out: &mut String, chart: &SeriesChart, frame: &Frame) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for decade in frame.low_decade..=frame.high_decade {
        let value = 10f64.powi(decade);
        let y = frame.y(value);
        put!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            y + 4.0,
            Escaped(&tick_text(&chart.unit, value))
        );
    }
    for (quantile, name) in [
        (0.0, "min"),
        (0.5, "p50"),
        (0.9, "p90"),
        (0.99, "p99"),
        (0.999, "p99.9"),
        (0.9999, "p99.99"),
        (0.99999, "p99.999"),
        (0.999_999, "p99.9999"),
    ] {
        // A name too near the last one, "max", would run into it.
        if nines(quantile) > frame.nines - BEYOND_LAST_NINE / 2.0 {
            break;
        }
        vertical(out, frame.x(quantile), bottom, name);
    }
    vertical(out, right, bottom, "max");
}

fn vertical(out: &mut String, x: f64, bottom: f64, name: &str) {
    put!(
        out,
        "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
         <text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
        bottom + 22.0
    );
}

/// Draws one line with dots on its round percentiles; answers where it ends.
fn line(out: &mut String, chart: &SeriesChart, series: &Series, frame: &Frame) -> Option<f64> {
    let class = series.tone.class();
    let drawable: Vec<(f64, f64)> =
        series.points.iter().copied().filter(|&point| is_drawable(point)).collect();
    let mut path = String::new();
    for (index, &(quantile, value)) in drawable.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        put!(path, "{command}{:.1} {:.1}", frame.x(quantile), frame.y(value));
    }
    put!(out, "<path class=\"line {class}\" d=\"{path}\"/>");
    for &(quantile, value) in &drawable {
        let to_round = (nines(quantile) - nines(quantile).round()).abs();
        let is_round = quantile == 1.0 || (to_round < 1e-6 && quantile > 0.0);
        if is_round {
            let percent = format!("{:.4}", quantile * 100.0);
            put!(
                out,
                "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\">\
                 <title>{}, {} %: {}</title></circle>",
                frame.x(quantile),
                frame.y(value),
                Escaped(&series.label),
                percent.trim_end_matches('0').trim_end_matches('.'),
                Escaped(&chart.unit.show(value))
            );
        }
    }
    drawable.last().map(|&(_, value)| frame.y(value))
}

fn labels(out: &mut String, mut ends: Vec<(f64, &Series)>) {
    ends.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut free_from = TOP;
    for (index, (end, series)) in ends.iter().enumerate() {
        // Leave room for the labels that still come below.
        let below = (ends.len() - 1 - index) as f64 * LABEL_GAP;
        let y = end.max(free_from).min((HEIGHT - BOTTOM - below).max(free_from));
        free_from = y + LABEL_GAP;
        let x = WIDTH - RIGHT + 14.0;
        put!(
            out,
            "<rect class=\"{}\" x=\"{x}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"3\"/>\
             <text class=\"name\" x=\"{}\" y=\"{:.1}\">{}</text>",
            series.tone.class(),
            y - 5.5,
            x + 18.0,
            y + 4.5,
            Escaped(&series.label)
        );
    }
}

/// Whether the axes hold a point: its quantile and its value.
fn is_drawable(point: (f64, f64)) -> bool {
    let (quantile, value) = point;
    (0.0..=1.0).contains(&quantile) && value.is_finite() && value > 0.0
}

/// 0 for the least value, 1 for p90, 2 for p99 …
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

impl Frame {
    fn around(points: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let (mut last_nine, mut low, mut high) = (1.0f64, f64::INFINITY, 0.0f64);
        for (quantile, value) in points.filter(|&point| is_drawable(point)) {
            if quantile < 1.0 {
                last_nine = last_nine.max(nines(quantile));
            }
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            return None;
        }
        let low_decade = low.log10().floor() as i32;
        let high_decade = (high.log10().ceil() as i32).max(low_decade + 1);
        Some(Self {
            nines: last_nine + BEYOND_LAST_NINE,
            low_decade: low_decade.max(high_decade - DECADES_MAX),
            high_decade,
        })
    }

    fn x(&self, quantile: f64) -> f64 {
        let share = (nines(quantile) / self.nines).clamp(0.0, 1.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let decades = f64::from(self.high_decade - self.low_decade);
        let share = ((value.log10() - f64::from(self.low_decade)) / decades).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Tone;
    use super::*;
    use rackpool_stats::format::Unit;

    #[test]
    fn each_nine_and_each_decade_takes_the_same_room() {
        let frame = Frame::around([(0.0, 80.0), (0.999, 7e5), (1.0, 9e5)].into_iter()).unwrap();
        let room = frame.x(0.99) - frame.x(0.9);
        assert!((frame.x(0.999) - frame.x(0.99) - room).abs() < 1e-6);
        assert_eq!(frame.x(1.0), WIDTH - RIGHT);
        assert!((frame.y(100.0) - frame.y(1000.0) - frame.y(1000.0) + frame.y(1e4)).abs() < 1e-6);
        assert_eq!((frame.low_decade, frame.high_decade), (1, 6));
    }

    #[test]
    fn points_that_no_axis_holds_are_left_out() {
        let series = Series {
            label: "odd".into(),
            tone: Tone::First,
            points: vec![(f64::NAN, 1.0), (0.5, 0.0), (2.0, 1.0), (0.5, f64::INFINITY)],
        };
        let mut chart = SeriesChart {
            title: String::new(),
            unit: Unit::Nanoseconds,
            series: vec![series.clone()],
        };
        let mut out = String::new();
        draw(&mut out, &chart);
        assert_eq!(out, "", "nothing to draw");
        chart.series.push(Series { points: vec![(0.5, 5.0), (1.0, 7.0)], ..series });
        draw(&mut out, &chart);
        assert!(out.contains("<path") && !out.contains("NaN") && !out.contains("inf"));
    }
}
