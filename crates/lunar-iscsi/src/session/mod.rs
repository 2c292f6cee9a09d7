//! A session: the command window, the task table, the connections it spans. RFC 7143 §4.2.2.
//!
//! A session has one owner; connections may live on other cores. They speak by values:
//! the driver hands `ToSession` from a connection to `handle`, then routes what `poll` gives:
//! `ToConnection` to that connection's `Input::Session`, `Manage` to the executor.

pub mod initiator;
pub mod target;
