//! From one server key to the next: what is kept in boxes is put into new ones, all or none, in the transaction that says
//! which key the database goes with from then on.

use std::sync::Arc;

use waybill_kernel::{Entropy, Mode, Result};
use waybill_store::{Ctx, Row, Store, Tx, Value, Work};

use crate::boxed::Nonce;
use crate::server_key::{Note, ServerKey};

/// A column of boxes. Each is bound to its tenant, as eight bytes, and to its row's id.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    pub purpose: &'static str,
    /// Gives tenant, id and box.
    pub select: &'static str,
    /// Takes tenant, id and box.
    pub update: &'static str,
    pub id: IdKind,
}

/// How the rows of a table are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    Text,
    Bytes,
}

/// How many boxes were moved, and how many did not open: what is in those has to be made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub moved: usize,
    pub lost: usize,
}

/// Makes `to` the key that the database goes with, and moves what `from` had in boxes.
pub async fn move_to_server_key(
    store: &Store,
    boxes: Vec<Boxes>,
    from: Option<ServerKey>,
    to: &ServerKey,
) -> Result<Moved> {
    let work = Move { boxes, from, to: to.clone(), entropy: Arc::clone(store.entropy()) };
    store.system().run(work).await
}

struct Move {
    boxes: Vec<Boxes>,
    from: Option<ServerKey>,
    to: ServerKey,
    entropy: Arc<dyn Entropy>,
}

impl Work for Move {
    type Output = Moved;

    fn mode(&self) -> Mode {
        Mode::Write
    }

    async fn run(&self, ctx: &Ctx<'_>, tx: &mut Tx<'_>) -> Result<Moved> {
        let mut total = Moved::default();
        for boxes in &self.boxes {
            for row in tx.query(boxes.select, &[]).await? {
                match self.moved(boxes, &row) {
                    Ok(None) => {}
                    Ok(Some(boxed)) => {
                        let values = [row.int(0)?.into(), boxes.id.value(&row)?, Value::from(boxed.as_slice())];
                        tx.execute(boxes.update, &values).await?;
                        total.moved += 1;
                    }
                    Err(_) => total.lost += 1,
                }
            }
        }
        Note { id: self.to.id().to_owned(), replaces: true }.run(ctx, tx).await?;
        Ok(total)
    }
}

impl Move {
    /// None for a box that the new key opens already.
    fn moved(&self, boxes: &Boxes, row: &Row) -> Result<Option<Vec<u8>>> {
        let (tenant, id, boxed) = (row.int(0)?.to_be_bytes(), boxes.id.bytes(row)?, row.bytes(2)?);
        let bound_to = [&tenant[..], id];
        let opened = match (self.to.open(boxes.purpose, &bound_to, boxed), &self.from) {
            (Ok(_), _) => return Ok(None),
            (Err(error), None) => return Err(error),
            (Err(_), Some(from)) => from.open(boxes.purpose, &bound_to, boxed)?,
        };
        let nonce = Nonce::draw(self.entropy.as_ref());
        self.to.seal(boxes.purpose, &bound_to, opened.expose(), &nonce).map(Some)
    }
}

impl IdKind {
    fn value(self, row: &Row) -> Result<Value<'_>> {
        Ok(match self {
            Self::Text => row.text(1)?.into(),
            Self::Bytes => row.bytes(1)?.into(),
        })
    }

    fn bytes(self, row: &Row) -> Result<&[u8]> {
        match self {
            Self::Text => row.text(1).map(str::as_bytes),
            Self::Bytes => row.bytes(1),
        }
    }
}
