//! The same program with kill points and planted bugs, for the chaos harness; its name keeps it apart from the real one.

use std::process::ExitCode;

fn main() -> ExitCode {
    waybill::main()
}
