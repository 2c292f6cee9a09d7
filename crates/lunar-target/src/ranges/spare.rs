//! Memory that many claims needed and few need now.

/// Room for so many elements is kept, whether they are needed or not.
pub(super) const KEPT_MAX: usize = if cfg!(test) { 4 } else { 16 };
/// Room is given back when less than this part of it is needed: what fills and empties often
/// allocates little.
const NEEDED_PART_MIN: usize = 8;

/// True if so few elements are in use that room for others is to be given back.
pub(super) fn is_sparse(used: usize, capacity: usize) -> bool {
    capacity > KEPT_MAX && used < capacity / NEEDED_PART_MIN
}

/// Gives room of a vector back.
pub(super) fn free<T>(elements: &mut Vec<T>) {
    if is_sparse(elements.len(), elements.capacity()) {
        elements.shrink_to((2 * elements.len()).max(KEPT_MAX));
    }
}
