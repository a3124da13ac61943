//! Between rows and the types of the protocol. What a row holds was checked when it was written.

use waybill_kernel::{Error, Result};
use waybill_mesh_protocol::{BoxPublicKey, Envelope, MemberKeys, PublicKey, Signature};
use waybill_store::Row;

fn damaged(what: &str) -> Error {
    Error::internal(format!("a stored {what} cannot be read"))
}

pub(crate) fn key(row: &Row, column: usize) -> Result<PublicKey> {
    PublicKey::from_slice(row.bytes(column)?).ok_or_else(|| damaged("key"))
}

/// Three columns from here on.
pub(crate) fn keys(row: &Row, column: usize) -> Result<MemberKeys> {
    Ok(MemberKeys {
        ed25519: key(row, column)?,
        x25519: BoxPublicKey::from_slice(row.bytes(column + 1)?).ok_or_else(|| damaged("box key"))?,
        x25519_signature: Signature::from_slice(row.bytes(column + 2)?).ok_or_else(|| damaged("signature"))?,
    })
}

pub(crate) fn envelope(row: &Row, column: usize) -> Result<Envelope> {
    serde_json::from_str(row.text(column)?).map_err(|error| damaged("envelope").because(error))
}

/// Numbers that are `u32` at the edge.
pub(crate) fn number(row: &Row, column: usize) -> Result<u32> {
    u32::try_from(row.int(column)?).map_err(Error::internal)
}
