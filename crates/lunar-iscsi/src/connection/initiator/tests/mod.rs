//! The machine against scripted PDUs: what a target does right, and what a hostile one may try.

mod bench;
mod hostile;
mod level_two;
mod life;
mod manage;
mod transfer;
