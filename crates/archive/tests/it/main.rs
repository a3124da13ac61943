//! The archive as others see it: the real git program is the judge. Tests that need git, root or the sample say so and are skipped
//! where there is none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "who reads the run is told what was skipped")]

mod faults;
mod git;
mod kill;
mod sample;
mod support;
