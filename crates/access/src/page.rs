//! Lists come in pages. Too large a page is cut to size, because the caller gets the rest with the cursor anyway.

use waybill_kernel::{Error, Result};

const PAGE_DEFAULT: u32 = 50;
const PAGE_MAX: u32 = 200;

pub fn size(limit: Option<u32>) -> Result<usize> {
    match limit {
        Some(0) => Err(Error::invalid("`limit` is at least 1.")),
        limit => Ok(limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX) as usize),
    }
}

/// One row more than the page shows that there is another page.
pub fn rows_to_read(size: usize) -> i64 {
    i64::try_from(size).map_or(i64::MAX, |size| size.saturating_add(1))
}

/// Cuts the extra row off. The cursor is that of the last row shown, and there is none when the list ends here.
pub fn cut<T>(rows: &mut Vec<T>, size: usize, cursor: impl FnOnce(&T) -> String) -> Option<String> {
    let more = rows.len() > size;
    rows.truncate(size);
    rows.last().filter(|_| more).map(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_to_size_and_nothing_is_refused() {
        for (limit, expected) in [(None, 50), (Some(1), 1), (Some(200), 200), (Some(u32::MAX), 200)] {
            assert_eq!(size(limit).unwrap(), expected);
        }
        assert!(size(Some(0)).is_err());
        let mut rows = vec![1, 2, 3];
        assert_eq!(cut(&mut rows, 3, ToString::to_string), None);
        assert_eq!(cut(&mut rows, 2, ToString::to_string), Some("2".to_owned()));
        assert_eq!(rows, [1, 2]);
    }
}
