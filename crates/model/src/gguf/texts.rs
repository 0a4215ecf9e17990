//! A list of many short texts in two allocations: a vocabulary as strings of their own takes several times its bytes.

/// Texts one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    all: String,
    /// Where each ends in `all`.
    ends: Vec<usize>,
}

impl Texts {
    /// Adds a text at the end.
    pub fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(self.all.len());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text with this number.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.all[start..end])
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.all[start..end])
    }
}

impl<T: AsRef<str>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Texts {
        let mut all = Texts::default();
        texts.into_iter().for_each(|text| all.push(text.as_ref()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_were() {
        let given = ["", "a", "né", "", "日本"];
        let texts: Texts = given.into_iter().collect();
        assert_eq!(texts.iter().collect::<Vec<_>>(), given);
        assert_eq!((texts.len(), texts.get(2), texts.get(3), texts.get(5)), (5, Some("né"), Some(""), None));
        assert!(Texts::default().is_empty() && Texts::default().iter().next().is_none());
    }
}
