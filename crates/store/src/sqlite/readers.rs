//! Reads, off the runtime's threads: each thread has a connection of its own and sees the last commit.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use waybill_kernel::{Clock, Error, Result};

use super::{Connection, Job, Options, open, queue_full};
use crate::statement::TenantTables;

pub(super) struct Readers {
    queue: Mutex<Option<Sender<Box<dyn Job>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    pub(super) fn start(options: &Options, tables: &Arc<TenantTables>, clock: &Arc<Clock>) -> Result<Self> {
        let (sender, receiver) = bounded(options.read_queue_max);
        let mut threads = Vec::new();
        for number in 0..options.readers.max(1) {
            let connection = open::read_connection(&options.path, Arc::clone(tables))?;
            let (receiver, clock) = (receiver.clone(), Arc::clone(clock));
            let thread = thread::Builder::new()
                .name(format!("sqlite-read-{number}"))
                .spawn(move || serve(connection, &receiver, &clock))
                .map_err(Error::internal)?;
            threads.push(thread);
        }
        Ok(Self { queue: Mutex::new(Some(sender)), threads: Mutex::new(threads) })
    }

    pub(super) fn submit(&self, job: Box<dyn Job>) -> Result<()> {
        match self.queue.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(queue) => queue.try_send(job).map_err(|refused| match refused {
                TrySendError::Full(_) => queue_full(),
                TrySendError::Disconnected(_) => Error::internal("the readers have gone"),
            }),
            None => Err(crate::store::shutting_down()),
        }
    }

    pub(super) fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(mut connection: Connection, queue: &Receiver<Box<dyn Job>>, clock: &Clock) {
    for mut job in queue {
        if job.is_abandoned() {
            continue;
        }
        // One snapshot for all statements of a read.
        if let Err(error) = connection.control("BEGIN") {
            job.fail(super::connection::explain(&error));
            continue;
        }
        job.run(&mut connection, clock.now());
        let _ = connection.control("COMMIT");
        job.answer();
    }
}
