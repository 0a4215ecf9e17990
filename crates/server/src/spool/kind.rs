//! Ids of files and batches: what is one, and what is not.

/// What ids begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Batch,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::File => "file-",
            Kind::Batch => "batch_",
        }
    }

    /// Where in the spool directory they are.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Kind::File => "files",
            Kind::Batch => "batches",
        }
    }

    /// A new id, of a number that no other has.
    pub(super) fn id(self, number: &str) -> String {
        format!("{}{number}", self.prefix())
    }

    /// Whether this may be an id that was made here: nothing else becomes a path.
    pub(super) fn owns(self, id: &str) -> bool {
        let digits = id.strip_prefix(self.prefix()).unwrap_or_default();
        (1..=40).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_ours_become_paths() {
        for id in ["file-0", "file-0123456789abcdef0"] {
            assert!(Kind::File.owns(id), "{id}");
        }
        for id in [
            "",
            "file-",
            "file-../x",
            "file-0/../1",
            "batch_0",
            "file-0.json",
            "file-%2e",
            "../file-0",
            "file-\0",
        ] {
            assert!(!Kind::File.owns(id), "{id}");
        }
        assert!(Kind::Batch.owns("batch_7f") && !Kind::Batch.owns("file-7f"));
    }
}
