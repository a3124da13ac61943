//! What one process keeps from others that share its database.

use waybill_kernel::Result;

use crate::{Store, Topic, postgres};

/// How a topic is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Beside others who hold it so, and while nobody holds it alone.
    Shared,
    /// While nobody else holds it.
    Alone,
}

/// A topic that this process holds until this is dropped.
pub struct Hold(Option<postgres::Hold>);

impl Hold {
    /// Comes back when the connection that it hangs on is gone; never where there is none.
    pub async fn lost(self) {
        match self.0 {
            Some(hold) => hold.lost().await,
            None => std::future::pending().await,
        }
    }
}

impl Store {
    /// None while others hold it. A file of SQLite is open in one process, which so holds everything.
    pub async fn hold(&self, topic: Topic, holding: Holding) -> Result<Option<Hold>> {
        match self.postgres() {
            Some(postgres) => Ok(postgres.hold(topic, holding).await?.map(|hold| Hold(Some(hold)))),
            None => Ok(Some(Hold(None))),
        }
    }
}
