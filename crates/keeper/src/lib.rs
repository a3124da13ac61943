//! Programs of others that this program starts, ended with everything they have started.
//!
//! A process group is not enough: whoever calls `setsid` leaves it, and whoever forks twice leaves the tree as well. So each
//! program has a keeper, a process of its own that adopts what the program leaves behind ([`keep`]). The keeper is this very
//! executable under a name that nobody types; [`Program`] is how the one who started it sees both.

pub mod keep;
mod offspring;
mod output;
mod program;

pub use output::{LAST_WORDS_BYTES_MAX, Output, text};
pub use program::{Exit, Program, Start};
