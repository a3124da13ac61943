//! Fuzz target of the reader of keys.

use waybill_fuzz::{Target, feed};

use crate::{Key, KeyId};

#[test]
fn fuzz_key() {
    const SEEDS: &[&str] = &[
        "aga_0123456789AB0123456789ABCDEFGHIJKLMNOPQRSTUVgnpLRq",
        "aga_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzVe9ntu",
    ];
    let read = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        drop(text.parse::<KeyId>());
        let Some(key) = Key::parse(&text) else { return false };
        assert_eq!(key.reveal().expose(), text);
        true
    };
    feed(Target { name: "key", seeds: SEEDS, read });
}
