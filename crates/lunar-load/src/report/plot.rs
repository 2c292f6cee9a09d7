//! Plots of figures.

use serde_json::{Value, json};

/// A plot with one line for each series.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series, each drawn as a line.
    pub series: Vec<Series>,
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name of the quantity, without its unit.
    pub label: String,
    /// Unit of the figures.
    pub unit: AxisUnit,
    /// Scale of the axis.
    pub scale: AxisScale,
}

/// Unit of figures, which determines their format at an axis and in the legend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AxisUnit {
    /// A count, like a depth.
    Count,
    /// Bytes: `4 KiB`.
    Bytes,
    /// Bytes a second: `112 MB/s`.
    BytesPerSecond,
    /// Requests a second: `25k`.
    PerSecond,
    /// Microseconds: `1.2 ms`.
    Micros,
    /// Percent.
    Percent,
    /// 1 / (1 − p) of a percentile: 2 is written `50 %`, 1000 `99.9 %`.
    PercentileNines,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AxisScale {
    /// Linear, from zero.
    Linear,
    /// Powers of 2: 1, 2, 4, 8. Figures are above zero.
    Log2,
    /// Powers of 10. Figures are above zero.
    Log10,
}

/// One series of points.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name, drawn at the end of the line.
    pub label: String,
    /// `(x, y)`, in any order.
    pub points: Vec<(f64, f64)>,
    /// Numbers of colour and dash, so that lines of one subject have one colour; `None`: by the
    /// order of the series.
    pub style: Option<(usize, usize)>,
}

impl Axis {
    /// Returns an axis.
    pub fn new(label: impl Into<String>, unit: AxisUnit, scale: AxisScale) -> Self {
        Self { label: label.into(), unit, scale }
    }
}

impl Plot {
    /// True when a series has at least two points: fewer are no line.
    pub fn has_line(&self) -> bool {
        self.series.iter().any(|series| series.points.len() >= 2)
    }

    /// Returns all values of x, in order.
    pub(crate) fn x_values(&self) -> Vec<f64> {
        let mut x_values: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x)).collect();
        x_values.sort_by(f64::total_cmp);
        x_values.dedup();
        x_values
    }

    /// Returns all values of x, and the y of each series at each x (null where the series has
    /// none), in the format of the drawing script.
    pub(crate) fn json(&self) -> Value {
        let x_values = self.x_values();
        let lines = self.series.iter().map(|series| {
            let figures: Vec<Option<f64>> = x_values.iter().map(|x| series.at(*x)).collect();
            json!({ "label": series.label, "y": figures, "style": series.style })
        });
        json!({
            "title": self.title,
            "x": self.x.json(),
            "y": self.y.json(),
            "at": x_values,
            "series": lines.collect::<Vec<_>>(),
        })
    }
}

impl Series {
    /// Adds a point to the series with this label, which is added if it is missing. If several
    /// points have the same x, the first one is drawn.
    pub fn add_point(all: &mut Vec<Self>, label: &str, point: (f64, f64)) {
        match all.iter_mut().find(|one| one.label == label) {
            Some(one) if one.points.iter().any(|(x, _)| *x == point.0) => {}
            Some(one) => one.points.push(point),
            None => {
                all.push(Self { label: label.to_owned(), points: vec![point], ..Self::default() });
            }
        }
    }

    /// Returns the y at this x.
    pub(crate) fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|(at, _)| *at == x).map(|(_, y)| *y)
    }
}

impl AxisUnit {
    /// Returns the unit as a suffix of an axis' label, for figures that are shown without a unit.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Bytes => ", bytes",
            Self::BytesPerSecond => ", bytes per second",
            Self::PerSecond => ", per second",
            Self::Micros => ", microseconds",
            Self::Percent | Self::PercentileNines => ", percent",
        }
    }

    /// Converts a position on an axis to the figure that is shown.
    pub(crate) fn shown(self, position: f64) -> f64 {
        if self == Self::PercentileNines { 100.0 - 100.0 / position } else { position }
    }
}

/// Formats a figure without insignificant digits: whole if large, else to five decimals.
pub(crate) fn digits(figure: f64) -> String {
    let text = match figure.abs() {
        1000.0.. => format!("{figure:.0}"),
        _ => format!("{figure:.5}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

impl Axis {
    fn json(&self) -> Value {
        let unit = match self.unit {
            AxisUnit::Count => "count",
            AxisUnit::Bytes => "bytes",
            AxisUnit::BytesPerSecond => "bytes_per_second",
            AxisUnit::PerSecond => "per_second",
            AxisUnit::Micros => "micros",
            AxisUnit::Percent => "percent",
            AxisUnit::PercentileNines => "nines",
        };
        let scale = match self.scale {
            AxisScale::Linear => "linear",
            AxisScale::Log2 => "log2",
            AxisScale::Log10 => "log10",
        };
        json!({ "label": self.label, "unit": unit, "scale": scale })
    }
}
