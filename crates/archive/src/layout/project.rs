//! What a project is called.

use serde::{Deserialize, Serialize};
use waybill_kernel::Time;

use super::json;
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectFile {
    pub id: i64,
    pub slug: String,
    /// The absolute path as people know it.
    pub human_key: String,
    #[serde(with = "json::timestamp")]
    pub created_ts: Time,
    /// Whose it is. Absent in archives of others, which know no tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantRef>,
}

/// By its name alone: a number or an id would be those of one database, and an archive must be the same when it is written from a database
/// that was made from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRef {
    /// What its folder is called, encoded.
    pub name: String,
}

impl ProjectFile {
    pub fn write(&self) -> Result<Vec<u8>> {
        json::write(self)
    }

    pub fn read(text: &[u8]) -> Result<Self> {
        json::read(text)
    }
}
