//! `{% generation %}` blocks mark the assistant's words for training. For us they are no-ops, but
//! their white-space control counts, so each tag becomes the tag of a block that does nothing.

/// Replaces the tags of generation blocks; leaves comments and strings alone.
pub(super) fn without_generation(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).chain(rest.find("{#")).min() {
        out.push_str(&rest[..at]);
        let tag = &rest[at..at + tag_len(&rest[at..])];
        match block_name(tag) {
            Some("generation") => out.push_str(&tag.replace("generation", "if true")),
            Some("endgeneration") => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[at + tag.len()..];
    }
    out.push_str(rest);
    out
}

/// Length of the tag at the start of `text`, to its end marker or to the end of the text.
fn tag_len(text: &str) -> usize {
    let close = match &text[..2] {
        "{%" => "%}",
        "{{" => "}}",
        _ => return text.find("#}").map_or(text.len(), |at| at + 2),
    };
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => (),
            None if c == '\'' || c == '"' => quote = Some(c),
            None if text[at..].starts_with(close) => return at + 2,
            None => (),
        }
    }
    text.len()
}

/// The name of a block tag that holds a name only.
fn block_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    Some(inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim())
}

#[cfg(test)]
mod tests {
    use super::without_generation;

    #[test]
    fn tags_keep_their_white_space_control() {
        let source = "{%- generation -%}a{% endgeneration %}{# {% generation %} #}{{ '{% generation %}' }}";
        let expected = "{%- if true -%}a{% endif %}{# {% generation %} #}{{ '{% generation %}' }}";
        assert_eq!(without_generation(source), expected);
        assert_eq!(
            without_generation("{% set add_generation_prompt = 1 %}{"),
            "{% set add_generation_prompt = 1 %}{"
        );
        assert_eq!(without_generation("generation {% generation"), "generation {% generation");
        assert_eq!(without_generation("generation {{ 'é\\'}}' }} {%"), "generation {{ 'é\\'}}' }} {%");
    }
}
