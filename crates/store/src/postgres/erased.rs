//! A call without its type. Lanes, retries and COMMIT are the same for every operation: compiled for each of them they would be
//! a tenth of the program.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use waybill_kernel::{Error, Mode, Result, Tenant, Time};

use crate::Tx;
use crate::operation::{Call, Reach, Sharing, Work};
use crate::turns::Owner;

pub(super) trait Erased: Send + Sync {
    fn mode(&self) -> Mode;
    fn sharing(&self) -> Option<Sharing<'_>>;
    /// In whose line it waits.
    fn owner(&self) -> Owner;
    /// Whose rows it may see; none for the program's own work.
    fn tenant(&self) -> Option<Tenant>;
    /// Keeps the output of this run, in the place of that of the run before.
    fn run<'a>(&'a self, now: Time, tx: &'a mut Tx<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
}

pub(super) struct Keeping<W: Work> {
    call: Arc<Call<W>>,
    output: Mutex<Option<W::Output>>,
}

impl<W: Work> Keeping<W> {
    pub(super) fn new(call: Arc<Call<W>>) -> Self {
        Self { call, output: Mutex::new(None) }
    }

    /// Of the run that was committed.
    pub(super) fn output(&self) -> Result<W::Output> {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).take();
        output.ok_or_else(|| Error::internal("a call was answered before it ran"))
    }
}

impl<W: Work> Erased for Keeping<W> {
    fn mode(&self) -> Mode {
        self.call.work.mode()
    }

    fn sharing(&self) -> Option<Sharing<'_>> {
        self.call.work.sharing()
    }

    fn owner(&self) -> Owner {
        self.call.owner()
    }

    fn tenant(&self) -> Option<Tenant> {
        (self.call.reach == Reach::Tenant).then_some(self.call.caller.tenant)
    }

    fn run<'a>(&'a self, now: Time, tx: &'a mut Tx<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
        Box::pin(async move {
            let output = self.call.work.run(&self.call.ctx(now), tx).await?;
            *self.output.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
            Ok(())
        })
    }
}
