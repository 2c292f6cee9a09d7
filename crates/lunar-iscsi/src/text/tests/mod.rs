//! Tests of text: format, negotiation, exchanges.

mod exchange;
mod format;
mod negotiation;
