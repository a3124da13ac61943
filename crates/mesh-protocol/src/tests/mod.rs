//! Tests across modules: what libsodium has made, what comes back unchanged, what was changed on the way.

pub mod any;
mod round_trip;
mod tamper;
mod vectors;
