//! What a person types at a prompt: with the keys that edit a line, and the lines of before.

use std::io::{ErrorKind, stdin};

use anyhow::{Context, Result};
use rustix::termios::{QueueSelector, tcflush};
use rustyline::Editor;
use rustyline::config::{Behavior, Config};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use signal_hook::consts::SIGINT;
use signal_hook::low_level::emulate_default_handler;

use crate::console::note;

/// A terminal that is read line by line. It remembers lines as long as it lives.
pub(crate) struct Keyboard(Editor<(), MemHistory>);

impl Keyboard {
    /// # Errors
    /// If the system refuses the terminal.
    pub(crate) fn open() -> Result<Keyboard> {
        // Answers may go to a file: the prompt belongs to the terminal.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        let history = MemHistory::with_config(&config);
        Ok(Keyboard(Editor::with_history(config, history).context("cannot use the terminal")?))
    }

    /// A line, however long, or nothing at the end. Several are one where they are pasted. Ctrl-C ends the process, as
    /// it does everywhere.
    ///
    /// # Errors
    /// If the terminal cannot be read.
    pub(crate) fn line(&mut self) -> Result<Option<String>> {
        loop {
            match self.0.readline("> ") {
                Ok(line) => {
                    // What is not remembered can be typed again.
                    let _ = self.0.add_history_entry(&line);
                    return Ok(Some(line));
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) => {
                    // Where the system keeps a process from ending so, it ends as if nothing more were typed.
                    let _ = emulate_default_handler(SIGINT);
                    return Ok(None);
                }
                // The terminal has another size now.
                Err(ReadlineError::Signal(_)) => {}
                // A key of another encoding, or a part of a character. What was pasted behind it is no line either.
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    let _ = tcflush(stdin(), QueueSelector::IFlush);
                    note!("That is not UTF-8 text: type the line again.");
                }
                Err(error) => return Err(error).context("cannot read the terminal"),
            }
        }
    }
}
