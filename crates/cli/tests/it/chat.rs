//! A chat on a terminal: what Ctrl-C and Ctrl-D do there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use crate::common::{Folder, behind, command, golden, longwinded};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::tcgetattr;

const CTRL_C: &[u8] = b"\x03";
const CTRL_D: &[u8] = b"\x04";
/// As a terminal marks what is pasted.
const PASTE: [&str; 2] = ["\x1b[200~", "\x1b[201~"];
/// At which a line can be typed.
const PROMPT: &[u8] = b"> ";
/// A line was taken: from here on the terminal is what it is without an editor.
const TAKEN: &[u8] = b"\x1b[?2004l\r\n";
/// As the system counts signals.
const SIGINT: i32 = 2;

/// A terminal, and a chat that it belongs to.
struct Terminal {
    /// What a person at it types, and sees.
    person: File,
    chat: Child,
    seen: Vec<u8>,
    /// How the terminal treats what is typed and shown, as it was at first.
    modes: String,
}

impl Terminal {
    fn chat(model: &str, more: &[&str]) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let person = openpt(flags).expect("a terminal");
        unlockpt(&person).expect("unlocked");
        let end = || ioctl_tiocgptpeer(&person, flags).expect("its other end");
        // A session of its own, whose keys this terminal's are.
        let mut session = Command::new("setsid");
        session.arg("--ctty");
        let args = [&["run", model, "--temperature", "0"], more].concat();
        let mut session = behind(session, &command(&args));
        session.env("TERM", "xterm");
        let chat = session.stdin(end()).stdout(end()).stderr(end()).spawn().expect("util-linux's setsid");
        // The command has ends of its own, and the terminal hangs up when the last is closed.
        drop(session);
        let person = File::from(person);
        let modes = modes(&person);
        let mut terminal = Terminal { person, chat, seen: Vec::new(), modes };
        terminal.see(b"Ctrl-C ends an answer");
        terminal.see(PROMPT);
        terminal
    }

    fn press(&mut self, keys: &[u8]) {
        self.person.write_all(keys).expect("typed");
    }

    /// Waits until this is shown, after all that was waited for before. Gives what came between.
    fn see(&mut self, words: &[u8]) -> String {
        loop {
            if let Some(at) = self.seen.windows(words.len()).position(|shown| shown == words) {
                let between = self.seen.drain(..at + words.len()).take(at).collect();
                return String::from_utf8(between).expect("text");
            }
            let mut some = [0; 4096];
            let more = self.person.read(&mut some).unwrap_or(0);
            assert!(more > 0, "it ended: {}", String::from_utf8_lossy(&self.seen));
            self.seen.extend(&some[..more]);
        }
    }

    /// Sees the rest, and how the chat ends. The terminal is as it was.
    fn end(mut self) -> ExitStatus {
        // Linux says that a terminal which nobody has open is broken.
        while self.person.read(&mut [0; 4096]).is_ok_and(|more| more > 0) {}
        assert_eq!(modes(&self.person), self.modes);
        self.chat.wait().expect("it ends")
    }
}

fn modes(terminal: &File) -> String {
    let found = tcgetattr(terminal).expect("a terminal's");
    format!("{:?} {:?} {:?}", found.input_modes, found.output_modes, found.local_modes)
}

/// The answer has more text than a terminal holds that nobody reads, so it is under way until somebody does.
#[test]
fn ctrl_c_ends_an_answer_and_gives_the_prompt_back() {
    let folder: Folder = longwinded();
    let mut terminal = Terminal::chat(&folder.whole(), &["--ignore-eos", "--max-model-len", "190000"]);
    terminal.press(b"hello\n");
    terminal.see(TAKEN);
    if terminal.seen.is_empty() {
        let mut first = [0];
        terminal.person.read_exact(&mut first).expect("the answer begins");
    }
    terminal.press(CTRL_C);
    terminal.press(b"/bye\n");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn ctrl_c_between_answers_ends_the_chat() {
    let mut terminal = Terminal::chat(&golden("llama"), &["--max-tokens", "1"]);
    terminal.press(b"hello\n");
    terminal.see(TAKEN);
    terminal.see(PROMPT);
    terminal.press(CTRL_C);
    assert_eq!(terminal.end().signal(), Some(SIGINT));
}

#[test]
fn ctrl_c_and_ctrl_d_at_the_first_prompt_end_the_chat() {
    let mut terminal = Terminal::chat(&golden("llama"), &[]);
    terminal.press(CTRL_C);
    assert_eq!(terminal.end().signal(), Some(SIGINT));
    let mut terminal = Terminal::chat(&golden("llama"), &[]);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn bytes_that_are_no_text_do_not_end_the_chat() {
    let mut terminal = Terminal::chat(&golden("llama"), &["--max-tokens", "1"]);
    terminal.press(b"one\xff");
    terminal.see(b"is not UTF-8 text");
    terminal.see(PROMPT);
    terminal.press(b"/halp\r");
    terminal.see(b"There is no /halp.");
    terminal.see(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn commands_are_told_and_a_long_paste_of_many_lines_is_one_message() {
    let mut terminal = Terminal::chat(&golden("llama"), &[]);
    terminal.press(b"/halp\r");
    terminal.see(b"There is no /halp.");
    terminal.see(b"/bye   ends the chat");
    terminal.see(PROMPT);
    let [begin, end] = PASTE;
    terminal.press(format!("{begin}{}{end}\r", "sea salt\n".repeat(2000)).as_bytes());
    terminal.see(TAKEN);
    // Too long for this model, which tells how much of it arrived.
    terminal.see(b"With this message the conversation has ");
    let tokens: usize = terminal.see(b" tokens").parse().expect("a number");
    assert!(tokens > 4000, "{tokens}");
    terminal.see(PROMPT);
    terminal.press(b"/bye\r");
    assert_eq!(terminal.end().code(), Some(0));
}
