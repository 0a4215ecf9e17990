//! What a server tells whoever runs it: a line an event, as text or JSON. Prompts, answers and keys are never in it.
//! Lines are written by a thread of their own: whoever does not read them holds up no request.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{panic, thread};

use model::template::WallClock;
use serde_json::{Map, Value, json};

/// Lines that may wait for their reader; more are lost, and that is told.
const WAITING: usize = 4096;
/// How long the end waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(10);

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, event, and `name=value` for each field.
    Text,
    /// An object a line.
    Json,
}

/// How much a line matters; the first matters most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// Something may be.
    Warn,
    /// What is usually wanted: requests, beginnings and ends.
    Info,
    /// Requests that only look, too.
    Debug,
}

/// Where lines go; nowhere unless told. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Log(Option<Arc<Lines>>);

#[derive(Debug)]
struct Lines {
    format: LogFormat,
    level: LogLevel,
    sender: SyncSender<Message>,
    lost: AtomicU64,
}

enum Message {
    Line(String),
    /// Tells when all before it are written.
    Flush(SyncSender<()>),
}

impl LogLevel {
    fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

impl Log {
    /// Writes lines of `level` and above to `out`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn to(out: impl Write + Send + 'static, format: LogFormat, level: LogLevel) -> std::io::Result<Log> {
        let (sender, lines) = sync_channel(WAITING);
        thread::Builder::new().name("log".into()).spawn(move || write(out, &lines))?;
        Ok(Log(Some(Arc::new(Lines { format, level, sender, lost: AtomicU64::new(0) }))))
    }

    /// Words for people: alone as text, as a field of JSON.
    pub fn say(&self, level: LogLevel, event: &str, words: &str) {
        let Some(lines) = self.wanting(level) else { return };
        lines.send(match lines.format {
            LogFormat::Text => format!("{words}\n"),
            LogFormat::Json => lines.line(level, event, fields([("message", json!(words))])),
        });
    }

    /// An event with its fields.
    pub(crate) fn line(&self, level: LogLevel, event: &str, fields: Map<String, Value>) {
        if let Some(lines) = self.wanting(level) {
            lines.send(lines.line(level, event, fields));
        }
    }

    /// Waits for what was said to be written, for a moment.
    pub fn flush(&self) {
        let Some(lines) = &self.0 else { return };
        let (told, written) = sync_channel(1);
        // Whoever does not read will not read the end either.
        if lines.sender.try_send(Message::Flush(told)).is_ok() {
            let _ = written.recv_timeout(LAST_LINES);
        }
    }

    /// From now on panics of any thread are lines of this log, with their place and without their words, which may quote
    /// requests. Those are added, as usual, where RUST_BACKTRACE asks for all that can be had.
    pub fn hear_panics(&self) {
        let (log, usual) = (self.clone(), panic::take_hook());
        panic::set_hook(Box::new(move |info| {
            // What becomes an error is told as one.
            if model::guard::is_guarded() {
                return;
            }
            let (thread, place) = (thread::current(), info.location().map(ToString::to_string));
            let words = format!(
                "ballast: this is a bug, please report it: thread {} panicked at {} (RUST_BACKTRACE=1 tells more, and may \
                 quote requests)",
                thread.name().unwrap_or("without a name"),
                place.as_deref().unwrap_or("an unknown place"),
            );
            log.say(LogLevel::Error, "panic", &words);
            // The process may end with this.
            log.flush();
            if std::env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted != "0") {
                usual(info);
            }
        }));
    }

    fn wanting(&self, level: LogLevel) -> Option<&Lines> {
        self.0.as_deref().filter(|lines| level <= lines.level)
    }
}

/// Fields by name, in order.
pub(crate) fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

impl Lines {
    fn line(&self, level: LogLevel, event: &str, fields: Map<String, Value>) -> String {
        let (time, level) = (now(), level.as_str());
        if self.format == LogFormat::Json {
            let head = [("time", json!(time)), ("level", json!(level)), ("event", json!(event))];
            let all: Map<String, Value> =
                head.into_iter().map(|(name, value)| (name.to_string(), value)).chain(fields).collect();
            return format!("{}\n", Value::Object(all));
        }
        let mut line = format!("{time} {:5} {event}", level.to_ascii_uppercase());
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            let _ = match value.as_str().filter(|text| is_plain(text)) {
                Some(text) => write!(line, " {name}={text}"),
                None => write!(line, " {name}={value}"),
            };
        }
        line.push('\n');
        line
    }

    fn send(&self, line: String) {
        let lost = self.lost.swap(0, Relaxed);
        let line = match lost {
            0 => line,
            _ => self.line(LogLevel::Warn, "lines_lost", fields([("lines", json!(lost))])) + &line,
        };
        if let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Line(line)) {
            self.lost.fetch_add(lost + 1, Relaxed);
        }
    }
}

/// Whether a text needs no quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\'))
}

/// `2026-11-22T00:40:00.123Z`
fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = WallClock { unix_s: now.as_secs() as i64, utc_offset_s: 0 };
    let whole = clock.strftime("%FT%T").unwrap_or_default();
    format!("{whole}.{:03}Z", now.subsec_millis())
}

fn write(mut out: impl Write, lines: &Receiver<Message>) {
    for message in lines {
        // A log that cannot be written can tell nobody.
        let _ = match message {
            Message::Line(line) => out.write_all(line.as_bytes()).and_then(|()| out.flush()),
            Message::Flush(told) => {
                let _ = told.send(());
                Ok(())
            }
        };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;

    /// What a log wrote.
    #[derive(Clone, Default)]
    pub(crate) struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Kept {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn written(format: LogFormat, level: LogLevel) -> String {
        let kept = Kept::default();
        let log = Log::to(kept.clone(), format, level).unwrap();
        log.say(LogLevel::Info, "listening", "listening on here");
        let line =
            [("id", json!("a b")), ("status", json!(200)), ("model", json!("m/n")), ("code", Value::Null)];
        log.line(LogLevel::Warn, "request", fields(line));
        log.flush();
        kept.text()
    }

    #[test]
    fn lines_are_text_or_json() {
        let text = written(LogFormat::Text, LogLevel::Info);
        let (said, line) = text.split_once('\n').unwrap();
        assert_eq!(said, "listening on here");
        assert!(line.ends_with("Z WARN  request id=\"a b\" status=200 model=m/n\n"), "{line}");
        let json = written(LogFormat::Json, LogLevel::Info);
        let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["message"], "listening on here");
        assert_eq!(
            (&lines[1]["event"], &lines[1]["level"], &lines[1]["id"]),
            (&json!("request"), &json!("warn"), &json!("a b"))
        );
        assert_eq!(lines[1]["time"].as_str().unwrap().len(), "2026-11-22T00:40:00.123Z".len());
        assert_eq!(written(LogFormat::Json, LogLevel::Warn).lines().count(), 1);
    }

    /// Writes nothing until it is told to.
    struct Stuck(Receiver<()>, Kept);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_does_not_read_holds_up_nobody_and_is_told_what_is_lost() {
        let ((go, wait), kept) = (std::sync::mpsc::channel(), Kept::default());
        let log = Log::to(Stuck(wait, kept.clone()), LogFormat::Text, LogLevel::Info).unwrap();
        (0..WAITING + 100).for_each(|i| log.say(LogLevel::Info, "x", &i.to_string()));
        drop(go);
        let text = || kept.text();
        while text().lines().count() < WAITING {
            thread::yield_now();
        }
        log.flush();
        log.say(LogLevel::Info, "x", "last");
        log.flush();
        let text = text();
        assert!(text.ends_with("\nlast\n"), "{text}");
        // What is lost may be told in parts.
        let (told, written): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.contains("lines_lost"));
        let lost = told.iter().map(|line| line.rsplit('=').next().unwrap().parse::<usize>().unwrap());
        let lost: usize = lost.sum();
        assert!(lost >= 99, "{told:?}");
        assert_eq!(written.len() - 1 + lost, WAITING + 100, "every line is written or told as lost");
    }
}
