//! Topics, who subscribes to them, and the keys that posts are encrypted with.

mod create_topic;
mod epoch_keys;
mod epoch_work;
mod list_topics;
mod subscribe;
mod unsubscribe;
mod upload_epoch;

pub use create_topic::{CreateTopic, CreatedTopic};
pub use epoch_keys::{Departed, EpochKeys, ListEpochKeys};
pub use epoch_work::{EpochWork, FindEpochWork, WORK_PAGE_MAX};
pub use list_topics::{ListTopics, TopicView, Topics};
pub use subscribe::{Subscribe, Subscribed};
pub use unsubscribe::{Unsubscribe, Unsubscribed};
pub use upload_epoch::{EpochUploaded, UploadEpoch};
use waybill_kernel::{Code, Error, Result};
use waybill_mesh_protocol::{MeshId, TopicName};
use waybill_store::{Sql, Tx, Value};

fn unknown() -> Error {
    Error::new(Code::TopicUnknown, Code::TopicUnknown.entry().title)
}

/// A topic whose row stays locked until the end of the transaction.
struct Locked {
    epoch: i64,
    pending: Option<i64>,
}

async fn lock(tx: &mut Tx<'_>, mesh: MeshId, topic: &TopicName) -> Result<Locked> {
    const LOCK: Sql = Sql {
        sqlite: "SELECT epoch, pending_epoch FROM mesh_topics WHERE tenant = $1 AND mesh_id = $2 AND topic = $3",
        postgres: "SELECT epoch, pending_epoch FROM mesh_topics WHERE tenant = $1 AND mesh_id = $2 AND topic = $3 FOR UPDATE",
    };
    let sql = tx.text(LOCK);
    let row = tx.query_opt(sql, &[Value::from(mesh.as_bytes()), Value::from(topic.as_str())]).await?;
    let row = row.ok_or_else(unknown)?;
    Ok(Locked { epoch: row.int(0)?, pending: row.int_opt(1)? })
}
