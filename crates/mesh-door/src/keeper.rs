//! The connections that this server has, and their leases in the database. Renewed all together, tenant by tenant: one by one
//! thousands of sockets that do nothing would write all the time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use waybill_kernel::{Caller, Tenant};
use waybill_mesh::ops::members::{ConnectionId, ConnectionRef, Disconnect, KeepConnections};

use crate::door::Door;

/// A lease is renewed so often in its time, so that one that fails is not the end.
const RENEWALS_PER_LEASE: u64 = 3;

/// Connections that are renewed in one transaction.
const CONNECTIONS_MAX: usize = 1_000;

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Keeper(Arc<Mutex<HashMap<ConnectionId, (Caller, ConnectionRef)>>>);

/// A connection in the database, which is to be ended there.
pub(crate) struct Kept {
    door: Arc<Door>,
    caller: Caller,
    of: ConnectionRef,
    is_ended: bool,
}

impl Keeper {
    pub(crate) fn keep(door: &Arc<Door>, caller: &Caller, of: ConnectionRef) -> Kept {
        door.keeper.lock().insert(of.connection, (caller.clone(), of));
        Kept { door: Arc::clone(door), caller: caller.clone(), of, is_ended: false }
    }

    /// Renews them until the server has stopped.
    pub(crate) async fn run(door: Arc<Door>, stopped: CancellationToken) {
        let lease_s = door.store.settings().get::<waybill_mesh::Settings>().connection_lease_s;
        let interval =
            Duration::from_millis(lease_s.saturating_mul(1_000) / RENEWALS_PER_LEASE).max(Duration::from_millis(100));
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            for (caller, connections) in door.keeper.by_tenant() {
                for some in connections.chunks(CONNECTIONS_MAX) {
                    let renewed = door.run(&caller, KeepConnections { connections: some.to_vec() }).await;
                    if let Err(error) = renewed {
                        tracing::warn!(%error, "the connections of members could not be renewed; it is tried again");
                    }
                }
            }
        }
    }

    fn by_tenant(&self) -> Vec<(Caller, Vec<ConnectionRef>)> {
        let mut tenants: HashMap<Tenant, (Caller, Vec<ConnectionRef>)> = HashMap::new();
        for (caller, of) in self.lock().values() {
            tenants.entry(caller.tenant).or_insert_with(|| (caller.clone(), Vec::new())).1.push(*of);
        }
        tenants.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, (Caller, ConnectionRef)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    pub(crate) fn id(&self) -> ConnectionId {
        self.of.connection
    }

    pub(crate) async fn end(mut self) {
        self.is_ended = true;
        self.door.keeper.lock().remove(&self.of.connection);
        disconnect(&self.door, &self.caller, self.of).await;
    }
}

impl Drop for Kept {
    /// The socket's task was dropped: nobody else would say that the member is gone.
    fn drop(&mut self) {
        self.door.keeper.lock().remove(&self.of.connection);
        if self.is_ended {
            return;
        }
        let (door, caller, of) = (Arc::clone(&self.door), self.caller.clone(), self.of);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { disconnect(&door, &caller, of).await });
        }
    }
}

/// One that fails ends with its lease.
async fn disconnect(door: &Door, caller: &Caller, ConnectionRef { mesh, member, connection }: ConnectionRef) {
    if let Err(error) = door.run(caller, Disconnect { mesh, member, connection }).await {
        tracing::debug!(%error, "the end of a member's connection could not be written down");
    }
}
