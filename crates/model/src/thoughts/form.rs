//! A form that holds behind thoughts: a model that is made to answer at once answers worse than one that thinks as it learnt to. And
//! thoughts that end in time, since some models find no end of them.

use std::sync::Arc;

use super::{Begins, Ids};
use crate::sampling::{Grammar, Guide, Language, SampleError};

/// About what a place takes without a form.
const BYTES: usize = 64;

/// Maybe thoughts, of so many tokens at the most, and then a text of a form, if it must have one.
#[derive(Debug)]
pub(super) struct Behind {
    form: Option<Grammar>,
    begins: Begins,
    ids: Ids,
    most: Option<u32>,
}

impl Behind {
    pub(super) fn grammar(form: Option<Grammar>, begins: Begins, ids: Ids, most: Option<u32>) -> Grammar {
        Grammar::new(Arc::new(Behind { form, begins, ids, most }))
    }
}

impl Language for Behind {
    fn begin(&self) -> Box<dyn Guide> {
        let place = match self.begins {
            Begins::Before => Place::Before,
            Begins::Within => Place::Within(0),
        };
        let form = self.form.as_ref().map(Grammar::begin);
        Box::new(Walk { form, place, ids: self.ids, most: self.most })
    }

    fn bytes(&self) -> usize {
        self.form.as_ref().map_or(BYTES, Grammar::bytes)
    }

    fn made_of(&self) -> Option<&Grammar> {
        self.form.as_ref()
    }
}

#[derive(Debug)]
struct Walk {
    form: Option<Box<dyn Guide>>,
    place: Place,
    ids: Ids,
    most: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the first token, which may open thoughts.
    Before,
    /// In thoughts of so many tokens.
    Within(u32),
    Behind,
}

impl Walk {
    fn mask_form(&mut self, row: &mut [f32], ends: &[u32], asked: &[u32]) -> Result<(), SampleError> {
        self.form.as_mut().map_or(Ok(()), |form| form.mask(row, ends, asked))
    }
}

impl Guide for Walk {
    fn mask(&mut self, row: &mut [f32], ends: &[u32], asked: &[u32]) -> Result<(), SampleError> {
        let Ids { opens, closes } = self.ids;
        let logit = |row: &[f32], id: u32| row.get(id as usize).copied();
        match self.place {
            Place::Before => {
                let kept = logit(row, opens)
                    .map(|logit| if self.most == Some(0) { f32::NEG_INFINITY } else { logit });
                self.mask_form(row, ends, asked)?;
                set(row, opens, kept);
            }
            Place::Within(tokens) if self.most.is_some_and(|most| tokens >= most) => {
                let kept = logit(row, closes);
                row.fill(f32::NEG_INFINITY);
                set(row, closes, kept);
            }
            // Whatever it thinks; but an answer that ended here would not have the form.
            Place::Within(_) if self.form.is_some() => {
                let ends = ends.iter().filter(|id| !asked.contains(id));
                ends.for_each(|&id| set(row, id, Some(f32::NEG_INFINITY)));
            }
            Place::Within(_) => (),
            Place::Behind => self.mask_form(row, ends, asked)?,
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        match self.place {
            Place::Before if token == self.ids.opens => self.place = Place::Within(0),
            Place::Within(_) if token == self.ids.closes => self.place = Place::Behind,
            Place::Within(tokens) => self.place = Place::Within(tokens.saturating_add(1)),
            Place::Before | Place::Behind => {
                self.place = Place::Behind;
                if let Some(form) = &mut self.form {
                    form.accept(token);
                }
            }
        }
    }

    fn end(&mut self) {
        self.place = Place::Behind;
        if let Some(form) = &mut self.form {
            form.end();
        }
    }
}

/// A token's logit, if there is one of that token.
fn set(row: &mut [f32], id: u32, logit: Option<f32>) {
    if let Some((place, logit)) = row.get_mut(id as usize).zip(logit) {
        *place = logit;
    }
}
