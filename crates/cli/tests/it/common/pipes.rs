//! Named pipes: what reads or writes one stands still until the test lets it go on.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};
use std::thread;

use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;

use super::Folder;

/// Linux's.
pub(crate) const O_NONBLOCK: i32 = 0o4000;

pub(crate) fn pipe(folder: &Folder) -> String {
    let name = folder.name("pipe");
    assert!(Command::new("mkfifo").arg(&name).status().expect("mkfifo").success());
    name
}

/// For `--record`: a pipe that nobody reads. An engine whose pipe is full stands still for ever, as in a step without end: of a hundred
/// sequences it has more to write from the beginning than a page has room for.
pub(crate) struct Unread {
    pub(crate) name: String,
    end: File,
    room: u64,
}

impl Unread {
    pub(crate) fn new(folder: &Folder) -> Unread {
        // A page, the least that there is.
        Unread::with_room(folder, 4096)
    }

    /// The same where an engine is to do something before it stands still.
    pub(crate) fn with_room(folder: &Folder, bytes: usize) -> Unread {
        let name = pipe(folder);
        let open = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&name);
        let end = open.expect("a pipe");
        let room = fcntl_setpipe_size(&end, bytes).expect("such a one") as u64;
        Unread { name, end, room }
    }

    /// Waits until it is half full. The engine stops on its way from there.
    pub(crate) fn fill(&self, child: &mut Child) {
        while ioctl_fionread(&self.end).expect("known") < self.room / 2 {
            assert_eq!(child.try_wait().expect("known"), None, "it ended");
            thread::yield_now();
        }
    }
}
