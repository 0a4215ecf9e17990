//! A response of HTTP/1.1 as its bytes come: head, then a body in any of its framings. It reads nothing itself.

/// Bytes that a head, or the line of a chunk's size, may have.
const HEAD_BYTES: usize = 64 << 10;
/// Fields that a head may have.
const FIELDS: usize = 100;

/// Hears the status and the next bytes of a body, and may refuse them.
type Hear<'a> = dyn FnMut(u16, &[u8]) -> Result<(), String> + 'a;

/// A response, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Response {
    state: State,
    /// Bytes of what is not complete: the head, or a chunk's line.
    held: Vec<u8>,
    /// Once the head is here.
    pub(super) status: Option<u16>,
    closes: bool,
}

#[derive(Debug, Default, PartialEq)]
enum State {
    #[default]
    Head,
    /// So many bytes are left.
    Length(u64),
    /// The line that says how long the next chunk is.
    Size,
    /// So many bytes of a chunk and its line's end are left.
    Chunk(u64),
    /// Fields after the last chunk, up to an empty line.
    Trailer,
    /// Whatever comes until the connection ends.
    Rest,
    Done,
}

impl Response {
    /// Whether all of it is here.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether nothing of it has come.
    pub(super) fn is_untouched(&self) -> bool {
        self.state == State::Head && self.held.is_empty()
    }

    /// Whether another request may follow on its connection.
    pub(super) fn leaves_open(&self) -> bool {
        self.is_done() && !self.closes
    }

    /// Takes the bytes that came next, and hands on those of the body.
    ///
    /// # Errors
    /// What is no HTTP/1.1, and what `body` says.
    pub(super) fn take(&mut self, mut bytes: &[u8], body: &mut Hear<'_>) -> Result<(), String> {
        while !bytes.is_empty() && self.state != State::Done {
            let status = self.status.unwrap_or_default();
            match self.state {
                State::Head => bytes = self.head(bytes)?,
                State::Length(left) => {
                    let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    body(status, &bytes[..n])?;
                    self.state = length(left - n as u64);
                    bytes = &bytes[n..];
                }
                State::Chunk(left) => {
                    let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    // The last two are the end of its line.
                    let data = n.min(usize::try_from(left.saturating_sub(2)).unwrap_or(usize::MAX));
                    if data > 0 {
                        body(status, &bytes[..data])?;
                    }
                    self.state = if left > n as u64 { State::Chunk(left - n as u64) } else { State::Size };
                    bytes = &bytes[n..];
                }
                State::Size | State::Trailer => bytes = self.line(bytes)?,
                State::Rest => {
                    body(status, bytes)?;
                    bytes = &[];
                }
                State::Done => {}
            }
        }
        Ok(())
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// If something was missing.
    pub(super) fn end(&mut self) -> Result<(), String> {
        match self.state {
            State::Done | State::Rest => {
                self.state = State::Done;
                self.closes = true;
                Ok(())
            }
            _ => Err("the connection ended before the answer did".into()),
        }
    }

    /// Bytes of the head; gives those that follow it.
    fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&self.held).map_err(|error| format!("the answer is no HTTP: {error}"))?;
        let httparse::Status::Complete(length) = parsed else {
            return if self.held.len() > HEAD_BYTES {
                Err("the answer's head has no end".into())
            } else {
                Ok(&[])
            };
        };
        let status = head.code.unwrap_or_default();
        let interim = (100..200).contains(&status);
        if !interim {
            self.status = Some(status);
            (self.state, self.closes) = framing(&head)?;
        }
        self.held.clear();
        Ok(&bytes[length - before..])
    }

    /// Bytes of a line; gives those that follow it.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            self.held.extend_from_slice(bytes);
            return if self.held.len() > HEAD_BYTES {
                Err("a chunk's line has no end".into())
            } else {
                Ok(&[])
            };
        };
        self.held.extend_from_slice(&bytes[..end]);
        self.state = match self.state {
            State::Size => match size(&self.held)? {
                0 => State::Trailer,
                size => State::Chunk(size + 2),
            },
            _ if self.held.trim_ascii().is_empty() => State::Done,
            _ => State::Trailer,
        };
        self.held.clear();
        Ok(&bytes[end + 1..])
    }
}

fn length(left: u64) -> State {
    if left == 0 { State::Done } else { State::Length(left) }
}

/// How the body is framed, and whether the connection ends with it.
fn framing(head: &httparse::Response<'_, '_>) -> Result<(State, bool), String> {
    let field = |name: &str| {
        let field = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        field.map(|field| String::from_utf8_lossy(field.value).trim().to_ascii_lowercase())
    };
    let closes = head.version == Some(0) || field("connection").is_some_and(|value| value.contains("close"));
    if head.code == Some(204) {
        return Ok((State::Done, closes));
    }
    if field("transfer-encoding").is_some_and(|value| value.ends_with("chunked")) {
        return Ok((State::Size, closes));
    }
    match field("content-length") {
        Some(bytes) => {
            let bytes = bytes.parse().map_err(|_| format!("the answer's length is `{bytes}`"))?;
            Ok((length(bytes), closes))
        }
        None => Ok((State::Rest, true)),
    }
}

/// Bytes of a chunk, whatever else its line says.
fn size(line: &[u8]) -> Result<u64, String> {
    let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let parsed = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    parsed
        .filter(|&size| size < u64::MAX - 2)
        .ok_or_else(|| format!("a chunk's length is `{}`", String::from_utf8_lossy(digits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of these bytes, cut into pieces of `each`.
    fn read(raw: &str, each: usize) -> (Result<(), String>, String, Response) {
        let (mut response, mut body) = (Response::default(), String::new());
        let mut outcome = Ok(());
        for piece in raw.as_bytes().chunks(each) {
            outcome = outcome.and_then(|()| {
                response.take(piece, &mut |_, bytes| {
                    body.push_str(std::str::from_utf8(bytes).unwrap());
                    Ok(())
                })
            });
        }
        (outcome, body, response)
    }

    #[test]
    fn every_framing_is_read_however_it_is_cut() {
        for (raw, body, open) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", true),
            ("HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 2\r\n\r\nab", "ab", false),
            ("HTTP/1.1 204 No Content\r\n\r\n", "", true),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "x", true),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
                "abc0123456789",
                true,
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", "a", true),
        ] {
            for each in 1..=raw.len() {
                let (outcome, got, response) = read(raw, each);
                assert_eq!((outcome, got.as_str()), (Ok(()), body), "{raw} by {each}");
                assert!(response.is_done() && response.leaves_open() == open, "{raw} by {each}");
            }
        }
    }

    #[test]
    fn a_body_without_length_ends_with_its_connection_and_no_other_does() {
        let (outcome, body, mut response) = read("HTTP/1.1 503 Busy\r\n\r\nlater", 4);
        assert_eq!((outcome, body.as_str(), response.status), (Ok(()), "later", Some(503)));
        assert!(!response.is_done());
        assert_eq!(response.end(), Ok(()));
        assert!(response.is_done() && !response.leaves_open());
        for raw in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"] {
            assert!(read(raw, 9).2.end().is_err(), "{raw}");
        }
    }

    #[test]
    fn what_is_no_http_is_told() {
        for raw in [
            "SSH-2.0-server\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ] {
            assert!(read(raw, 7).0.is_err(), "{raw}");
        }
        assert!(read(&format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(70_000)), 1000).0.is_err());
    }
}
