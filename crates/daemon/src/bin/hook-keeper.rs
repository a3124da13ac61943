//! Stands in for `waybill exec-guard` in this crate's tests: the program that runs the tests keeps nobody.

use std::process::ExitCode;

fn main() -> ExitCode {
    waybill_keeper::keep::run(std::env::args_os().skip(2))
}
