//! JSON that is written piece by piece.

use serde::Serialize;

/// What has been written.
#[derive(Debug, Default)]
pub(super) struct Text(Vec<u8>);

impl Text {
    pub(super) fn value(&mut self, value: &(impl Serialize + ?Sized)) {
        serde_json::to_writer(&mut self.0, value).expect("keys are texts, and memory takes what is written");
    }

    /// What is JSON already.
    pub(super) fn json(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    /// A list whose items `write` writes.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Text, T),
    ) {
        self.0.push(b'[');
        for (i, item) in items.into_iter().enumerate() {
            self.comma(i);
            write(self, item);
        }
        self.0.push(b']');
    }

    /// An object whose values `write` writes, which is given their names.
    pub(super) fn object<N: AsRef<str>, T>(
        &mut self,
        fields: impl IntoIterator<Item = (N, T)>,
        mut write: impl FnMut(&mut Text, &str, T),
    ) {
        self.0.push(b'{');
        for (i, (name, value)) in fields.into_iter().enumerate() {
            self.comma(i);
            self.value(name.as_ref());
            self.0.push(b':');
            write(self, name.as_ref(), value);
        }
        self.0.push(b'}');
    }

    pub(super) fn into_string(self) -> String {
        String::from_utf8(self.0).expect("JSON is UTF-8")
    }

    fn comma(&mut self, before: usize) {
        if before > 0 {
            self.0.push(b',');
        }
    }
}
