//! Cursors of lists: the last position given, bound to the tenant and the filters it was given for.
//!
//! The checksum is no secret: a forged cursor reaches only rows that the caller may list anyway. It is there so that a
//! cursor of another list, another filter or another tenant is refused instead of silently starting somewhere.

use sha2::{Digest, Sha256};

use crate::{Code, Error, Result, hex};

const CHECK_BYTES: usize = 6;

/// `scope` is whatever the position is only valid with.
pub fn encode(scope: &[&[u8]], position: &[u8]) -> String {
    let check = check(scope, position);
    hex::encode(&[position, &check].concat())
}

/// Also for a position that a list cannot read: the checksum is no secret, so anybody can make one.
pub fn refused() -> Error {
    Error::new(Code::InvalidCursor, Code::InvalidCursor.entry().title)
}

pub fn decode(scope: &[&[u8]], cursor: &str) -> Result<Vec<u8>> {
    if cursor.len() > 256 {
        return Err(refused());
    }
    let bytes = hex::decode(cursor).ok_or_else(refused)?;
    let at = bytes.len().checked_sub(CHECK_BYTES).ok_or_else(refused)?;
    let (position, given) = bytes.split_at(at);
    if check(scope, position) == given { Ok(position.to_vec()) } else { Err(refused()) }
}

fn check(scope: &[&[u8]], position: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hash = Sha256::new();
    for part in scope.iter().copied().chain([position]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&digest[..CHECK_BYTES]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_works_with_its_own_scope_and_no_other() {
        let cursor = encode(&[b"tenant 1", b"queued"], &[1, 2, 3]);
        assert_eq!(decode(&[b"tenant 1", b"queued"], &cursor).unwrap(), [1, 2, 3]);
        for scope in [[&b"tenant 2"[..], b"queued"], [b"tenant 1", b""], [b"tenant 1q", b"ueued"]] {
            assert_eq!(decode(&scope, &cursor).unwrap_err().code(), Code::InvalidCursor);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for cursor in ["", "zz", "abc", "é0", "00", &"0".repeat(600)] {
            assert_eq!(decode(&[], cursor).unwrap_err().code(), Code::InvalidCursor, "{cursor}");
        }
    }
}
