//! Bytes as hexadecimal digits. Written in lower case, read in either.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The two digits of a byte.
pub const fn digits(byte: u8) -> [u8; 2] {
    [DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]]
}

pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| digits(*byte)).map(char::from).collect()
}

/// None when there is anything but pairs of digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    text.as_bytes().chunks(2).map(byte).collect()
}

/// As [`decode`], for a length that is known. A secret that is read this way leaves no copy on the heap.
pub fn decode_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (into, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *into = byte(pair)?;
    }
    Some(bytes)
}

fn byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match *pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = encode(&bytes);
        assert!(text.starts_with("000102") && text.ends_with("fdfeff"), "{text}");
        assert_eq!(decode(&text).as_ref(), Some(&bytes));
        assert_eq!(decode(&text.to_uppercase()), Some(bytes));
        assert_eq!((decode(""), encode(&[])), (Some(Vec::new()), String::new()));
        assert_eq!(decode_array("00fF"), Some([0, 255]));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["0", "0g", "+1", " 1", "000", "é0", "0x10"] {
            assert_eq!(decode(text), None, "{text}");
        }
        for text in ["", "00", "0000 ", "00000", "00zz"] {
            assert_eq!(decode_array::<2>(text), None, "{text}");
        }
    }
}
