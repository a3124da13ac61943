//! Which of an agent's reservations a call is about.

use std::collections::BTreeSet;

use waybill_kernel::{Code, Error, Result};

use crate::reservations::Reservation;
use crate::rules::paths::{PATHS_MAX, read_any};

/// All of them, or those of some paths and those of some ids.
#[derive(Debug, Default)]
pub struct Chosen {
    paths: Option<BTreeSet<String>>,
    ids: Option<BTreeSet<i64>>,
}

impl Chosen {
    /// A list that is empty chooses nothing by itself, as one that is left out.
    pub fn read(paths: Option<&[String]>, ids: Option<&[i64]>) -> Result<Self> {
        let paths = paths.filter(|paths| !paths.is_empty()).map(read_any).transpose()?;
        let ids = ids.filter(|ids| !ids.is_empty());
        if let Some(ids) = ids.filter(|ids| ids.len() > PATHS_MAX) {
            let message = format!("`file_reservation_ids` has {} entries; at most {PATHS_MAX} are taken.", ids.len());
            return Err(Error::new(Code::TooManyPaths, message).with("limit", PATHS_MAX as i64));
        }
        Ok(Self {
            paths: paths.map(|paths| paths.into_iter().map(|path| path.text).collect()),
            ids: ids.map(|ids| ids.iter().copied().collect()),
        })
    }

    /// Only these.
    pub fn ids(ids: impl IntoIterator<Item = i64>) -> Self {
        Self { paths: None, ids: Some(ids.into_iter().collect()) }
    }

    pub fn has(&self, held: &Reservation) -> bool {
        if self.paths.is_none() && self.ids.is_none() {
            return true;
        }
        let by_path = self.paths.as_ref().is_some_and(|paths| paths.contains(&held.path));
        by_path || self.ids.as_ref().is_some_and(|ids| ids.contains(&held.id))
    }
}
