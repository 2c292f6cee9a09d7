//! The initiator role of a connection: the values at its border. Mirrors `target`.
