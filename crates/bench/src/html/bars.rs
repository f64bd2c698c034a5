//! Horizontal bars: a row each, so that labels wrap and the chart fits any width.
//!
//! Bars are inline SVG with lengths in percent; labels and numbers are HTML beside them. Grid
//! lines run through all rows and are named once, below.

use super::model::{Bar, BarChart, Scale, Tone};
use super::{Escaped, badge, legend, put};
use crate::report::Kind;
use rackpool_stats::format::Unit;

/// Grid lines that still can be told apart.
const GRID_LINES_MAX: usize = 7;

pub(super) fn draw(out: &mut String, chart: &BarChart, kind: Kind) {
    out.push_str("<figure class=\"bars\">");
    if !chart.title.is_empty() {
        put!(out, "<figcaption>{}</figcaption>", Escaped(&chart.title));
    }
    let entries: Vec<(Tone, &str)> =
        chart.legend.iter().map(|(tone, text)| (*tone, text.as_str())).collect();
    legend(out, &entries);
    let axis = Axis::of(chart);
    for group in &chart.groups {
        out.push_str("<div class=\"group\">");
        if !group.label.is_empty() {
            put!(out, "<h3>{}</h3>", Escaped(&group.label));
        }
        for bar in &group.bars {
            row(out, bar, chart, &axis, kind);
        }
        out.push_str("</div>");
    }
    axis_labels(out, &axis, &chart.unit);
    out.push_str("</figure>");
}

fn row(out: &mut String, bar: &Bar, chart: &BarChart, axis: &Axis, kind: Kind) {
    let value = chart.unit.show(bar.value);
    put!(out, "<div class=\"row\"><div class=\"name\">{}", Escaped(&bar.label));
    if let Some(own) = bar.kind.filter(|&own| own != kind) {
        badge(out, own);
    }
    put!(
        out,
        "</div><svg class=\"bar\" role=\"img\" aria-label=\"{}: {}\">",
        Escaped(&bar.label),
        Escaped(&value)
    );
    for &tick in &axis.ticks {
        let x = axis.percent(tick);
        put!(out, "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"100%\"/>");
    }
    put!(
        out,
        "<rect class=\"{}\" width=\"{:.2}%\" y=\"6\" height=\"16\" rx=\"3\">\
         <title>{}: {} {}</title></rect></svg>",
        bar.tone.class(),
        axis.percent(bar.value),
        Escaped(&bar.label),
        Escaped(&value),
        Escaped(&bar.note)
    );
    put!(
        out,
        "<div class=\"value\">{}</div><div class=\"aside\">{}</div></div>",
        Escaped(&value),
        Escaped(&bar.note)
    );
}

fn axis_labels(out: &mut String, axis: &Axis, unit: &Unit) {
    out.push_str("<div class=\"row axis\" aria-hidden=\"true\"><div></div><svg class=\"bar\">");
    for &tick in &axis.ticks {
        let x = axis.percent(tick);
        let anchor = match x {
            x if x < 3.0 => "start",
            x if x > 95.0 => "end",
            _ => "middle",
        };
        put!(
            out,
            "<text x=\"{x:.2}%\" y=\"14\" text-anchor=\"{anchor}\">{}</text>",
            Escaped(&tick_text(unit, tick))
        );
    }
    out.push_str("</svg><div></div><div></div></div>");
}

/// Grid lines lie on round numbers: "100 ns", not "100.0 ns".
pub(super) fn tick_text(unit: &Unit, tick: f64) -> String {
    if tick == 0.0 {
        return "0".to_owned();
    }
    let text = unit.show(tick);
    let (number, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let number = match number.contains('.') && !number.contains('e') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    format!("{number} {rest}").trim_end().to_owned()
}

/// From values to percent of the width.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(chart: &BarChart) -> Self {
        let bars = chart.groups.iter().flat_map(|group| &group.bars);
        let values = bars.map(|bar| bar.value).filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) =
            values.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        if most == 0.0 {
            return Self { scale: Scale::Linear, low: 0.0, high: 1.0, ticks: Vec::new() };
        }
        match chart.scale {
            Scale::Linear => Self::linear(most),
            Scale::Log => Self::log(least, most),
        }
    }

    fn linear(most: f64) -> Self {
        let rough = most / 5.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * decade)
            .find(|step| *step >= rough)
            .unwrap_or(decade * 10.0);
        let high = most * 1.02;
        let count = ((high / step).floor() as usize).min(GRID_LINES_MAX);
        let ticks = (0..=count).map(|index| index as f64 * step).collect();
        Self { scale: Scale::Linear, low: 0.0, high, ticks }
    }

    fn log(least: f64, most: f64) -> Self {
        // Half of the least, so that its bar has a length.
        let low = 10f64.powf((least / 2.0).log10().floor());
        let high = most * 1.15;
        let decades = ((high / low).log10().floor() as usize).min(30);
        let every = decades / GRID_LINES_MAX + 1;
        let ticks = (0..=decades).step_by(every).map(|d| low * 10f64.powi(d as i32)).collect();
        Self { scale: Scale::Log, low, high, ticks }
    }

    fn percent(&self, value: f64) -> f64 {
        if !value.is_finite() {
            return 0.0;
        }
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => 0.0,
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        (share * 100.0).clamp(0.0, 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::BarGroup;
    use super::*;

    fn chart(scale: Scale, values: &[f64]) -> BarChart {
        let bars = values.iter().map(|&value| Bar::new("b", value, Tone::First)).collect();
        BarChart {
            title: String::new(),
            unit: Unit::Nanoseconds,
            scale,
            legend: Vec::new(),
            groups: vec![BarGroup { label: String::new(), bars }],
        }
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_ticks() {
        let axis = Axis::of(&chart(Scale::Linear, &[3.0, 47.0]));
        assert_eq!(axis.ticks, [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(axis.percent(0.0), 0.0);
        assert!((axis.percent(47.0) / axis.percent(23.5) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_logarithmic_axis_gives_each_decade_the_same_room() {
        let axis = Axis::of(&chart(Scale::Log, &[10.0, 6_600.0, 1e6]));
        assert_eq!(axis.ticks[0], 1.0);
        let room = axis.percent(100.0) - axis.percent(10.0);
        assert!((axis.percent(1e5) - axis.percent(1e4) - room).abs() < 1e-9);
        assert!(axis.percent(10.0) > 5.0 && axis.percent(1e6) < 100.0);
    }

    #[test]
    fn values_that_no_axis_holds_have_no_length() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = Axis::of(&chart(scale, &[f64::NAN, f64::INFINITY, 0.0, -4.0, 2.0]));
            for value in [f64::NAN, f64::INFINITY, 0.0, -4.0] {
                assert_eq!(axis.percent(value), 0.0, "{value}");
            }
            assert!(axis.ticks.len() <= GRID_LINES_MAX + 1);
            let _ = Axis::of(&chart(scale, &[]));
            let _ = Axis::of(&chart(scale, &[1e-300, 1e300]));
        }
    }

    #[test]
    fn grid_lines_are_named_with_round_numbers() {
        assert_eq!(tick_text(&Unit::Nanoseconds, 100.0), "100 ns");
        assert_eq!(tick_text(&Unit::Nanoseconds, 10_000.0), "10 µs");
        assert_eq!(tick_text(&Unit::OpsPerSecond, 1_500_000.0), "1.5 M ops/s");
        assert_eq!(tick_text(&Unit::OpsPerSecond, 0.0), "0");
    }
}
