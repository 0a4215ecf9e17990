//! A reader that knows how much is left, and allocates only what has arrived.

use crate::error::{Error, Result};
use std::io::{self, Read};

/// Allocated before it is known that so much follows.
const AT_ONCE: u64 = 1 << 16;

pub(super) struct Reader<'a, R> {
    inner: R,
    read: u64,
    limit: u64,
    file: &'a str,
}

impl<'a, R: Read> Reader<'a, R> {
    /// Reads at most `limit` bytes.
    pub(super) fn new(inner: R, limit: u64, file: &'a str) -> Self {
        Reader { inner, read: 0, limit, file }
    }

    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.read
    }

    pub(super) fn malformed(&self, found: impl Into<String>, expected: impl Into<String>) -> Error {
        Error::malformed(self.file, found, expected)
    }

    fn truncated(&self, wanted: u64) -> Error {
        if self.limit == 0 {
            return self.malformed("0 bytes long", "a GGUF file; did its download end early?");
        }
        let found = format!("{wanted} bytes from byte {} of the header on", self.read);
        self.malformed(found, format!("the header to end by byte {}; is the file complete?", self.limit))
    }

    /// Refuses a count of things that take at least `each` bytes and cannot all follow.
    pub(super) fn check_count(&self, count: u64, each: u64, what: &str) -> Result<()> {
        let most = (self.limit - self.read) / each;
        if count <= most {
            return Ok(());
        }
        Err(self.malformed(
            format!("{count} {what}"),
            format!("at most {most}, which is what follows; is the file complete?"),
        ))
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        if self.limit - self.read < N as u64 {
            return Err(self.truncated(N as u64));
        }
        self.inner.read_exact(&mut bytes).map_err(|e| self.failed(N as u64, &e))?;
        self.read += N as u64;
        Ok(bytes)
    }

    pub(super) fn bytes(&mut self, count: u64) -> Result<Vec<u8>> {
        if count > self.limit - self.read {
            return Err(self.truncated(count));
        }
        let mut bytes = vec![0; count.min(AT_ONCE) as usize];
        self.inner.read_exact(&mut bytes).map_err(|e| self.failed(count, &e))?;
        let rest = count - bytes.len() as u64;
        if rest > 0 {
            let got =
                (&mut self.inner).take(rest).read_to_end(&mut bytes).map_err(|e| self.failed(count, &e))?;
            if got as u64 != rest {
                return Err(self.truncated(count));
            }
        }
        self.read += count;
        Ok(bytes)
    }

    fn failed(&self, wanted: u64, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return self.truncated(wanted);
        }
        self.malformed(format!("byte {} cannot be read: {error}", self.read), "a readable file")
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string of at most `most` bytes that has to be UTF-8.
    pub(super) fn name(&mut self, most: u64) -> Result<String> {
        let at = self.read;
        let length = self.u64()?;
        if length > most {
            return Err(
                self.malformed(format!("a name of {length} bytes at byte {at}"), format!("at most {most}"))
            );
        }
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes).map_err(|_| self.malformed(format!("the name at byte {at}"), "UTF-8"))
    }

    /// A string of any length.
    pub(super) fn text(&mut self) -> Result<String> {
        self.name(self.limit)
    }
}
