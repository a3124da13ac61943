//! Fuzz targets of the readers in this crate.

use waybill_fuzz::{Target, feed};

use crate::{Principal, cursor};

#[test]
fn fuzz_principal() {
    const SEEDS: &[&str] = &["agent:alice", "worker:w:1", "human:Ünsal Ä", "asyncgate:asyncgate"];
    let read = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let Ok(principal) = text.parse::<Principal>() else { return false };
        assert_eq!(principal.to_string().parse::<Principal>().unwrap(), principal);
        true
    };
    feed(Target { name: "principal", seeds: SEEDS, read });
}

#[test]
fn fuzz_cursor() {
    /// More than any list has.
    const POSITION_BYTES_MAX: usize = 100;
    const SCOPE: &[&[u8]] = &[b"tenant", b"filter"];
    const SEEDS: &[&str] = &["010203be0cc5ec4952", "000102030405060708090a0b0c0d0e0fdd48160c6f4e"];
    let read = |input: &[u8]| {
        // Its beginning as a position that is given out and comes back, and the whole as what somebody sends.
        let position = &input[..input.len().min(POSITION_BYTES_MAX)];
        let given = cursor::encode(SCOPE, position);
        assert_eq!(cursor::decode(SCOPE, &given).unwrap(), position);
        assert!(cursor::decode(&[b"another"], &given).is_err());
        cursor::decode(SCOPE, &String::from_utf8_lossy(input)).is_ok()
    };
    feed(Target { name: "cursor", seeds: SEEDS, read });
}
