//! Tests of the machine with scripted PDUs of correct and of hostile targets.

mod hostile;
mod level_two;
mod life;
mod manage;
mod rig;
mod streams;
mod transfer;
