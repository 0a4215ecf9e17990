//! Many streams on one thread. Where client and server share processors, what the client spends on a token is taken from
//! the server: here it is a call to the system, and no switch to a thread of the stream's own. A token's time is
//! that of its arrival, as it is where each stream has a thread.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::client::{Answer, CONNECT, Following, SILENCE, said};
use super::http::Response;
use super::load::Traffic;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Streams that are told of at once.
const EVENTS: usize = 1024;
/// How often requests are looked at whose server says nothing.
const LISTEN: Duration = Duration::from_secs(1);
/// Of an error's text that is kept.
const ERROR_BYTES: usize = 2000;

/// Where requests go, and what stands before each body.
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// All of the head but the body's length.
    pub(super) head: String,
}

/// Places of connections that are not there yet, and until when they must be; in order.
type Connecting = VecDeque<(usize, Instant)>;

/// One request under way.
struct Asking {
    index: usize,
    start: Instant,
    /// When its server last said something.
    heard: Instant,
    bytes: Vec<u8>,
    sent: usize,
    response: Response,
    following: Following,
    /// What an answer says that is none.
    refusal: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    /// Until when it must be there, while it is not.
    connecting: Option<Instant>,
    /// Whether it had an answer before: its server may have closed it meanwhile.
    used: bool,
    asking: Option<Asking>,
}

/// What came of looking at a connection.
enum Came {
    Nothing,
    /// The connection may be used again.
    Answered,
    /// It may not.
    Ended(Result<(), String>),
}

struct Wire<'a> {
    target: &'a Target,
    traffic: Traffic<'a>,
    poll: Poll,
    connections: Vec<Option<Connection>>,
    idle: Vec<usize>,
    begin: Instant,
    answers: Vec<Option<Answer>>,
    active: usize,
    done: usize,
}

/// As [`run`](super::load::run); `told` hears how many answers there are.
///
/// # Errors
/// If the system gives nothing to wait with.
pub(super) fn run(
    target: &Target,
    traffic: Traffic<'_>,
    told: &dyn Fn(usize),
) -> Result<(Vec<Option<Answer>>, Duration)> {
    let poll = Poll::new().context("the system gives nothing to wait for sockets with")?;
    let n = traffic.bodies.len();
    let mut wire = Wire {
        target,
        traffic,
        poll,
        connections: Vec::new(),
        idle: Vec::new(),
        begin: Instant::now(),
        answers: vec![None; n],
        active: 0,
        done: 0,
    };
    wire.drive(told)?;
    let took = wire.begin.elapsed();
    Ok((wire.answers, took))
}

impl Wire<'_> {
    fn drive(&mut self, told: &dyn Fn(usize)) -> Result<()> {
        let (mut next, mut seen, mut buffer) = (0, 0, vec![0; READ_BYTES]);
        let mut events = Events::with_capacity(EVENTS);
        let mut connecting = Connecting::new();
        let mut heard = Instant::now();
        while self.done < self.answers.len() && !self.traffic.stop.is_wanted() {
            while next < self.answers.len()
                && self.active < self.traffic.most
                && self.due(next) <= Instant::now()
            {
                connecting.extend(self.begin_request(next));
                next += 1;
            }
            if std::mem::replace(&mut seen, self.done) < self.done {
                told(self.done);
                continue;
            }
            let wait = self.patience(next, &mut connecting);
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                outcome => outcome.context("cannot wait for sockets")?,
            }
            for event in &events {
                let ending = event.is_read_closed() || event.is_write_closed() || event.is_error();
                self.look((event.token().0, ending), &mut buffer, &mut connecting);
            }
            self.give_up_the_silent(&mut heard, &mut connecting);
        }
        told(self.done);
        Ok(())
    }

    fn due(&self, index: usize) -> Instant {
        self.begin + self.traffic.at[index]
    }

    /// How long there is nothing to do but to wait for sockets. Gives up connections that take too long.
    fn patience(&mut self, next: usize, connecting: &mut Connecting) -> Option<Duration> {
        let now = Instant::now();
        while let Some(&(slot, deadline)) = connecting.front() {
            // The place may be another's by now.
            let waits = self.connections[slot].as_ref().is_some_and(|c| c.connecting == Some(deadline));
            if waits && deadline > now {
                break;
            }
            connecting.pop_front();
            if waits {
                self.over(slot, Err("the connection took too long".into()), connecting);
            }
        }
        let first = connecting.front().map(|&(_, deadline)| deadline);
        let more = next < self.answers.len() && self.active < self.traffic.most;
        let due = more.then(|| self.due(next));
        let wait = first.into_iter().chain(due).min().map_or(LISTEN, |at| at.saturating_duration_since(now));
        Some(wait.min(LISTEN))
    }

    /// Ends requests whose server has said nothing for long; looks for them now and then.
    fn give_up_the_silent(&mut self, heard: &mut Instant, connecting: &mut Connecting) {
        let now = Instant::now();
        if now - *heard < LISTEN {
            return;
        }
        *heard = now;
        for slot in 0..self.connections.len() {
            let asking = self.connections[slot].as_ref().and_then(|connection| connection.asking.as_ref());
            if asking.is_some_and(|asking| now - asking.heard > SILENCE) {
                let why = format!("the server said nothing for {} s", SILENCE.as_secs());
                self.over(slot, Err(why), connecting);
            }
        }
    }

    /// Sends a request, over a connection that is there or a new one; which, if it must be waited for.
    fn begin_request(&mut self, index: usize) -> Option<(usize, Instant)> {
        self.active += 1;
        let body = &self.traffic.bodies[index];
        let bytes = format!("{}Content-Length: {}\r\n\r\n{body}", self.target.head, body.len()).into_bytes();
        let asking = Asking {
            index,
            start: Instant::now(),
            heard: Instant::now(),
            bytes,
            sent: 0,
            response: Response::default(),
            following: Following::begin(),
            refusal: Vec::new(),
        };
        match self.idle.pop() {
            Some(slot) => {
                let connection = self.connections[slot].as_mut().expect("idle ones are there");
                connection.asking = Some(asking);
                // If it cannot be sent, reading will say why.
                let _ = connection.send();
                None
            }
            None => self.connect(asking),
        }
    }

    /// Sends a request over a new connection, whose place is told: it must be waited for.
    fn connect(&mut self, asking: Asking) -> Option<(usize, Instant)> {
        let slot = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if slot == self.connections.len() {
            self.connections.push(None);
        }
        let both = Interest::READABLE | Interest::WRITABLE;
        let opened = TcpStream::connect(self.target.address).and_then(|mut stream| {
            self.poll.registry().register(&mut stream, Token(slot), both)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                let deadline = Instant::now() + CONNECT;
                let connecting = Some(deadline);
                self.connections[slot] =
                    Some(Connection { stream, connecting, used: false, asking: Some(asking) });
                Some((slot, deadline))
            }
            Err(error) => {
                self.answered(asking, Err(format!("cannot connect: {error}")));
                None
            }
        }
    }

    /// Does what a connection is ready for. `ending`: no more will come than what is there.
    fn look(&mut self, (slot, ending): (usize, bool), buffer: &mut [u8], connecting: &mut Connecting) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        match connection.look(buffer, ending) {
            Came::Nothing => {}
            Came::Answered => {
                let asking = connection.asking.take();
                self.idle.push(slot);
                self.answered(asking.expect("it was asked"), Ok(()));
            }
            Came::Ended(outcome) => self.over(slot, outcome, connecting),
        }
    }

    /// A connection is of no more use. A request that it never answered because it was closed meanwhile is sent again.
    fn over(&mut self, slot: usize, outcome: Result<(), String>, connecting: &mut Connecting) {
        let Some(connection) = self.connections[slot].take() else { return };
        self.idle.retain(|&idle| idle != slot);
        let Some(mut asking) = connection.asking else { return };
        if outcome.is_err() && connection.used && asking.response.is_untouched() {
            asking.sent = 0;
            connecting.extend(self.connect(asking));
        } else {
            self.answered(asking, outcome);
        }
    }

    fn answered(&mut self, asking: Asking, outcome: Result<(), String>) {
        let due = self.due(asking.index);
        let outcome = match asking.response.status {
            Some(status) if status != 200 => Err(said(status, &String::from_utf8_lossy(&asking.refusal))),
            _ => outcome,
        };
        let mut answer = asking.following.end(outcome);
        answer.start = (asking.start - self.begin).as_secs_f64();
        answer.queued = asking.start.saturating_duration_since(due).as_secs_f64();
        self.answers[asking.index] = Some(answer);
        self.active -= 1;
        self.done += 1;
    }
}

impl Connection {
    /// Sends what there is to send and reads what there is to read, to its end if the connection ends.
    fn look(&mut self, buffer: &mut [u8], ending: bool) -> Came {
        if self.connecting.is_some() {
            match self.connected() {
                Ok(true) => self.connecting = None,
                Ok(false) => return Came::Nothing,
                Err(error) => return Came::Ended(Err(format!("cannot connect: {error}"))),
            }
        }
        let sent = self.send();
        // A server that refuses early closes early; what it said is still there to read.
        match (self.read(buffer, ending || sent.is_err()), sent) {
            (Came::Nothing | Came::Ended(Err(_)), Err(error)) => {
                Came::Ended(Err(format!("the request could not be sent: {error}")))
            }
            (came, _) => came,
        }
    }

    /// Whether it is there.
    fn connected(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => {
                // Requests are sent whole; if the system will not hurry, they wait.
                let _ = self.stream.set_nodelay(true);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As much of the request as the system takes.
    fn send(&mut self) -> io::Result<()> {
        let Some(asking) = self.asking.as_mut().filter(|_| self.connecting.is_none()) else { return Ok(()) };
        while asking.sent < asking.bytes.len() {
            match self.stream.write(&asking.bytes[asking.sent..]) {
                Ok(n) => asking.sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) if !asking.response.is_untouched() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// All that has come.
    fn read(&mut self, buffer: &mut [u8], ending: bool) -> Came {
        loop {
            let n = match self.stream.read(buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Came::Nothing,
                Err(error) => return Came::Ended(Err(format!("the stream broke off: {error}"))),
            };
            // A server may close a connection that nobody uses.
            let Some(asking) = &mut self.asking else { return Came::Ended(Ok(())) };
            if n == 0 {
                return Came::Ended(asking.response.end());
            }
            if let Err(why) = asking.take(&buffer[..n]) {
                return Came::Ended(Err(why));
            }
            if asking.response.is_done() {
                let open = asking.response.leaves_open() && !ending;
                self.used = true;
                return if open { Came::Answered } else { Came::Ended(Ok(())) };
            }
            // Less than there was room for is all that there was: asking again would cost another call. But an end that came
            // together with the last bytes is told only once.
            if n < buffer.len() && !ending {
                return Came::Nothing;
            }
        }
    }
}

impl Asking {
    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let now = Instant::now();
        self.heard = now;
        let (following, refusal) = (&mut self.following, &mut self.refusal);
        self.response.take(bytes, &mut |status, body| {
            if status == 200 {
                return following.take(body, now);
            }
            let room = ERROR_BYTES.saturating_sub(refusal.len());
            refusal.extend_from_slice(&body[..body.len().min(room)]);
            Ok(())
        })
    }
}
