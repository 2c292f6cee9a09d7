//! Goals of measurements, and their results.

use lunar_load::Spread;
use lunar_load::report::{Column, Table, TableCell};
use serde::{Deserialize, Serialize};

/// One goal and its result. Rows of other parts have the same form.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct GoalVerdict {
    /// Column of the goal: `tgt`, `ceilings`, `scale`, `libiscsi`.
    pub part: String,
    pub what: String,
    /// Cell that the goal is taken from, or the method of measurement.
    pub from: String,
    pub wanted: f64,
    /// True when `wanted` is a minimum; otherwise it is a maximum.
    pub is_at_least: bool,
    /// The median of the rounds; `None`: not measured.
    pub got: Option<f64>,
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// Unit of the three figures above; empty: a ratio.
    #[serde(default)]
    pub unit: String,
    pub outcome: GoalOutcome,
    /// Reason for the result, if it is not obvious.
    #[serde(default)]
    pub note: Option<String>,
}

/// Result of a goal.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalOutcome {
    Pass,
    Miss,
    /// The machine was not quiet.
    Void,
    NotMeasured,
}

impl GoalOutcome {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Miss => "miss",
            Self::Void => "void",
            Self::NotMeasured => "not measured",
        }
    }
}

/// All outcomes.
pub const OUTCOMES: [GoalOutcome; 4] =
    [GoalOutcome::Pass, GoalOutcome::Miss, GoalOutcome::Void, GoalOutcome::NotMeasured];

/// Bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl GoalVerdict {
    /// Compares the median of rounds with a bound. `from` says how it was measured; an empty `unit`
    /// is a ratio.
    pub fn of_median(
        part: &str,
        what: impl Into<String>,
        from: impl Into<String>,
        got: Spread,
        unit: &str,
        bound: Bound,
    ) -> Self {
        let (wanted, is_at_least, is_met) = match bound {
            Bound::AtLeast(wanted) => (wanted, true, got.median >= wanted),
            Bound::AtMost(wanted) => (wanted, false, got.median <= wanted),
        };
        Self {
            part: part.to_owned(),
            what: what.into(),
            from: from.into(),
            wanted,
            is_at_least,
            got: Some(got.median),
            least: Some(got.least),
            most: Some(got.most),
            unit: unit.to_owned(),
            outcome: if is_met { GoalOutcome::Pass } else { GoalOutcome::Miss },
            note: None,
        }
    }

    /// True if the figure was measured and is within its bound.
    pub fn is_met(&self) -> bool {
        self.outcome == GoalOutcome::Pass
    }

    /// Returns one line of text.
    pub fn line(&self) -> String {
        let (outcome, got, wanted) = (self.outcome.text(), self.got_text(), self.wanted_text());
        format!("{outcome:<5} {}: {got}, {wanted} ({})", self.what, self.from)
    }

    /// Returns the result with its unit: `4.20 (3.90 to 4.50)`.
    pub fn got_text(&self) -> String {
        let unit = self.unit_text();
        match (self.got, self.least, self.most) {
            (Some(got), Some(least), Some(most)) => {
                format!("{got:.2} ({least:.2} to {most:.2}){unit}")
            }
            (Some(got), ..) => format!("{got:.2}{unit}"),
            _ => "-".to_owned(),
        }
    }

    /// Returns the bound: `at least 4`.
    pub fn wanted_text(&self) -> String {
        let bound = if self.is_at_least { "at least" } else { "at most" };
        format!("{bound} {}{}", self.wanted, self.unit_text())
    }

    fn unit_text(&self) -> String {
        if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) }
    }
}

/// Returns the goals as a table.
pub fn goals_table(goals: &[GoalVerdict]) -> Table {
    let mut all = Table::new([
        Column::text("outcome", "outcome"),
        Column::text("part", "part"),
        Column::text("goal", "what"),
        Column::text("wanted", "wanted"),
        Column::number("got", "median of the rounds"),
        Column::text("from", "medians of the subjects"),
    ]);
    for goal in goals {
        all.row([
            TableCell::text(goal.outcome.text()),
            TableCell::text(goal.part.clone()),
            TableCell::text(goal.what.clone()),
            TableCell::text(goal.wanted_text()),
            TableCell::text(goal.got_text()),
            TableCell::text(goal.from.clone()),
        ]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a figure beyond its bound is a miss, for both kinds of bound; a figure equal to it is
    /// not.
    #[test]
    fn bounds_are_checked() {
        let verdict =
            |got, bound| GoalVerdict::of_median("x", "y", "z", Spread::of([got]), "ms", bound);
        assert!(verdict(1000.0, Bound::AtLeast(1000.0)).is_met());
        assert!(!verdict(999.0, Bound::AtLeast(1000.0)).is_met());
        assert!(verdict(100.0, Bound::AtMost(100.0)).is_met());
        let miss = verdict(101.0, Bound::AtMost(100.0));
        assert_eq!(miss.outcome, GoalOutcome::Miss);
        assert_eq!(miss.line(), "miss  y: 101.00 (101.00 to 101.00) ms, at most 100 ms (z)");
    }
}
