//! Memory that many claims needed and few need now.

/// Number of elements for which room is kept, whether they are needed or not.
pub(super) const KEPT_MAX: usize = if cfg!(test) { 4 } else { 16 };
/// Divisor: room is freed when less than this part of it is needed, so that a collection that often
/// fills and empties allocates little.
const NEEDED_PART_MIN: usize = 8;

/// True if so few elements are in use that spare room is to be freed.
pub(super) fn is_sparse(used: usize, capacity: usize) -> bool {
    capacity > KEPT_MAX && used < capacity / NEEDED_PART_MIN
}

/// Frees spare room of a vector.
pub(super) fn free<T>(elements: &mut Vec<T>) {
    if is_sparse(elements.len(), elements.capacity()) {
        elements.shrink_to((2 * elements.len()).max(KEPT_MAX));
    }
}
