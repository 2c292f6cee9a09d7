//! Tests of the object store through its interface.

mod basics;
mod crash;
mod damage;
mod device;
mod model;
mod random;
