//! Where the frames of a WebSocket end in the bytes that a client has sent.
//!
//! The library that reads frames keeps the buffer of the largest one for as long as the socket lives, and does not say whether
//! something half read is in it. Whoever knows that all bytes so far end with a message can put a fresh reader in its place.
//! This reads lengths and nothing else; what a frame is, and whether it may be, is the library's to judge.

/// Two bytes, a length of up to eight, a mask of four.
const HEADER_BYTES_MAX: usize = 14;

#[derive(Debug, Default)]
pub(crate) struct Boundaries {
    header: [u8; HEADER_BYTES_MAX],
    /// Of the header that is being read.
    have: usize,
    /// Of the payload that is being read.
    left: u64,
    /// A message has begun whose last part has not.
    in_parts: bool,
    /// The longest payload so far.
    longest: u64,
    /// That have begun to end: all of them have, unless a payload is outstanding.
    messages: u64,
}

impl Boundaries {
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= taken as u64;
                bytes = &bytes[taken..];
                continue;
            }
            self.header[self.have] = bytes[0];
            self.have += 1;
            bytes = &bytes[1..];
            if self.have >= 2 && self.have == self.header_bytes() {
                self.begin();
            }
        }
    }

    /// Nothing of a message is outstanding.
    pub(crate) fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0 && !self.in_parts
    }

    /// How many have come, of data and of control. Whoever was given fewer has the others still before it.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    fn header_bytes(&self) -> usize {
        let extended = match self.header[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if self.header[1] & 0x80 == 0 { 0 } else { 4 };
        2 + extended + mask
    }

    fn begin(&mut self) {
        let digits = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        self.left = match self.header[1] & 0x7f {
            126 => digits(&self.header[2..4]),
            127 => digits(&self.header[2..10]),
            short => short.into(),
        };
        self.longest = self.longest.max(self.left);
        let (is_last, opcode) = (self.header[0] & 0x80 != 0, self.header[0] & 0x0f);
        // Control frames may come between the parts of a message.
        if opcode < 8 {
            self.in_parts = !is_last;
        }
        self.messages += u64::from(is_last);
        self.have = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match payload {
            0..=125 => bytes.push(0x80 | payload as u8),
            126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend((payload as u16).to_be_bytes());
            }
            _ => {
                bytes.push(0x80 | 127);
                bytes.extend((payload as u64).to_be_bytes());
            }
        }
        bytes.extend([9; 4]);
        bytes.extend(vec![0xff; payload]);
        bytes
    }

    #[test]
    fn a_message_ends_where_its_last_byte_is_however_it_comes() {
        for payload in [0, 1, 125, 126, 65_535, 65_536, 100_000] {
            let whole = frame(0x81, payload);
            for step in [1, 2, 7, whole.len()] {
                let mut found = Boundaries::default();
                for (index, part) in whole.chunks(step).enumerate() {
                    found.feed(part);
                    let is_all = (index + 1) * step >= whole.len();
                    assert_eq!(found.is_between(), is_all, "{payload} by {step}, {index}");
                }
                assert_eq!(found.longest(), payload as u64);
            }
        }
    }

    #[test]
    fn parts_are_one_message_and_pings_come_between_them() {
        let mut found = Boundaries::default();
        for (bytes, is_between) in [
            (frame(0x01, 10), false),
            (frame(0x89, 4), false),
            (frame(0x00, 10), false),
            (frame(0x80, 10), true),
            (frame(0x8a, 0), true),
        ] {
            found.feed(&bytes);
            assert_eq!(found.is_between(), is_between);
        }
        assert_eq!(found.messages(), 3, "a message of three parts, a ping and a pong");
        let two = [frame(0x82, 3), frame(0x81, 200)].concat();
        found.feed(&two[..two.len() - 1]);
        assert!(!found.is_between());
        found.feed(&two[two.len() - 1..]);
        assert!(found.is_between() && found.messages() == 5);
    }
}
