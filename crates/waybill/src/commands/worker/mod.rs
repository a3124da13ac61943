//! `waybill worker`: a worker for everyday tasks, and the pattern for writing another.
//!
//! A worker leases tasks, keeps their leases alive while it works, and reports how each ended. Nothing of it is stored here:
//! a worker that is killed loses only the work in hand, which another gets when the lease has run out.

pub mod connect;
pub mod exec;
pub mod flags;
pub mod handlers;
pub mod held;
pub mod http_get;
pub mod run;
pub mod secrecy;

use waybill_kernel::Result;

pub use flags::Worker;

pub async fn run(command: Worker) -> Result<()> {
    match command {
        Worker::Run(flags) => run::run(flags).await,
    }
}
