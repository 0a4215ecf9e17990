//! Thoughts told from answers, and forms behind them.

use std::sync::Arc;

use super::*;
use crate::sampling::{Guide, Language, SampleError};

fn split(begins: Begins, pieces: &[&str]) -> (String, String) {
    split_by(THINK, begins, pieces)
}

fn split_by(markers: Markers, begins: Begins, pieces: &[&str]) -> (String, String) {
    let (mut split, mut all) = (Split::new(markers, begins), Apart::default());
    for piece in pieces {
        let more = split.push(piece);
        all.thought += &more.thought;
        all.text += &more.text;
    }
    split.finish(&mut all);
    (all.thought, all.text)
}

#[test]
fn thoughts_and_answer_are_told_apart_however_the_text_is_cut() {
    use Begins::{Before, Within};
    for (begins, text, thought, answer) in [
        (Before, "<think>\nWell, 1 < 2.\n</think>\n\nYes.\n", "Well, 1 < 2.", "Yes.\n"),
        (Before, "  \n<think>a</think>b", "a", "b"),
        (Before, "<think>\n\n</think>\n\nNo.", "", "No."),
        (Before, "Plain </think> text", "", "Plain </think> text"),
        (Before, " <thin ice", "", " <thin ice"),
        (Before, " <thi", "", " <thi"),
        (Before, "", "", ""),
        (Before, "<think>a </think> b <think>c</think>", "a", "b <think>c</think>"),
        (Before, "<think>never ends </thin", "never ends </thin", ""),
        (Within, "\nHm </think </think>x", "Hm </think", "x"),
        (Within, "äß\u{2028}😀 \n </think>\n", "äß\u{2028}😀", ""),
        (Within, "a\n\nb\n", "a\n\nb", ""),
        (Within, "</think>Yes", "", "Yes"),
    ] {
        let expected = (thought.to_owned(), answer.to_owned());
        assert_eq!(split(begins, &[text]), expected, "{text:?}");
        let letters: Vec<&str> = text.split_inclusive(|_| true).collect();
        assert_eq!(split(begins, &letters), expected, "{text:?} by letters");
        for at in (0..text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(split(begins, &[&text[..at], &text[at..]]), expected, "{text:?} cut at {at}");
        }
    }
}

fn whole_or_by_letters(markers: Markers, text: &str, thought: &str, answer: &str) {
    let letters: Vec<&str> = text.split_inclusive(|_| true).collect();
    for pieces in [&[text][..], &letters] {
        let told = split_by(markers, Begins::Before, pieces);
        assert_eq!(told, (thought.to_owned(), answer.to_owned()), "{text:?} in {}", pieces.len());
    }
}

#[test]
fn what_stands_around_an_answer_goes_with_the_thoughts() {
    for (text, answer) in [
        ("<think>a</think>\n<response>\nb </response> \n", "b"),
        ("<think>a</think><response>b</res", "b</res"),
        ("<think>a</think><response>b</response> c</response>", "bc</response>"),
        ("<think>a</think><resp c", "<resp c"),
        ("<think>a</think>b</response>", "b</response>"),
        ("<think>a</think><response>", ""),
    ] {
        whole_or_by_letters(THINK_AND_RESPOND, text, "a", answer);
    }
    assert_eq!(split(Begins::Before, &["<response>b</response>"]).1, "<response>b</response>");
}

#[test]
fn what_stands_around_an_answer_goes_without_thoughts_too() {
    let cohere = Markers::of_template("<|START_THINKING|> .. <|START_RESPONSE|>").unwrap();
    for (text, thought, answer) in [
        ("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
        ("<|START_RESPONSE|>b<|END_RESPONSE|>", "", "b"),
        ("<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[", "a", "<|START_ACTION|>["),
        ("<|START_ACTION|>[", "", "<|START_ACTION|>["),
        ("<|START_", "", "<|START_"),
    ] {
        whole_or_by_letters(cohere, text, thought, answer);
    }
}

#[test]
fn a_text_that_is_told_piece_by_piece_is_told_early() {
    let mut split = Split::new(THINK, Begins::Before);
    for (piece, thought, text) in [
        ("<think>", "", ""),
        ("\n", "", ""),
        ("Hm", "Hm", ""),
        (", ", ",", ""),
        ("so", " so", ""),
        ("\n</", "", ""),
        ("think>", "", ""),
        ("\n\n", "", ""),
        ("Yes", "", "Yes"),
        (" ", "", " "),
    ] {
        let told = split.push(piece);
        assert_eq!((told.thought.as_str(), told.text.as_str()), (thought, text), "{piece:?}");
    }
    assert!(split.is_in_answer());
}

#[test]
fn the_prompt_says_where_an_answer_begins() {
    for (prompt, continued, begins) in [
        ("<|im_start|>assistant\n", None, Some(Begins::Before)),
        ("<|im_start|>assistant\n<think>\n", None, Some(Begins::Within)),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, None),
        ("user: <think> </think> <think>? assistant:", None, Some(Begins::Before)),
        ("assistant: The sum is", Some("The sum is"), None),
        ("user: what is <think>? assistant: The sum is", Some("The sum is "), None),
        ("assistant: <think>\nThe sum", Some("<think>\nThe sum"), Some(Begins::Within)),
        ("assistant: <think>\n", Some("<think>\n"), Some(Begins::Within)),
        ("assistant: <think>\nThe sum", Some("The sum"), Some(Begins::Within)),
        ("assistant: <think>\n", Some(""), Some(Begins::Within)),
        ("assistant: <think>a</think> The sum", Some("<think>a</think> The sum"), None),
        ("assistant: <think>a</think> The sum", Some("The sum"), None),
    ] {
        assert_eq!(THINK.begins(prompt, continued), begins, "{prompt:?} {continued:?}");
    }
}

#[test]
fn templates_show_how_their_models_think() {
    let opens = |source: &str| Markers::of_template(source).map(|markers| markers.opens);
    assert_eq!(opens("{% if '</think>' in content %}"), Some("<think>"));
    assert_eq!(opens("<|im_start|>assistant\n<think>"), Some("<think>"));
    assert_eq!(opens("'[THINK]' + block['thinking'] + '[/THINK]'"), Some("[THINK]"));
    assert_eq!(opens("{%- set think_begin_token = '<seed:think>' %}"), Some("<seed:think>"));
    assert_eq!(opens("{{ messages[0].content }}"), None);
    let granite = "between <think></think> and write your response between <response></response>";
    assert_eq!(Markers::of_template(granite), Some(THINK_AND_RESPOND));
    assert_eq!(Markers::of_template("<think> <tool_response>"), Some(THINK));
}

const IDS: Ids = Ids { opens: 1, closes: 2 };
const END: u32 = 3;

fn thoughts(begins: Begins, ids: Option<Ids>) -> Thoughts {
    Thoughts { markers: THINK, begins, ids, manner: Manner::default() }
}

#[test]
fn thoughts_are_counted_with_their_markers() {
    for (begins, tokens, n) in [
        (Begins::Before, vec![1, 5, 5, 2, 6, 6], 4),
        (Begins::Before, vec![4, 1, 5, 2, 6], 0),
        (Begins::Before, vec![5, 6, 7, 1, 2], 0),
        (Begins::Before, vec![1, 5, 5], 3),
        (Begins::Before, vec![], 0),
        (Begins::Within, vec![5, 5, 2, 6], 3),
        (Begins::Within, vec![5, 5], 2),
    ] {
        assert_eq!(thoughts(begins, Some(IDS)).count(&tokens), Some(n), "{begins:?} {tokens:?}");
    }
    assert_eq!(thoughts(Begins::Within, None).count(&[2]), None);
}

/// Texts of one token, 5, and an end.
#[derive(Debug)]
struct Five;

#[derive(Debug)]
struct AtFive(usize);

impl Language for Five {
    fn begin(&self) -> Box<dyn Guide> {
        Box::new(AtFive(0))
    }

    fn bytes(&self) -> usize {
        1
    }
}

impl Guide for AtFive {
    fn mask(&mut self, row: &mut [f32], ends: &[u32], _: &[u32]) -> Result<(), SampleError> {
        for (id, logit) in (0u32..).zip(row) {
            let fits = if self.0 == 0 { id == 5 } else { ends.contains(&id) };
            *logit = if fits { *logit } else { f32::NEG_INFINITY };
        }
        Ok(())
    }

    fn accept(&mut self, _: u32) {
        self.0 += 1;
    }

    fn end(&mut self) {
        self.0 += 1;
    }
}

fn possible(guide: &mut dyn Guide, asked: &[u32]) -> Vec<usize> {
    let mut row = [0.0f32; 8];
    guide.mask(&mut row, &[END], asked).unwrap();
    (0..8).filter(|&id| row[id] == 0.0).collect()
}

#[test]
fn a_form_holds_behind_thoughts() {
    let form = || Grammar::new(Arc::new(Five));
    assert!(
        thoughts(Begins::Within, None).then(Some(form())).is_none(),
        "nothing would tell where it begins"
    );
    let five = form();
    let think = thoughts(Begins::Before, Some(IDS)).then(Some(five.clone())).unwrap();
    assert!(think.shares_memory(&five) && five.shares_memory(&think) && think != five);
    assert!(!think.shares_memory(&form()));
    let mut guide = think.begin();
    assert_eq!(possible(&mut *guide, &[]), [1, 5], "thoughts, or the form at once");
    guide.accept(1);
    assert_eq!(possible(&mut *guide, &[]), [0, 1, 2, 4, 5, 6, 7], "anything but an end");
    assert_eq!(possible(&mut *guide, &[3]).len(), 8, "a request may stop where it likes");
    for token in [5, 1, 7, 2] {
        guide.accept(token);
    }
    assert_eq!(possible(&mut *guide, &[]), [5]);
    guide.accept(5);
    assert_eq!(possible(&mut *guide, &[]), [3]);
    let mut guide = think.begin();
    guide.accept(5);
    assert_eq!(possible(&mut *guide, &[]), [3], "it did not think");
    let mut guide = thoughts(Begins::Within, Some(IDS)).then(Some(form())).unwrap().begin();
    assert_eq!(possible(&mut *guide, &[]).len(), 7);
    guide.accept(2);
    assert_eq!(possible(&mut *guide, &[]), [5]);
}

#[test]
fn thoughts_end_in_time() {
    let of = |begins, most| {
        let manner = Manner { most, ..Manner::default() };
        Thoughts { manner, ..thoughts(begins, Some(IDS)) }
    };
    assert!(of(Begins::Before, None).then(None).is_none(), "nothing holds");
    let two = of(Begins::Before, Some(2)).then(None).unwrap();
    let mut guide = two.begin();
    assert_eq!(possible(&mut *guide, &[]).len(), 8);
    for token in [1, 5, 6] {
        assert_ne!(possible(&mut *guide, &[]), [2], "not yet");
        guide.accept(token);
    }
    assert_eq!(possible(&mut *guide, &[]), [2]);
    guide.accept(2);
    assert_eq!(possible(&mut *guide, &[]).len(), 8, "the answer is free");
    let mut guide = two.begin();
    for token in [5, 1, 5, 6, 7] {
        guide.accept(token);
    }
    assert_eq!(possible(&mut *guide, &[]).len(), 8, "what stands in an answer opens no thoughts");
    let none = of(Begins::Before, Some(0)).then(None).unwrap();
    assert_eq!(possible(&mut *none.begin(), &[]), [0, 2, 3, 4, 5, 6, 7]);
    let within = of(Begins::Within, Some(0)).then(Some(Grammar::new(Arc::new(Five)))).unwrap();
    let mut guide = within.begin();
    assert_eq!(possible(&mut *guide, &[3]), [2], "the prompt has opened them");
    guide.accept(2);
    assert_eq!(possible(&mut *guide, &[]), [5]);
}
