//! What a handful of rounds says.

/// The middle of the values; of two middles, their mean; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// The least and the greatest value.
pub fn spread(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(least, most), value| {
        (least.min(*value), f64::max(most, *value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_counts() {
        assert_eq!(median(&[]).to_bits(), 0.0_f64.to_bits());
        assert_eq!(median(&[9.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]).to_bits(), 3.0_f64.to_bits());
        assert_eq!(spread(&[4.0, 1.0, 9.0]), (1.0, 9.0));
    }
}
