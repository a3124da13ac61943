//! The MD5 digests by which SDKs check what they have sent and received.

use md5::{Digest, Md5};
use sha2::Sha256;
pub use waybill_kernel::hex::encode as hex;

use crate::message::{Given, MessageAttribute};

const TEXT: u8 = 1;
const BINARY: u8 = 2;

pub fn of_body(body: &str) -> [u8; 16] {
    Md5::digest(body.as_bytes()).into()
}

/// What a FIFO queue tells messages apart by that have no id: the body alone, and not what is beside it.
pub fn sha256_of_body(body: &str) -> String {
    hex(&Sha256::digest(body.as_bytes()))
}

/// None when there are no attributes: an empty digest makes SDKs that check it fail. The names must come sorted, as a
/// map has them.
pub fn of_attributes<'a>(attributes: impl IntoIterator<Item = (&'a String, &'a MessageAttribute)>) -> Option<String> {
    let mut digest = Md5::new();
    let mut any = false;
    for (name, attribute) in attributes {
        any = true;
        let (transport, value) = match attribute.given() {
            Given::Text(text) => (TEXT, text.as_bytes()),
            Given::Binary(bytes) => (BINARY, bytes),
        };
        update_with_length(&mut digest, name.as_bytes());
        update_with_length(&mut digest, attribute.data_type.as_bytes());
        digest.update([transport]);
        update_with_length(&mut digest, value);
    }
    any.then(|| hex(&digest.finalize()))
}

/// No attribute comes near to 4 GiB: the message it belongs to was measured before.
fn update_with_length(digest: &mut Md5, bytes: &[u8]) {
    digest.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    digest.update(bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::message::Blob;

    fn text(data_type: &str, value: &str) -> MessageAttribute {
        MessageAttribute { data_type: data_type.to_owned(), string_value: Some(value.to_owned()), binary_value: None }
    }

    #[test]
    fn a_body_has_the_digest_of_its_bytes() {
        assert_eq!(hex(&of_body("hello")), "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(sha256_of_body("hello"), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    }

    #[test]
    fn attributes_have_the_digest_that_sdks_compute() {
        let one = BTreeMap::from([("k".to_owned(), text("String", "v"))]);
        assert_eq!(of_attributes(&one).unwrap(), "0a77b0642718c3d9dd47090567d11e0d");
        let binary = MessageAttribute {
            data_type: "Binary".to_owned(),
            string_value: None,
            binary_value: Some(Blob(vec![0, 1, 2, 255])),
        };
        let three = BTreeMap::from([
            ("c".to_owned(), text("String.custom", "hello")),
            ("b".to_owned(), binary),
            ("a".to_owned(), text("Number", "42")),
        ]);
        assert_eq!(of_attributes(&three).unwrap(), "e9a895aebdc547417538bd87ec526f30");
        assert_eq!(of_attributes(&BTreeMap::new()), None);
    }
}
