//! Receipt handles: `0x01 | generation u64be | mid u64be | token`, as base64url without padding. Those of a queue that has
//! partitions begin with `0x02 | partition u32be` instead of `0x01`; neither kind is good for a queue of the other.
//!
//! A handle says which message it is about and proves that its holder was the latest to receive it. Whatever is wrong
//! with one, the answer is the same: nobody learns by trying.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use waybill_kernel::{Code, Error, Result};

use super::missing;

const PLAIN: u8 = 1;
const OF_PARTITION: u8 = 2;
/// Generation, message, token.
const REST_BYTES: usize = 32;

pub type Token = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Of a queue that has partitions.
    pub partition: Option<u32>,
    pub generation: i64,
    pub mid: i64,
    pub token: Token,
}

impl Handle {
    pub fn encode(&self) -> String {
        let mut bytes = Vec::with_capacity(5 + REST_BYTES);
        match self.partition {
            None => bytes.push(PLAIN),
            Some(partition) => {
                bytes.push(OF_PARTITION);
                bytes.extend(partition.to_be_bytes());
            }
        }
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
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (partition, rest) = match bytes.split_first()? {
            (&PLAIN, rest) => (None, rest),
            (&OF_PARTITION, rest) => {
                let (partition, rest) = rest.split_first_chunk()?;
                (Some(u32::from_be_bytes(*partition)), rest)
            }
            _ => return None,
        };
        let rest: &[u8; REST_BYTES] = rest.try_into().ok()?;
        let number = |from: usize| rest[from..from + 8].try_into().map(i64::from_be_bytes).ok();
        let handle = Self { partition, generation: number(0)?, mid: number(8)?, token: rest[16..].try_into().ok()? };
        (handle.generation >= 0 && handle.mid >= 0).then_some(handle)
    }
}

pub fn invalid() -> Error {
    Error::new(Code::ReceiptHandleIsInvalid, Code::ReceiptHandleIsInvalid.entry().title)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN_ONE: Handle = Handle { partition: None, generation: 1, mid: 2, token: [3; 16] };

    #[test]
    fn a_handle_reads_back() {
        let handle = Handle { generation: 1_700_000_000_000_000, mid: (7 << 40) | 9, ..PLAIN_ONE };
        let text = handle.encode();
        assert_eq!((text.len(), Handle::decode(&text).unwrap()), (44, handle));
        let handle = Handle { partition: Some(31), ..handle };
        let text = handle.encode();
        assert_eq!((text.len(), Handle::decode(&text).unwrap()), (50, handle));
    }

    #[test]
    fn everything_that_is_no_handle_gets_the_same_answer() {
        let good = PLAIN_ONE.encode();
        let of_partition = Handle { partition: Some(1), ..PLAIN_ONE }.encode();
        let long = format!("{good}AAAA");
        let (unlike_its_version, unknown_version) = (format!("Ag{}", &good[2..]), format!("Aw{}", &good[2..]));
        let negative = Handle { generation: -1, ..PLAIN_ONE }.encode();
        let padded = format!("{good}=");
        for bad in [
            "x",
            "not base64!",
            "Ag",
            &good[..40],
            &of_partition[..48],
            &long,
            &unlike_its_version,
            &unknown_version,
            &negative,
            &padded,
        ] {
            let error = Handle::decode(bad).unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::ReceiptHandleIsInvalid, invalid().message()), "{bad}");
        }
        assert_eq!(Handle::decode("").unwrap_err().code(), Code::MissingParameter);
    }
}
