//! Files, encrypted as they are read: chunks of 64 KiB, each a secretbox of its own under the file's key. Place and end of a chunk
//! are in its nonce (the STREAM construction), so chunks that are swapped, repeated, left out or cut off at the end do
//! not open.

use std::fmt;

use waybill_kernel::{Entropy, Error, Result, hex};
use zeroize::Zeroizing;

use crate::crypto::{self, MAC_BYTES, NONCE_BYTES};
use crate::seal::unreadable;

/// Of what is encrypted. Every chunk but the last has exactly so many.
pub const CHUNK_BYTES: usize = 64 << 10;
pub const SEALED_CHUNK_BYTES: usize = CHUNK_BYTES + MAC_BYTES;
/// Version and the part of the nonces that is the file's own.
pub const HEADER_BYTES: usize = 1 + PREFIX_BYTES;

const VERSION: u8 = 1;
/// Then 8 bytes that count, and one that says whether this is the last.
const PREFIX_BYTES: usize = NONCE_BYTES - 8 - 1;

/// One file, one key. Wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct FileKey(Zeroizing<[u8; 32]>);

impl FileKey {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        entropy.fill(key.as_mut());
        Self(key)
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// None when the text is not 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        crate::bytes::read_hex(text).map(Self::from_bytes)
    }

    /// For the message that tells the recipient.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0.as_ref()))
    }
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey(…)")
    }
}

/// How long a file of so many bytes is when it is encrypted. An empty one has one empty chunk. None past what can be counted.
pub const fn sealed_bytes(plain_bytes: u64) -> Option<u64> {
    let chunks = if plain_bytes == 0 { 1 } else { plain_bytes.div_ceil(CHUNK_BYTES as u64) };
    match chunks.checked_mul(MAC_BYTES as u64) {
        Some(macs) => match plain_bytes.checked_add(macs) {
            Some(bytes) => bytes.checked_add(HEADER_BYTES as u64),
            None => None,
        },
        None => None,
    }
}

/// Which chunk comes next, for both directions.
struct Chunks {
    key: FileKey,
    prefix: [u8; PREFIX_BYTES],
    next: u64,
    ended: bool,
}

impl Chunks {
    fn nonce(&mut self, last: bool) -> Result<[u8; NONCE_BYTES]> {
        if self.ended {
            return Err(Error::invalid("The file goes on after its end."));
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce[..PREFIX_BYTES].copy_from_slice(&self.prefix);
        nonce[PREFIX_BYTES..NONCE_BYTES - 1].copy_from_slice(&self.next.to_be_bytes());
        nonce[NONCE_BYTES - 1] = u8::from(last);
        self.next += 1;
        self.ended = last;
        Ok(nonce)
    }
}

pub struct FileSealer(Chunks);

impl FileSealer {
    pub fn new(key: &FileKey, entropy: &dyn Entropy) -> Self {
        let mut prefix = [0; PREFIX_BYTES];
        entropy.fill(&mut prefix);
        Self(Chunks { key: key.clone(), prefix, next: 0, ended: false })
    }

    /// What the encrypted file begins with.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [VERSION; HEADER_BYTES];
        header[1..].copy_from_slice(&self.0.prefix);
        header
    }

    /// `last` closes the file, with a chunk that may be shorter or empty.
    ///
    /// # Errors
    /// `invalid_request` for a chunk of another length, or after the last.
    pub fn chunk(&mut self, plain: &[u8], last: bool) -> Result<Vec<u8>> {
        if plain.len() > CHUNK_BYTES || (!last && plain.len() < CHUNK_BYTES) {
            return Err(Error::invalid(format!(
                "A chunk of a file must have {CHUNK_BYTES} bytes, the last at most so many."
            )));
        }
        let nonce = self.0.nonce(last)?;
        crypto::secretbox_seal(plain, &nonce, &self.0.key.0).ok_or_else(unreadable)
    }
}

pub struct FileOpener(Chunks);

impl FileOpener {
    /// # Errors
    /// `box_unreadable` when the header is none of this version.
    pub fn new(key: &FileKey, header: &[u8]) -> Result<Self> {
        match header.split_first() {
            Some((&VERSION, prefix)) => {
                let prefix = prefix.try_into().map_err(|_| unreadable())?;
                Ok(Self(Chunks { key: key.clone(), prefix, next: 0, ended: false }))
            }
            _ => Err(unreadable()),
        }
    }

    /// `last` when nothing follows: a file that was cut off at a chunk's end does not open then.
    ///
    /// # Errors
    /// `box_unreadable` when it is not the chunk that was sealed in this place.
    pub fn chunk(&mut self, sealed: &[u8], last: bool) -> Result<Zeroizing<Vec<u8>>> {
        if sealed.len() > SEALED_CHUNK_BYTES || (!last && sealed.len() < SEALED_CHUNK_BYTES) {
            return Err(unreadable());
        }
        let nonce = self.0.nonce(last)?;
        crypto::secretbox_open(sealed, &nonce, &self.0.key.0).ok_or_else(unreadable)
    }

    /// To be called when there is no more: a file of which not even the last chunk has come is none.
    ///
    /// # Errors
    /// `box_unreadable` when the last chunk was not opened.
    pub fn finish(self) -> Result<()> {
        if self.0.ended { Ok(()) } else { Err(unreadable()) }
    }
}
