//! Receipt handles: `0x01 | generation u64be | mid u64be | token`, as base64url without padding.
//!
//! A handle says which message it is about and proves that its holder was the latest to receive it. Whatever is wrong
//! with one, the answer is the same: nobody learns by trying.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use waybill_kernel::{Code, Error, Result};

use super::missing;

const VERSION: u8 = 1;
const BYTES: usize = 33;

pub type Token = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub generation: i64,
    pub mid: i64,
    pub token: Token,
}

impl Handle {
    pub fn encode(&self) -> String {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.push(VERSION);
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend(self.mid.to_be_bytes());
        bytes.extend(self.token);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub fn decode(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(missing("ReceiptHandle"));
        }
        Self::read(text).ok_or_else(invalid)
    }

    fn read(text: &str) -> Option<Self> {
        let bytes: [u8; BYTES] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        let number = |from: usize| bytes[from..from + 8].try_into().map(i64::from_be_bytes).ok();
        let handle = Self { generation: number(1)?, mid: number(9)?, token: bytes[17..].try_into().ok()? };
        (bytes[0] == VERSION && handle.generation >= 0 && handle.mid >= 0).then_some(handle)
    }
}

pub fn invalid() -> Error {
    Error::new(Code::ReceiptHandleIsInvalid, Code::ReceiptHandleIsInvalid.entry().title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_reads_back() {
        let handle = Handle { generation: 1_700_000_000_000_000, mid: (7 << 40) | 9, token: *b"0123456789abcdef" };
        let text = handle.encode();
        assert_eq!((text.len(), Handle::decode(&text).unwrap()), (44, handle));
    }

    #[test]
    fn everything_that_is_no_handle_gets_the_same_answer() {
        let good = Handle { generation: 1, mid: 2, token: [3; 16] }.encode();
        let long = format!("{good}AAAA");
        let other_version = format!("Ag{}", &good[2..]);
        let negative = Handle { generation: -1, mid: 2, token: [3; 16] }.encode();
        let padded = format!("{good}=");
        for bad in ["x", "not base64!", &good[..40], &long, &other_version, &negative, &padded] {
            let error = Handle::decode(bad).unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::ReceiptHandleIsInvalid, invalid().message()), "{bad}");
        }
        assert_eq!(Handle::decode("").unwrap_err().code(), Code::MissingParameter);
    }
}
