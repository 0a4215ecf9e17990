//! Finds the end of a JSON value, character by character.

/// Where a character stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// In the value.
    Inside,
    /// The value's last.
    Last,
    /// The first one after it (a number ends no other way).
    After,
}

/// A value that is being read. It is not checked, only its end is found.
#[derive(Clone, Debug, Default)]
pub(super) struct Value {
    depth: u32,
    string: Quoted,
    begun: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Quoted {
    #[default]
    No,
    Yes,
    /// After a backslash.
    Escape,
}

impl Value {
    /// Takes the next character; the first is not white space.
    pub(super) fn push(&mut self, c: char) -> At {
        let first = !std::mem::replace(&mut self.begun, true);
        if self.string != Quoted::No {
            return self.quoted(c);
        }
        match c {
            '"' if first || self.depth > 0 => self.string = Quoted::Yes,
            '{' | '[' if first || self.depth > 0 => self.depth += 1,
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                return if self.depth == 0 { At::Last } else { At::Inside };
            }
            _ if self.depth > 0 || c.is_ascii_alphanumeric() || "+-.".contains(c) => (),
            _ => return At::After,
        }
        At::Inside
    }

    fn quoted(&mut self, c: char) -> At {
        self.string = match (self.string, c) {
            (Quoted::Escape, _) => Quoted::Yes,
            (_, '\\') => Quoted::Escape,
            (_, '"') => Quoted::No,
            _ => Quoted::Yes,
        };
        if self.string == Quoted::No && self.depth == 0 { At::Last } else { At::Inside }
    }
}
