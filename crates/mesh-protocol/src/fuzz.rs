//! Fuzz targets of the readers in this crate.
