//! Reads, off the runtime's threads: each thread has a connection of its own and sees the last commit.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use waybill_kernel::{Clock, Error, Result};

use super::queue::{Queue, Taken};
use super::{Connection, Job, Options, open};
use crate::tenant_check::TenantTables;

pub(super) struct Readers {
    queue: Arc<Queue<Box<dyn Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    pub(super) fn start(options: &Options, tables: &Arc<TenantTables>, clock: &Arc<Clock>) -> Result<Self> {
        let queue = Arc::new(Queue::new(options.read_queue_max));
        let mut threads = Vec::new();
        for number in 0..options.readers.max(1) {
            let connection = open::read_connection(&options.path, Arc::clone(tables))?;
            let (queue, clock) = (Arc::clone(&queue), Arc::clone(clock));
            let thread = thread::Builder::new()
                .name(format!("sqlite-read-{number}"))
                .spawn(move || serve(connection, &queue, &clock))
                .map_err(Error::internal)?;
            threads.push(thread);
        }
        Ok(Self { queue, threads: Mutex::new(threads) })
    }

    pub(super) fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        self.queue.push(job)
    }

    pub(super) fn close(&self) {
        self.queue.close();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(mut connection: Connection, queue: &Queue<Box<dyn Job>>, clock: &Clock) {
    while let Taken::Item(mut job) = queue.take(None) {
        if job.is_abandoned() {
            continue;
        }
        // One snapshot for all statements of a read.
        if let Err(error) = connection.control("BEGIN") {
            job.fail(super::connection::explain(&error));
            continue;
        }
        job.perform(&mut connection, clock.now());
        let _ = connection.control("COMMIT");
        job.answer();
    }
}
