//! A session: the command window, the task table, the connections it spans. RFC 7143 §4.2.2.
//!
//! A session has one owner; connections may run on other cores. They communicate by values: the
//! driver passes each `ToSession` of a connection to `handle`, then routes the outputs of `poll`:
//! `ToConnection` to that connection's `Input::Session`, `Manage` to the executor.

pub mod initiator;
pub mod target;
