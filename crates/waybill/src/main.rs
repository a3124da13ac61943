//! The `waybill` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    waybill::main()
}
