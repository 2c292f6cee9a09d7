//! Median and extremes of the figures of several rounds.

/// The median of some figures, with the least and the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The middle figure, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Spread {
    /// Returns the spread of these figures; zeroes if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self { median, least: *least, most: *most }
    }

    /// Formats the spread for people: `1.05 (1.01 to 1.20)`.
    pub fn text(self, decimals: usize) -> String {
        let [median, least, most] =
            [self.median, self.least, self.most].map(|figure| format!("{figure:.decimals$}"));
        format!("{median} ({least} to {most})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_least_and_most() {
        assert_eq!(Spread::of([]), Spread::default());
        let one = Spread::of([7.0]);
        assert_eq!((one.median, one.least, one.most), (7.0, 7.0, 7.0));
        let four = Spread::of([9.0, 1.0, 4.0, 2.0]);
        assert_eq!((four.median, four.least, four.most), (3.0, 1.0, 9.0));
        assert_eq!(four.text(1), "3.0 (1.0 to 9.0)");
    }
}
