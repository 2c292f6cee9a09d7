//! The initiator role of a session. Mirrors `target`.
